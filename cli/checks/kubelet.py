"""The folders that plugin and kubelet share, and what an earlier run left in them."""

from collections.abc import Sequence
from pathlib import Path

from cli import records
from cli.checks.finding import Finding, fail, ok, warn
from cli.checks.folders import present, told, unwritable
from cli.records import Held
from cli.text import plural
from driver.errors import StateError
from driver.plan.cdi import spec_file_prefix
from driver.settings import Settings
from driver.state.cdi_dir import CdiDir
from kubeletplugin.paths import PluginPaths, plugin_paths

AREA = "Kubelet folders"
LEFTOVERS = "Records and leftovers"

_MOUNT = (
    "set --kubelet-root to the kubelet's --root-dir; in a container, mount it under the same path"
)


# Pure ------------------------------------------------------------------------------------


def judge_paths(settings: Settings) -> tuple[PluginPaths | None, Finding]:
    """Unix sockets have at most 107 bytes of path (unix(7))."""
    check = "socket paths"
    try:
        paths = plugin_paths(
            settings.driver_name,
            kubelet_root=settings.kubelet_root,
            plugin_dir=settings.plugin_dir,
            registry_dir=settings.registry_dir,
            instance=settings.instance,
        )
    except ValueError as error:
        mend = "shorten --plugin-dir, --registry-dir or --driver-name"
        return None, fail(check, str(error), "at most 107 bytes", mend)
    longest = max(
        len(str(each).encode()) for each in (paths.dra_socket, paths.registration_socket)
    )
    return paths, ok(check, f"{longest} of 107 bytes")


def judge_records(held: Held) -> list[Finding]:
    """Records that cannot be trusted, and claims whose CDI file is gone."""
    findings = [ok("records", f"{plural(len(held.entries), 'prepared claim')}")]
    findings += [
        fail(
            f"record {one.path.name}",
            one.problem,
            "a record that can be trusted",
            "start the plugin: it rebuilds the record from the claim, and taints the cards until "
            f"then; if the claim is gone, it settles it. The file to look at: {one.path}",
        )
        for one in held.damaged
    ]
    lost = [entry for entry in held.entries if not entry.cdi_present]
    findings += [
        warn(
            f"claim {entry.record.claim.namespace}/{entry.record.claim.name}",
            f"its CDI file {entry.cdi_file} is missing",
            "a CDI file for every prepared claim",
            "restart the plugin: it writes the file again at its start",
        )
        for entry in lost
    ]
    return findings


def judge_strays(names: Sequence[str], folder: Path) -> Finding:
    """CDI files of ours that belong to no record."""
    if not names:
        return ok("CDI files", f"none in {folder} without a record")
    return warn(
        "CDI files",
        f"in {folder} without a record: {', '.join(names)}",
        "files of prepared claims only",
        "the plugin deletes them while it runs; start it, or delete them by hand",
    )


# Reading ---------------------------------------------------------------------------------


def check(settings: Settings) -> list[Finding]:
    paths, finding = judge_paths(settings)
    findings = [finding, *_root(settings.kubelet_root)]
    if paths is not None:
        findings.append(_folder("plugin folder", paths.plugin_dir))
        findings.append(_folder("registry folder", paths.registry_dir))
        findings.append(_instance(paths))
    return findings


def check_leftovers(settings: Settings) -> list[Finding]:
    """Everything here only reads."""
    try:
        held = records.read(settings.journal_dir, settings.cdi_dir, settings.driver_name)
        known = {entry.record.claim.uid for entry in held.entries}
        prefix = spec_file_prefix(settings.driver_name)
        strays = CdiDir(settings.cdi_dir, prefix).strays(known)
    except (StateError, OSError) as error:
        return [fail("records", str(error), "readable folders", "run as root")]
    return [*judge_records(held), judge_strays(strays, settings.cdi_dir)]


def _root(root: Path) -> list[Finding]:
    check, wanted = "kubelet root", "the folder of a kubelet"
    try:
        entries = {path.name for path in root.iterdir()}
    except FileNotFoundError:
        return [fail(check, f"{root} does not exist", wanted, _MOUNT)]
    except OSError as error:
        return [fail(check, f"{root}: {error.strerror}", wanted, f"run as root, or {_MOUNT}")]
    if not entries & {"pods", "kubeadm-flags.env", "device-plugins", "cpu_manager_state"}:
        found = f"{root} has no folder pods, so no kubelet has used it"
        return [warn(check, found, wanted, _MOUNT)]
    return [ok(check, str(root))]


def _folder(check: str, folder: Path) -> Finding:
    """The plugin makes its folders; their nearest existing parent must let it."""
    problem = unwritable(folder)
    if problem:
        return fail(check, problem, "a writable folder", f"run the plugin as root, or {_MOUNT}")
    return ok(check, told(folder))


def _instance(paths: PluginPaths) -> Finding:
    check = "running instance"
    try:
        holder = records.lock_holder(paths.locks[0])
    except OSError as error:
        return warn(check, str(error), "a readable lock file", "run as root")
    if holder is None:
        return ok(check, "none holds the instance lock; the plugin can start")
    if not present(paths.dra_socket):
        return warn(
            check,
            f"{holder} holds the instance lock, but there is no socket {paths.dra_socket}",
            "a socket that the kubelet can call",
            "look at that instance's log; it may be starting, or run under another --instance",
        )
    return ok(check, f"{holder} holds the instance lock; another one would stand by")
