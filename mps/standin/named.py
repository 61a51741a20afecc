"""The command lines of protocol 3 that a driver needs, after NVIDIA's documentation of R615."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from mps.standin.model import Holding, Limits, Named, mib, shown

_NAME = re.compile(r"[a-z0-9_]{1,64}")
_FIELDS = {"pinned-memory-limit": 3, "active-thread-percentage": 4, "pipe-directory": 6}


class V3:
    """``folder`` tells the daemon to make or remove a directory below the pipe directory."""

    def __init__(self, held: Holding, pipe: Path, folder: Callable[[Path, bool], None]) -> None:
        self._held = held
        self._pipe = pipe
        self._folder = folder

    def run(self, words: list[str], uid: int) -> list[str]:
        """The lines that the front end prints."""
        del uid  # the stand-in lets everybody do everything here
        command = _COMMANDS.get(tuple(words[:2]))
        if command is None:
            return [f"Unknown command: {' '.join(words)}"]
        plain = [word for word in words[2:] if not word.startswith("--")]
        pairs = [word[2:].partition("=") for word in words[2:] if word.startswith("--")]
        return command(self, plain, {key: text for key, _, text in pairs})

    def _server_create(self, names: list[str], options: Mapping[str, str]) -> list[str]:
        if not names or not _NAME.fullmatch(names[0]):
            return ["Invalid server name"]
        if names[0] in self._held.named:
            return [f"Server '{names[0]}' already exists"]
        self._held.named[names[0]] = Named(
            int(options.get("uid", self._held.uid)), options.get("allowed-devices", "-")
        )
        self._folder(self._pipe / names[0] / "default", True)
        return []

    def _server_delete(self, names: list[str], _: Mapping[str, str]) -> list[str]:
        if self._held.named.pop(names[0] if names else "", None) is None:
            return [f"Server '{' '.join(names)}' not found"]
        self._folder(self._pipe / names[0], False)
        return []

    def _server_list(self, names: list[str], _: Mapping[str, str]) -> list[str]:
        return [
            f"{name},{one.uid},-,Ready,{self._pipe / name},{one.devices},-"
            for name, one in self._held.named.items()
            if not names or name in names
        ]

    def _server_set(self, names: list[str], options: Mapping[str, str]) -> list[str]:
        return self._namespace_set(["default"], {**options, "server": (names or [""])[0]})

    def _server_get(self, names: list[str], _: Mapping[str, str]) -> list[str]:
        row = next(iter(self._server_list(names[:1], {})), "")
        fields = ("name", "uid", "pid", "status", "pipe-directory")
        cells = dict(zip(fields, row.split(","), strict=False))
        found = cells.get(names[1]) if len(names) > 1 else None
        return [found or f"Server '{' '.join(names[:1])}' not found"]

    def _namespace_create(self, names: list[str], options: Mapping[str, str]) -> list[str]:
        server = self._held.named.get(options.get("server", ""))
        if server is None:
            return [f"Server '{options.get('server', '')}' not found"]
        if not names or not _NAME.fullmatch(names[0]):
            return ["Invalid namespace name"]
        if names[0] in server.namespaces:
            return [f"Namespace '{names[0]}' already exists"]
        server.namespaces[names[0]] = Limits()
        self._folder(self._pipe / options["server"] / names[0], True)
        return []

    def _namespace_delete(self, names: list[str], options: Mapping[str, str]) -> list[str]:
        server = self._held.named.get(options.get("server", ""))
        if server is None or server.namespaces.pop(names[0] if names else "", None) is None:
            return [f"Namespace '{' '.join(names)}' not found"]
        self._folder(self._pipe / options["server"] / names[0], False)
        return []

    def _namespace_list(self, names: list[str], options: Mapping[str, str]) -> list[str]:
        return [
            ",".join(self._row(name, server, limits))
            for server, one in self._held.named.items()
            if options.get("server", server) == server
            for name, limits in one.namespaces.items()
            if not names or name in names
        ]

    def _row(self, name: str, server: str, limits: Limits) -> list[str]:
        memory = "-" if limits.memory is None else shown(limits.memory)
        percent = "-" if limits.percent is None else str(limits.percent)
        pipe = str(self._pipe / server / name)
        return [name, server, "Ready", memory, percent, str(limits.priority), pipe]

    def _namespace_set(self, names: list[str], options: Mapping[str, str]) -> list[str]:
        server = self._held.named.get(options.get("server", ""))
        limits = None if server is None or not names else server.namespaces.get(names[0])
        if limits is None:
            return [f"Namespace '{' '.join(names)}' not found"]
        if "pinned-memory-limit" in options:
            limits.memory = mib(options["pinned-memory-limit"])
        percent = options.get("active-thread-percentage", "")
        if percent.isdigit() and 1 <= int(percent) <= 100:
            limits.percent = int(percent)
        return []

    def _namespace_get(self, names: list[str], _: Mapping[str, str]) -> list[str]:
        name, server, field = (*names, "", "", "")[:3]
        rows = self._namespace_list([name], {"server": server})
        if not rows or field not in _FIELDS:
            return [f"Namespace '{name}' not found"]
        return [rows[0].split(",")[_FIELDS[field]]]


_Command = Callable[[V3, list[str], Mapping[str, str]], list[str]]
_COMMANDS: Mapping[tuple[str, ...], _Command] = {
    ("server", "create"): V3._server_create,
    ("server", "delete"): V3._server_delete,
    ("server", "list"): V3._server_list,
    ("server", "set"): V3._server_set,
    ("server", "get"): V3._server_get,
    ("namespace", "create"): V3._namespace_create,
    ("namespace", "delete"): V3._namespace_delete,
    ("namespace", "list"): V3._namespace_list,
    ("namespace", "set"): V3._namespace_set,
    ("namespace", "get"): V3._namespace_get,
}
