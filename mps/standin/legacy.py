"""The commands of protocol 2, answered as 535 to 580 answer them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mps.standin.model import ORDINALS, Client, Holding, Server, mib, shown


@dataclass(frozen=True, slots=True)
class Backend:
    """What the daemon does to processes and its log."""

    log: Callable[[str], None]
    spawn: Callable[[int], int | None]  # uid to the pid of a server
    end: Callable[[int], None]


class Legacy:
    """Runs one command line of a user; ``quit`` is the daemon's."""

    def __init__(self, held: Holding, backend: Backend) -> None:
        self._held = held
        self._back = backend

    def run(self, line: str, uid: int) -> list[str]:
        """The lines that the front end prints."""
        name, *words = line.split() or [""]
        command = _COMMANDS.get(name)
        if command is None or (name == "get_server_status" and self._held.version < 550):
            return [f'Unknown command "{name}"']
        if name.startswith("set_default") and (refused := self._no_right(uid)):
            return [refused]
        return command(self, words)

    def _no_right(self, uid: int) -> str | None:
        if self._held.version < 550 or uid in (0, self._held.uid):
            return None
        return (
            f"Insufficient privileges for UID {uid}. Control deamon settings can only be "
            "modified by the user started it or by the root user."
        )

    def _server(self, words: list[str]) -> Server | str:
        name = words[0] if words else ""
        found = self._held.servers.get(int(name)) if name.isdigit() else None
        return f"Server {name} not found" if found is None else found

    def _get_percent(self, _: list[str]) -> list[str]:
        return [f"{self._held.percent:.1f}"]

    def _set_percent(self, words: list[str]) -> list[str]:
        self._held.percent = self._percent(words, self._held.percent)
        return self._get_percent(words)

    def _percent(self, words: list[str], before: float) -> float:
        try:
            value = float(words[0])
        except (IndexError, ValueError):
            value = 0.0
        if 0.0 < value <= 100.0:
            return value
        self._back.log("Invalid percentage, expected between (0.0, 100.0]")
        return before

    def _get_memory(self, words: list[str]) -> list[str]:
        ordinal = self._ordinal(words)
        if ordinal is None:
            return []
        size = self._held.memory.get(ordinal, 0)
        if not size:
            self._back.log("No default pinned memory limit set for the device!")
            return []
        return [shown(size)]

    def _set_memory(self, words: list[str]) -> list[str]:
        ordinal = self._ordinal(words)
        if ordinal is not None and len(words) > 1:
            self._held.memory[ordinal] = mib(words[1])
        return []

    def _ordinal(self, words: list[str]) -> int | None:
        if words and words[0].isdigit() and int(words[0]) < ORDINALS:
            return int(words[0])
        self._back.log("Invalid device ordinal!")
        return None

    def _get_priority(self, _: list[str]) -> list[str]:
        return [str(self._held.priority)]

    def _set_priority(self, words: list[str]) -> list[str]:
        if not words or words[0] not in ("0", "1"):
            return ["Invalid priority value - must be 0 or 1!"]
        self._held.priority = int(words[0])
        return []

    def _server_list(self, _: list[str]) -> list[str]:
        return [str(pid) for pid in self._held.servers]

    def _start_server(self, words: list[str]) -> list[str]:
        if len(words) < 2 or words[0] != "-uid" or not words[1].isdigit():
            return ["A user id (UID) is required to start a new server"]
        self.server_for(int(words[1]))
        return []

    def server_for(self, uid: int) -> Server | None:
        """The server of a user; it takes the defaults of now. None if it cannot start."""
        for server in self._held.servers.values():
            if server.uid == uid:
                return server
        pid = self._back.spawn(uid)
        if pid is None:
            return None
        self._back.log(f"Starting new server {pid} for user {uid}")
        server = Server(pid, uid, self._held.percent, dict(self._held.memory))
        self._held.servers[pid] = server
        return server

    def _of_server(self, words: list[str]) -> list[str]:
        server = self._server(words)
        return [server] if isinstance(server, str) else []

    def _server_status(self, words: list[str]) -> list[str]:
        server = self._server(words)
        return [server if isinstance(server, str) else server.status]

    def _client_list(self, words: list[str]) -> list[str]:
        server = self._server(words)
        return [server] if isinstance(server, str) else [str(pid) for pid in server.clients]

    def _server_percent(self, words: list[str]) -> list[str]:
        server = self._server(words)
        return [server if isinstance(server, str) else f"{server.percent:.1f}"]

    def _set_server_percent(self, words: list[str]) -> list[str]:
        server = self._server(words)
        if isinstance(server, str):
            return [server]
        server.percent = self._percent(words[1:], server.percent)
        return [f"{server.percent:.1f}"]

    def _server_memory(self, words: list[str]) -> list[str]:
        server = self._server(words)
        if isinstance(server, str):
            return [server]
        size = server.memory.get(int(words[1]) if len(words) > 1 else 0, 0)
        return [shown(size)] if size else []

    def _set_server_memory(self, words: list[str]) -> list[str]:
        server = self._server(words)
        if isinstance(server, str):
            return [server]
        if len(words) > 2 and words[1].isdigit():
            server.memory[int(words[1])] = mib(words[2])
        return []

    def _shutdown(self, words: list[str]) -> list[str]:
        server = self._server(words)
        if isinstance(server, str):
            return [server]
        self._back.end(server.pid)
        return []

    def _terminate(self, words: list[str]) -> list[str]:
        server = self._server(words)
        if isinstance(server, str):
            return [server, f"{server}!", "1"]
        server.clients.pop(int(words[1]), None)
        return ["0"]

    def _devices(self, words: list[str]) -> list[str]:
        if not words:
            clients = [pid for one in self._held.servers.values() for pid in one.clients]
            return [self._held.device, *map(str, clients)] if clients else []
        return self._client_list(words)

    def _ps(self, words: list[str]) -> list[str]:
        if words:
            asked = self._server(words[1:])
            if isinstance(asked, str):
                return [asked, asked, ""]
            servers = [asked]
        else:
            servers = list(self._held.servers.values())
        if not servers:
            return ["Server not found"]
        rows = [(one, server) for server in servers for one in server.clients.values()]
        head = f"{'PID':<10}{'ID':<6}{'SERVER':<10}{'DEVICE':<18}{'NAMESPACE':<13}COMMAND"
        device = self._held.device[:16]
        return [head] + [
            f"{one.pid:<10}{number:<6}{server.pid:<10}{device:<18}{4026531836:<13}{one.command}"
            for number, (one, server) in enumerate(rows)
        ]

    def connect(self, pid: int, uid: int, command: str) -> bool:
        """A client appears, as the CUDA driver of a process would do it."""
        server = self.server_for(uid)
        if server is None:
            return False
        server.clients[pid] = Client(pid, uid, command)
        return True


_COMMANDS: Mapping[str, Callable[[Legacy, list[str]], list[str]]] = {
    "get_default_active_thread_percentage": Legacy._get_percent,
    "set_default_active_thread_percentage": Legacy._set_percent,
    "get_default_device_pinned_mem_limit": Legacy._get_memory,
    "set_default_device_pinned_mem_limit": Legacy._set_memory,
    "get_default_client_priority": Legacy._get_priority,
    "set_default_client_priority": Legacy._set_priority,
    "get_server_list": Legacy._server_list,
    "start_server": Legacy._start_server,
    "get_server_status": Legacy._server_status,
    "get_client_list": Legacy._client_list,
    "get_device_client_list": Legacy._devices,
    "get_active_thread_percentage": Legacy._server_percent,
    "set_active_thread_percentage": Legacy._set_server_percent,
    "get_device_pinned_mem_limit": Legacy._server_memory,
    "set_device_pinned_mem_limit": Legacy._set_server_memory,
    "shutdown_server": Legacy._shutdown,
    "terminate_client": Legacy._terminate,
    "ps": Legacy._ps,
}
