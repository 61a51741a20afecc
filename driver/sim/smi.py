"""Stand-in for ``nvidia-smi``: its ``compute-policy``, on the state of a simulated node.

Run by the script that ``files.write_driver`` puts into the driver root, as
``python -m driver.sim.smi ROOT compute-policy …``. Its habits are those of the real one: it
refuses some things with exit status 0.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from driver.sim.profiles import PROFILES
from driver.sim.store import SimulationError, Store
from driver.sim.topology import cards
from driver.sim.world import World

_NAMES = ("Default", "Short", "Medium", "Long")


def main(arguments: Sequence[str]) -> int:
    """The exit status; what it says goes to stdout, as that of the real program does."""
    root, command, *rest = [*arguments, ""]
    store = Store(Path(root))
    try:
        world = store.read()
        if world.smi == "fails":
            return _say(
                "NVIDIA-SMI has failed because it couldn't communicate with the driver.", 9
            )
        if command != "compute-policy":
            return _say(f"simulated nvidia-smi, driver {world.driver_version}", 0)
        return _compute_policy(store, world, [each for each in rest if each])
    except SimulationError as error:
        return _say(str(error), 9)


def _compute_policy(store: Store, world: World, arguments: Sequence[str]) -> int:
    if world.smi == "old":
        return _say('Invalid command "compute-policy". Run nvidia-smi -h for help.', 6)
    parser = argparse.ArgumentParser(prog="nvidia-smi compute-policy", exit_on_error=False)
    parser.add_argument("-i", "--id")
    parser.add_argument("-l", "--list", action="store_true")
    parser.add_argument("--set-timeslice", type=int, choices=range(len(_NAMES)))
    try:
        given = parser.parse_args(arguments)
    except argparse.ArgumentError as error:
        return _say(str(error), 2)
    known = cards(PROFILES[world.profile], world.count, world.seed)
    chosen = [card.index for card in known if given.id in (None, card.uuid, str(card.index))]
    if not chosen or any(world.gpu(index).lost for index in chosen):
        return _say(f"No devices were found for id {given.id}", 6)
    if world.smi == "unsupported":
        return _say("Timeslice is Not Supported for this device", 0)
    if given.set_timeslice is None:
        for index in chosen:
            print(f"GPU {index}: Timeslice: {_NAMES[world.gpu(index).time_slice]}")  # noqa: T201
        return 0
    return _set(store, world, chosen, given.set_timeslice)


def _set(store: Store, world: World, chosen: Sequence[int], value: int) -> int:
    name = _NAMES[value].upper()
    if world.smi == "silent":
        return _say("Insufficient Permissions", 0)
    with store.update() as changed:
        for index in chosen:
            changed.change(index).time_slice = value
    for index in chosen:
        _say(f"Successfully set timeslice policy with value {name.title()} for GPU {index}", 0)
    return 0


def _say(text: str, status: int) -> int:
    print(text)  # noqa: T201
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
