"""What the container runtime injects for a prepared claim."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from driver.errors import UnknownDeviceError
from driver.model.claims import Held, Record
from driver.model.gpu import DeviceNode, Gpu
from driver.model.ids import ClaimUid
from driver.model.mig import MigDevice
from driver.model.shares import Share
from driver.model.units import Bytes
from driver.model.view import Mount, MpsFolders, NodeView

# The lowest version that allows hostPath and names that start with a digit; podman 4.3 takes no
# newer one.
CDI_VERSION = "0.5.0"

_MOUNT_OPTIONS = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_MIB = 1 << 20
_DIGITS = 4  # of a fraction, after the point
_VISIBLE = "NVIDIA_VISIBLE_DEVICES"
_SHARED_OPTIONS = ("rw", "nosuid", "nodev", "rbind", "rprivate")  # MPS clients write there
_SHM = "/dev/shm"  # noqa: S108 - the container's, which must be that of the MPS daemon
_MPS_FOLDER = "nvidia-mps"  # the host's default MPS pipes: never in a container of ours


def spec_file_prefix(driver: str) -> str:
    """What the file names of all claims begin with: ``<vendor>-<class>_`` (CDI's convention)."""
    return f"{driver}-claim_"


def spec_file_name(driver: str, uid: ClaimUid) -> str:
    """One transient spec a claim."""
    return f"{spec_file_prefix(driver)}{uid}.json"


def cdi_device_name(uid: ClaimUid, position: int) -> str:
    """By position in the allocation results: a claim may hold one device twice."""
    return f"{uid}-{position}"


def cdi_device_id(driver: str, uid: ClaimUid, position: int) -> str:
    """What the kubelet hands to the runtime."""
    return f"{driver}/claim={cdi_device_name(uid, position)}"


def cdi_spec(record: Record, view: NodeView) -> dict[str, Any]:
    """The CDI spec of a claim on the node as it is now. Check it with ``cdi_rules``.

    A projection of the record: made again at every prepare and at start, because
    ``/var/run/cdi`` is empty after a reboot and device minors may have moved.

    Raises:
        UnknownDeviceError: a card has no device node, or its MPS daemon no folder; a container
            would start without its GPU, or without its limits.
    """
    number: Counter[str] = Counter()
    devices = []
    for held in record.held:
        base = held.allocation.request.partition("/")[0]
        prefixes = [f"ALIQUOT_{_variable(base)}_{number[base]}_"]
        # Each request's first: a container may get that request only. Of several the later counts.
        prefixes += ["ALIQUOT_DEVICE_"] if number[base] == 0 else []
        number[base] += 1
        devices.append(_device(record.claim.uid, held, view, prefixes))
    return {
        "cdiVersion": CDI_VERSION,
        "kind": f"{view.driver_name}/claim",
        "devices": devices,
        "containerEdits": view.common,
    }


def _device(uid: ClaimUid, held: Held, view: NodeView, prefixes: Iterable[str]) -> dict[str, Any]:
    gpu, nodes = view.gpus.get(held.gpu), view.nodes.get(held.gpu)
    if gpu is None or not nodes:
        raise UnknownDeviceError(
            f"card {held.gpu} of device {held.allocation.device} has no device node on this node; "
            "is it lost? `nvidia-smi` on the node shows the cards that answer, and --driver-root "
            "says where device nodes are looked for"
        )
    part = None
    if held.placement is not None and not held.allocation.admin:
        part = view.partitions.get(held.place)
        if part is None:
            raise UnknownDeviceError(
                f"device {held.allocation.device}: there is no partition {held.profile} at "
                f"{held.placement} of card {held.gpu}; somebody destroyed it, or its card was "
                "reset: delete the pod, so that it is made again for another one"
            )
        nodes = (*nodes, *part.nodes)
    told = _environment(gpu, held, part)
    edits: dict[str, Any] = {
        "env": [f"{prefix}{key}={value}" for prefix in prefixes for key, value in told.items()],
        "deviceNodes": [_node(node) for node in nodes],
    }
    if held.type == "mps" and held.share is not None:
        folders = view.mps.get(held.gpu)
        if folders is None:
            raise UnknownDeviceError(
                f"device {held.allocation.device}: the MPS control daemon of card {held.gpu} does "
                "not run; `aliquot doctor` on the node says what the MPS supervisor lacks"
            )
        edits["env"] += _mps_environment(held.share, folders)
        edits["mounts"] = _mps_mounts(held.share, folders)
    return {
        "name": cdi_device_name(uid, held.allocation.position),
        "containerEdits": edits,
    }


def _environment(gpu: Gpu, held: Held, part: MigDevice | None) -> Mapping[str, str]:
    """What the process may use, and that as a part of what it sees as total: all of its card or
    partition, also where it has a share (``cudaMemGetInfo`` knows no MPS limit). No size where
    the card has none of its own."""
    total = gpu.memory if part is None else part.memory
    share = held.share
    memory, percent = (total, 100) if share is None else (_usable(share, total), _percent(share))
    size = {"MEMORY_BYTES": str(memory)} if memory else {}
    return {
        "UUID": gpu.uuid if part is None else part.uuid,
        "TYPE": held.type,
        **size,
        "MEMORY_FRACTION": _fraction(memory, total),
        "COMPUTE_PERCENT": str(percent),
    }


def _usable(share: Share, total: Bytes) -> Bytes:
    """The limit; of a turn what was asked for, so that frameworks on one card can keep to it."""
    return share.memory_limit or share.memory or total


def _percent(share: Share) -> int:
    return share.percent_limit or 100


def _fraction(memory: Bytes, total: Bytes) -> str:
    """``0.1756``: rounded down, so that the part is never above the limit."""
    if memory >= total:
        return "1"
    return f"0.{memory * 10**_DIGITS // total:0{_DIGITS}}"


def _mps_environment(share: Share, folders: MpsFolders) -> list[str]:
    """Limits in the environment only where nothing stronger has them: a namespace has its own.

    The daemon sees its card alone, as ordinal 0; an entry for a card that a client does not see
    would void all limits of that client (MPS documentation).
    """
    found = [f"CUDA_MPS_PIPE_DIRECTORY={_pipe(share, folders)}"]
    if share.namespace is not None:
        return found
    limit = share.memory_limit or share.memory
    found.append(f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={limit // _MIB}M")
    if share.percent_limit is not None:
        found.append(f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={share.percent_limit}")
    return found


def _mps_mounts(share: Share, folders: MpsFolders) -> list[dict[str, Any]]:
    """With namespaces only the claim's own: a container cannot see another's."""
    pipe = _pipe(share, folders)
    mounts = [_mount(pipe, pipe, _SHARED_OPTIONS)]
    return [*mounts, _mount(folders.shm, _SHM, _SHARED_OPTIONS)] if folders.shm else mounts


def _pipe(share: Share, folders: MpsFolders) -> str:
    if share.namespace is None:
        return folders.pipe
    return "/".join(filter(None, (folders.pipe, folders.server, share.namespace)))


def _variable(request: str) -> str:
    return request.upper().replace("-", "_")


def _node(node: DeviceNode) -> dict[str, Any]:
    """Without major and minor: the runtime takes them from the node at hostPath, which holds
    also where the node stands in for another device. A capability node may not exist on the host
    (nvidia-modprobe makes them), so the runtime makes it from its numbers
    (dra-driver-nvidia-gpu#787)."""
    if node.numbers is not None:
        major, minor = node.numbers
        made = {"path": node.path, "type": "c", "major": major, "minor": minor}
        return made | {"fileMode": node.mode or 0o444, "permissions": "rwm"}
    return {"path": node.path, "hostPath": node.host_path, "permissions": "rwm"}


def common_edits(
    control_nodes: Iterable[DeviceNode],
    mounts: Iterable[Mount],
    toolkit: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What every container of the node gets. ``toolkit``: the common containerEdits that
    ``nvidia-ctk cdi generate`` made; where there are some, they stand in for ``mounts``, since its
    hooks make links in places where ``mounts`` has files."""
    made = toolkit or {}
    own = [] if toolkit else [_mount(each.host_path, each.container_path) for each in mounts]
    others = [dict(mount) for mount in _list(made, "mounts") if not _is_mps(mount)]
    env = [each for each in _list(made, "env") if not each.startswith(f"{_VISIBLE}=")]
    nodes = [*map(_node, control_nodes), *map(_without_numbers, _list(made, "deviceNodes"))]
    edits = {
        "env": [f"{_VISIBLE}=void", *env],  # keeps the legacy hook from adding every card
        "deviceNodes": _first_of_each(nodes, "path"),
        "mounts": _first_of_each([*own, *others], "containerPath"),
        "hooks": [dict(hook) for hook in _list(made, "hooks")],
    }
    return {key: value for key, value in edits.items() if value}


def _list(common: Mapping[str, Any], key: str) -> list[Any]:
    return common.get(key) or []


def _without_numbers(node: Mapping[str, Any]) -> dict[str, Any]:
    if "hostPath" not in node:
        return dict(node)
    return {key: value for key, value in node.items() if key not in {"type", "major", "minor"}}


def _mount(
    host_path: str, container_path: str, options: Sequence[str] = _MOUNT_OPTIONS
) -> dict[str, Any]:
    return {"hostPath": host_path, "containerPath": container_path, "options": list(options)}


def _is_mps(mount: Mapping[str, Any]) -> bool:
    return str(mount["containerPath"]).rpartition("/")[2] == _MPS_FOLDER


def _first_of_each(entries: Iterable[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for entry in entries:
        found.setdefault(entry[key], entry)
    return list(found.values())
