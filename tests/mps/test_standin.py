"""What the stand-in keeps: servers, clients, namespaces. Its words are compared elsewhere."""

import pytest

from mps.standin import knobs
from mps.standin.install import set_knobs
from mps.standin.legacy import Backend, Legacy
from mps.standin.model import Holding, mib, shown
from mps.standin.named import V3

DEVICE = "GPU-31dc0ed3-1111-2222-3333-444455556666"


class World:
    """A daemon's state without a daemon."""

    def __init__(self, tmp_path, version=580, spawned=(100, 101)):
        self.logged: list[str] = []
        self.ended: list[int] = []
        self.folders: list[tuple[str, bool]] = []
        pids = iter(spawned)
        self.held = Holding(version, DEVICE, 0)
        backend = Backend(self.logged.append, lambda _: next(pids, None), self.ended.append)
        self.legacy = Legacy(self.held, backend)
        self.named = V3(
            self.held, tmp_path, lambda path, there: self.folders.append((path.name, there))
        )

    def ask(self, line, uid=0):
        return self.legacy.run(line, uid)

    def call(self, line):
        return self.named.run(line.split(), 0)


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_a_client_starts_a_server_with_the_defaults_of_now(world):
    world.ask("set_default_active_thread_percentage 25")
    world.ask("set_default_device_pinned_mem_limit 0 1536M")
    assert world.legacy.connect(4711, 0, "python train.py")
    world.ask("set_default_active_thread_percentage 90")
    assert world.ask("get_server_list") == ["100"]
    assert world.ask("get_server_status 100") == ["ACTIVE"]
    assert world.ask("get_client_list 100") == ["4711"]
    assert world.ask("get_device_client_list") == [DEVICE, "4711"]
    assert world.ask("get_device_client_list 100") == ["4711"]
    assert world.ask("get_active_thread_percentage 100") == ["25.0"]
    assert world.ask("get_device_pinned_mem_limit 100 0") == ["1G"]
    assert world.ask("get_device_pinned_mem_limit 100 1") == []
    head, row = world.ask("ps")
    assert head.split() == ["PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND"]
    assert row.split() == ["4711", "0", "100", DEVICE[:16], "4026531836", "python", "train.py"]
    assert world.ask("ps -p 100") == [head, row]


def test_a_servers_own_limits_can_be_changed(world):
    world.ask("start_server -uid 0")
    assert world.ask("set_active_thread_percentage 100 50") == ["50.0"]
    assert world.ask("set_active_thread_percentage 100 500") == ["50.0"]
    assert world.ask("set_device_pinned_mem_limit 100 0 2G") == []
    assert world.ask("get_device_pinned_mem_limit 100 0") == ["2G"]


def test_clients_and_servers_can_be_ended(world):
    world.legacy.connect(4711, 0, "x")
    assert world.ask("terminate_client 100 4711") == ["0"]
    assert world.ask("get_client_list 100") == []
    assert world.ask("shutdown_server 100") == []
    assert world.ended == [100]


def test_each_user_has_a_server_and_one_that_cannot_start_has_no_clients(tmp_path):
    world = World(tmp_path, spawned=(100,))
    assert world.legacy.connect(1, 1000, "x")
    assert world.legacy.connect(2, 1000, "y")
    assert world.ask("get_client_list 100") == ["1", "2"]
    assert not world.legacy.connect(3, 2000, "z")


@pytest.mark.parametrize(("version", "refused"), [(535, False), (550, True)])
def test_up_to_535_any_user_may_change_the_defaults(tmp_path, version, refused):
    world = World(tmp_path, version)
    answer = world.ask("set_default_active_thread_percentage 90", uid=1000)
    assert answer[0].startswith("Insufficient privileges for UID 1000.") is refused
    assert world.held.percent == (100.0 if refused else 90.0)


def test_namespaces_have_limits_and_directories(world):
    assert world.call(f"server create card --allowed-devices={DEVICE}") == []
    assert world.call("server create card") == ["Server 'card' already exists"]
    assert world.call("server create A") == ["Invalid server name"]
    assert world.call("server set card --pinned-memory-limit=8G") == []
    assert world.call("server get card status") == ["Ready"]
    assert world.call("server get other status") == ["Server 'other' not found"]
    assert world.call("namespace create a_0 --server=card") == []
    assert world.call("namespace create a_0 --server=card") == ["Namespace 'a_0' already exists"]
    assert world.call("namespace create a-0 --server=card") == ["Invalid namespace name"]
    assert world.call("namespace create a_0 --server=x") == ["Server 'x' not found"]
    limits = "--pinned-memory-limit=512M --active-thread-percentage=25"
    assert world.call(f"namespace set a_0 --server=card {limits}") == []
    assert world.call("namespace set b --server=card") == ["Namespace 'b' not found"]
    assert world.call("namespace get a_0 card pinned-memory-limit") == ["512M"]
    assert world.call("namespace get a_0 card nonsense") == ["Namespace 'a_0' not found"]
    rows = world.call("namespace list --server=card --format=csv,noheader")
    assert [row.split(",")[:5] for row in rows] == [
        ["default", "card", "Ready", "8G", "-"],
        ["a_0", "card", "Ready", "512M", "25"],
    ]
    assert world.call("namespace delete a_0 --server=card --force") == []
    assert world.call("namespace delete a_0 --server=card") == ["Namespace 'a_0' not found"]
    assert world.call("server list")[0].startswith("card,0,-,Ready,")
    assert world.call("server delete card") == []
    assert world.call("server delete card") == ["Server 'card' not found"]
    assert world.call("server fly") == ["Unknown command: server fly"]
    assert world.folders == [("default", True), ("a_0", True), ("a_0", False), ("card", False)]


@pytest.mark.parametrize(
    ("text", "size"),
    [("1G", 1024), ("2g", 2048), ("512", 512), ("512K", 512), ("1.5G", 1), ("G", 0), ("", 0)],
)
def test_sizes_are_read_as_the_program_reads_them(text, size):
    assert mib(text) == size


def test_sizes_are_shown_cut_down():
    assert [shown(size) for size in (1, 1023, 1024, 2047)] == ["1M", "1023M", "1G", "1G"]


def test_knobs_come_from_the_environment_and_the_file_wins(tmp_path, monkeypatch):
    program = tmp_path / "program"
    monkeypatch.setenv("ALIQUOT_STANDIN_HANG", "front")
    monkeypatch.setenv("ALIQUOT_STANDIN_EXITS", "3")
    monkeypatch.setenv("ALIQUOT_STANDIN_IGNORES", '["set"]')
    assert knobs.read(program) == knobs.Knobs(hang="front", exits=3, ignores=("set",))
    set_knobs(program, hang="start")
    assert knobs.read(program).hang == "start"
