"""The rules of CDI's loader (container-device-interface 1.1.0), which its JSON schema lacks.

A spec that breaks one is ignored by the runtime, and its containers fail to start; so each spec
is checked before it is written.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from api.reading import show
from driver.errors import ClaimError

_VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
_NAME = "[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?"
_KIND = re.compile(rf"({_NAME})/({_NAME})")
_DEVICE = re.compile("[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_HOOKS = (
    "prestart",
    "createRuntime",
    "createContainer",
    "startContainer",
    "poststart",
    "poststop",
)
_CLASS_MAX = 63
_BREAK = re.compile("[\n\r\0]")

# Field: its type. Nothing else may stand there; newer fields would need a newer version.
_TOP = {
    "cdiVersion": str,
    "kind": str,
    "annotations": dict,
    "devices": list,
    "containerEdits": dict,
}
_DEVICE_FIELDS = {"name": str, "annotations": dict, "containerEdits": dict}
_EDITS = {
    "env": list,
    "deviceNodes": list,
    "mounts": list,
    "hooks": list,
    "intelRdt": dict,
    "additionalGids": list,
    "netDevices": list,
}
_NODE = {
    "path": str,
    "hostPath": str,
    "type": str,
    "major": int,
    "minor": int,
    "fileMode": int,
    "permissions": str,
    "uid": int,
    "gid": int,
}
_MOUNT = {"hostPath": str, "containerPath": str, "options": list, "type": str}
_HOOK = {"hookName": str, "path": str, "args": list, "env": list, "timeout": int}


def validate_spec(spec: Mapping[str, Any]) -> None:
    """Return when every runtime will load ``spec``.

    Also refused, though the loader takes them: line breaks and NUL in any text, which no value
    of ours has and which could become a second variable.

    Raises:
        ClaimError: with every rule that is broken.
    """
    problems = list(_problems(spec))
    if problems:
        raise ClaimError("the CDI spec would be refused by the runtime: " + "; ".join(problems))


def _problems(spec: Mapping[str, Any]) -> Iterator[str]:
    yield from _texts("spec", spec)
    wrong = list(_fields("spec", spec, _TOP))
    if wrong:
        yield from wrong
        return
    yield from _kind(spec.get("kind", ""))
    devices = spec.get("devices") or []
    if not devices:
        yield "devices: none, want at least one"
    for i, device in enumerate(devices):
        yield from _device(f"devices[{i}]", device)
    names = Counter(str(device.get("name")) for device in devices if isinstance(device, dict))
    yield from (f"devices: {name} stands there {n} times" for name, n in names.items() if n > 1)
    yield from _edits("containerEdits", spec.get("containerEdits", {}))
    yield from _version(spec)


def _kind(kind: str) -> Iterator[str]:
    match = _KIND.fullmatch(kind)
    if match is None:
        yield f"kind: got {show(kind)}, want vendor/class"
    elif len(match[3]) > _CLASS_MAX:
        yield f"kind: the class has {len(match[3])} characters, want at most {_CLASS_MAX}"


def _device(path: str, device: object) -> Iterator[str]:
    wrong = list(_fields(path, device, _DEVICE_FIELDS))
    if wrong or not isinstance(device, dict):
        yield from wrong
        return
    name = device.get("name", "")
    if not _DEVICE.fullmatch(name):
        yield f"{path}.name: got {show(name)}, want letters, digits and _.:-"
    edits = device.get("containerEdits") or {}
    if not any(edits.values()):
        yield f"{path}.containerEdits: empty"
    yield from _edits(f"{path}.containerEdits", edits)


def _edits(path: str, edits: Mapping[str, Any]) -> Iterator[str]:
    wrong = list(_fields(path, edits, _EDITS))
    if wrong:
        yield from wrong
        return
    yield from _environment(f"{path}.env", edits.get("env", []))
    checks = (("deviceNodes", _NODE, _node), ("mounts", _MOUNT, _mount), ("hooks", _HOOK, _hook))
    for key, fields, check in checks:
        for i, entry in enumerate(edits.get(key, [])):
            wrong = list(_fields(f"{path}.{key}[{i}]", entry, fields))
            yield from wrong or check(f"{path}.{key}[{i}]", entry)


def _environment(path: str, env: list[Any]) -> Iterator[str]:
    for i, entry in enumerate(env):
        if not isinstance(entry, str) or entry.find("=") < 1:
            yield f"{path}[{i}]: got {show(entry)}, want NAME=value"


def _node(path: str, node: Mapping[str, Any]) -> Iterator[str]:
    if not node.get("path"):
        yield f"{path}.path: missing"
    if node.get("type", "") not in {"", "b", "c", "u", "p"}:
        yield f"{path}.type: got {show(node['type'])}, want b, c, u or p"
    permissions = node.get("permissions", "")
    if permissions != "none" and not set(permissions) <= set("rwm"):
        yield f"{path}.permissions: got {show(permissions)}, want letters of rwm"


def _mount(path: str, mount: Mapping[str, Any]) -> Iterator[str]:
    for key in ("hostPath", "containerPath"):
        if not mount.get(key):
            yield f"{path}.{key}: missing"


def _hook(path: str, hook: Mapping[str, Any]) -> Iterator[str]:
    if hook.get("hookName") not in _HOOKS:
        yield f"{path}.hookName: got {show(hook.get('hookName'))}, want one of {', '.join(_HOOKS)}"
    if not hook.get("path", "").startswith("/"):
        yield f"{path}.path: got {show(hook.get('path'))}, want an absolute path"
    if hook.get("timeout", 1) < 1:
        yield f"{path}.timeout: got {hook['timeout']}, want 1 or more"
    yield from _environment(f"{path}.env", hook.get("env", []))


def _version(spec: Mapping[str, Any]) -> Iterator[str]:
    version = spec.get("cdiVersion", "").removeprefix("v")
    if version not in _VERSIONS:
        yield f"cdiVersion: got {show(version)}, want one of {', '.join(_VERSIONS)}"
        return
    for least, found in _needs(spec):
        if _VERSIONS.index(version) < _VERSIONS.index(least):
            yield f"cdiVersion: {version} is too low for {found}, which needs {least}"


def _needs(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each feature used, with the version that brought it."""
    devices = [device for device in spec.get("devices") or [] if isinstance(device, dict)]
    if any("annotations" in each for each in (spec, *devices)):
        yield "0.6.0", "annotations"
    if "." in str(spec.get("kind")).partition("/")[2]:
        yield "0.6.0", "a dot in the class"
    if any(str(device.get("name"))[:1].isdigit() for device in devices):
        yield "0.5.0", "a device name that starts with a digit"
    for edits in (each.get("containerEdits") for each in (spec, *devices)):
        if isinstance(edits, dict):
            yield from _edit_needs(edits)


def _edit_needs(edits: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    rules = (
        ("1.1.0", "netDevices"),
        ("0.7.0", "intelRdt"),
        ("0.7.0", "additionalGids"),
    )
    yield from ((version, key) for version, key in rules if key in edits)
    for version, key, field in (("0.5.0", "deviceNodes", "hostPath"), ("0.4.0", "mounts", "type")):
        if any(field in entry for entry in edits.get(key, []) if isinstance(entry, dict)):
            yield version, f"{field} of {key}"


def _fields(path: str, value: object, known: Mapping[str, type]) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{path}: got {show(value)}, want an object"
        return
    for key, each in value.items():
        want = known.get(key)
        if want is None:
            yield f"{path}.{key}: unknown field"
        elif not isinstance(each, want) or (isinstance(each, bool) and want is int):
            yield f"{path}.{key}: got {show(each)}, want {want.__name__}"


def _texts(path: str, value: object) -> Iterator[str]:
    if isinstance(value, str) and _BREAK.search(value):
        yield f"{path}: a line break or NUL in {show(value)}"
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _texts(f"{path}.{key}", each)
    elif isinstance(value, list):
        for i, each in enumerate(value):
            yield from _texts(f"{path}[{i}]", each)
