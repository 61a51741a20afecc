"""The NVIDIA driver and the cards, as the plugin will meet them."""

from collections.abc import Callable, Iterable

from cli.checks import mig
from cli.checks.finding import Finding, fail, ok, warn
from cli.text import plural
from driver.errors import DriverError, HardwareError
from driver.hw.card import Cards
from driver.hw.nvml import MINIMUM_DRIVER, Nvml, load_library
from driver.model.gpu import Inventory, UnreadableGpu
from driver.model.ids import PciAddress
from driver.settings import Settings

AREA = "NVIDIA driver and cards"

_INSTALL = (
    "install the NVIDIA driver on the node, or point --driver-root at the folder where it is"
)

_TOOLKIT = (
    "install or update the NVIDIA Container Toolkit (1.13 or newer); --nvidia-ctk says where it "
    "is if not in the driver root"
)


# Pure ------------------------------------------------------------------------------------


def judge_cards(found: Inventory) -> list[Finding]:
    """What NVML lists."""
    findings = []
    if found.gpus:
        products = sorted({gpu.product for gpu in found.gpus})
        findings.append(ok("cards", f"{plural(len(found.gpus), 'card')}: {', '.join(products)}"))
    elif not found.unreadable:
        findings.append(
            warn("cards", "NVML lists no card", "at least one", "look at `nvidia-smi` and `dmesg`")
        )
    findings += [_unreadable(card) for card in found.unreadable]
    return findings


def judge_bus(missing: Iterable[PciAddress]) -> Finding:
    """Cards on the PCI bus that NVML does not count (dra-driver-nvidia-gpu#1008)."""
    found = ", ".join(missing)
    check = "cards on the PCI bus"
    if not found:
        return ok(check, "NVML lists every NVIDIA card of the bus")
    return fail(
        check,
        f"on the bus but not listed by NVML: {found}",
        "every card listed",
        "look for NVRM and Xid lines in `dmesg`; cards that a virtual machine uses belong to "
        "vfio-pci",
    )


def _unreadable(card: UnreadableGpu) -> Finding:
    return fail(
        f"card {card.pci or card.index}",
        card.problem,
        "a card that answers",
        "reset it (nvidia-smi --gpu-reset) or reboot the node; the other cards are served",
    )


# Reading ---------------------------------------------------------------------------------


def check(settings: Settings) -> list[Finding]:
    """The driver root has the library; /dev and /sys are there too, or in the simulator's
    folder."""
    nvml = Nvml()
    try:
        load_library(settings.driver_root)
        nvml.open()
        inventory = Cards(nvml, settings.root).discover()
    except DriverError as error:
        wanted = f"NVML of driver {MINIMUM_DRIVER} or newer, and its kernel module loaded"
        return [fail("NVML", str(error), wanted, _INSTALL)]
    try:
        cards = Cards(nvml, settings.root, toolkit=settings.nvidia_ctk)
        return _look(cards, inventory, mig.read(settings))
    finally:
        nvml.close()


def discover(settings: Settings) -> Inventory:
    """The cards alone, as ``check`` sees them.

    Raises:
        DriverError: NVML does not answer.
    """
    nvml = Nvml()
    load_library(settings.driver_root)
    nvml.open()
    try:
        return Cards(nvml, settings.root).discover()
    finally:
        nvml.close()


def _look(cards: Cards, inventory: Inventory, known: mig.Known) -> list[Finding]:
    cuda = ".".join(map(str, inventory.cuda_driver_version))
    findings = [ok("NVML", f"driver {inventory.driver_version}, CUDA {cuda}")]
    findings += judge_cards(inventory)
    findings += mig.judge(inventory.gpus, known)
    findings.append(judge_bus(cards.unlisted(inventory)))
    findings.append(_nodes(cards, inventory))
    findings.append(
        _tried("driver libraries", _INSTALL, lambda: f"{len(cards.files().mounts)} files")
    )
    return [*findings, *_toolkit(cards)]


def _toolkit(cards: Cards) -> list[Finding]:
    """Nothing to say where the driver's files, which it is asked about, are not there."""
    check = "container toolkit"
    try:
        files = cards.files()
    except HardwareError:
        return []
    try:
        edits = cards.toolkit_edits(files)
    except HardwareError as error:
        wanted = "its hooks, which make links and the loader's cache in containers"
        return [warn(check, str(error), wanted, _TOOLKIT)]
    if edits is None:
        return [ok(check, "none: containers get the driver's files alone")]
    return [ok(check, f"{plural(len(edits.get('hooks', ())), 'hook')} for links and loader cache")]


def _nodes(cards: Cards, inventory: Inventory) -> Finding:
    def look() -> str:
        paths = [node.host_path for gpu in inventory.gpus for node in cards.nodes(gpu.uuid)]
        paths += [node.host_path for node in cards.control_nodes()]
        return f"{len(paths)} there, as {paths[0]}"

    return _tried("device nodes", "run nvidia-modprobe on the node", look)


def _tried(check: str, mend: str, look: Callable[[], str]) -> Finding:
    try:
        return ok(check, look())
    except HardwareError as error:
        return fail(check, str(error), "what containers of the cards need", mend)
