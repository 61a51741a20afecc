"""Create the root folder of a simulated node: state, /dev, /proc, /sys and the driver's files."""

from pathlib import Path

from driver.sim import files
from driver.sim.profiles import MAX_CARDS, PROFILES, known
from driver.sim.store import SimulationError, Store, refused, unusable
from driver.sim.world import World

DRIVER_VERSION = "580.105.08"


def create(
    root: Path,
    profile: str,
    count: int,
    *,
    seed: int = 0,
    driver_version: str | None = None,
    fabric: bool = False,
) -> None:
    """Make ``root`` a simulated node with ``count`` cards of ``profile``.

    A node that exists already with the same profile and count keeps its state (identity, driver
    version, faults, modes), whatever the other arguments say; files missing from it are made
    again. ``seed`` decides the UUIDs: give each node of a cluster its own. ``fabric`` puts the
    cards into a multi-node NVLink fabric, where the model can be in one.

    Raises:
        ValueError: unknown profile, a count that is not 1 to 512, or a model without a fabric.
        SimulationError: ``root`` holds another node, or cannot be used.
    """
    _check(profile, count, fabric)
    store = Store(root)
    try:
        (store.root / "sim").mkdir(parents=True, exist_ok=True)
        _begin(store, World(profile, count, seed, fabric, driver_version or DRIVER_VERSION))
    except FileNotFoundError as error:  # a parent in which nothing can be made, as in /proc
        raise refused(root, "nothing can be made there") from error
    except OSError as error:
        raise unusable(root, error) from error


def check_same(root: Path, profile: str, count: int) -> None:
    """Look whether ``root`` is a simulated node with these cards.

    Raises:
        SimulationError: it is none, another one, or cannot be read.
    """
    _same(root, Store(root).read(), profile, count)


def _begin(store: Store, wanted: World) -> None:
    with store.locked():
        if store.exists:
            world = store.read()
            _same(store.root, world, wanted.profile, wanted.count)
        else:
            world = wanted
            store.begin(world)
        files.write_node(store.root, world)


def _check(profile: str, count: int, fabric: bool) -> None:
    if profile not in PROFILES:
        raise ValueError(f"simulated hardware: no profile {profile!r}; known: {known()}")
    if not 1 <= count <= MAX_CARDS:
        raise ValueError(
            f"simulated hardware: the count must be 1 to {MAX_CARDS} cards, found {count}"
        )
    if fabric and not PROFILES[profile].fabric:
        able = ", ".join(key for key, board in PROFILES.items() if board.fabric)
        raise ValueError(
            f"simulated hardware: {profile} has no multi-node fabric; profiles with one: {able}"
        )


def _same(root: Path, world: World, profile: str, count: int) -> None:
    if (world.profile, world.count) != (profile, count):
        raise SimulationError(
            f"simulated hardware: {root} holds {world.profile}:{world.count}, "
            f"asked for {profile}:{count}; name another folder with --simulate-root, or delete "
            f"the folder {root} to start anew"
        )
