"""The demo for real: processes, sockets, embedded API server."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from cli.children import ChildError, Children, until
from cli.demo_claims import wishes
from tests.polling import eventually_sync

DRIVER = "gpu.aliquot.dev"
COMMAND = [sys.executable, "-m", "cli.main", "demo"]


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(folder)}


def demo(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        env=environment(folder),
        check=False,
    )


def changed_demo(folder: Path, code: str) -> "subprocess.CompletedProcess[str]":
    """Python ``code`` that changes something before it runs the demo."""
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment(folder),
        check=False,
    )


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_two_a100_go_the_whole_way_and_nothing_is_left(short_root):
    done = demo(short_root, "--profile", "a100-40gb", "--count", "2")
    assert (done.returncode, done.stderr) == (0, "")
    for said in (
        "2 simulated a100-40gb",
        "serves v1.DRAPlugin",
        "demo-node-gpu.aliquot.dev-00-cards-00",
        "(room on 2 cards: 3 of the demo's 6 claims)",
        "MPS          the pipe directory of the card's daemon",
        "environment  ALIQUOT_GPU_0_UUID=GPU-",
        "/dev/nvidiactl",
        "every claim has the condition Ready",
        "demo-node  NVIDIA A100-SXM4-40GB: 2 cards, 2 held, 0 free",
        "demo/one-card (notebook)",
        "demo/share-a (chat)",
        "journal records: 3 before, 0 now",
        "CDI files: 3 before, 0 now",
        "its sockets are gone",
        "all as it should be",
    ):
        assert said in done.stdout
    assert "\x1b" not in done.stdout  # no terminal, no colours
    assert list(short_root.iterdir()) == []
    assert not any(alive(int(pid)) for pid in re.findall(r"process (\d+)", done.stdout))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_and_its_processes_and_removes_its_folder(short_root, number):
    with subprocess.Popen(
        [*COMMAND, "--count", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(short_root),
    ) as running:
        assert running.stdout is not None
        pids: list[str] = []
        while len(pids) < 2:
            pids += re.findall(r"process (\d+)", running.stdout.readline())
        running.send_signal(number)
        output, errors = running.communicate()
    assert running.returncode == 128 + number
    assert "stopped; cleaning up" in errors
    assert "all as it should be" not in output
    eventually_sync(lambda: not any(alive(int(pid)) for pid in pids), "children are gone")
    assert list(short_root.iterdir()) == []


def processes_of(folder: Path) -> dict[int, str]:
    """Those that name the folder in their command line, control daemons included."""
    found: dict[int, str] = {}
    for each in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            words = (each / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(folder) in words:
                found[int(each.name)] = words
    return found


def test_what_it_started_ends_with_it_even_if_it_is_killed(short_root):
    code = (
        "import asyncio, cli.demo as d, cli.demo_story as s\n"
        "async def rest(self, client):\n"
        "    self.say('resting')\n"
        "    await asyncio.sleep(600)\n"
        "s.Demo._map = rest\n"
        "d.demo(['--profile', 'h100-80gb', '--count', '2'])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(short_root),
    ) as running:
        assert running.stdout is not None
        assert "resting\n" in iter(running.stdout.readline, "")
        there = processes_of(short_root)
        running.kill()
    try:
        wanted = ("testing.apiserver", " mps ", "cli.main node run", "nvidia-cuda-mps-control")
        assert [name for name in wanted if name not in " ".join(there.values())] == []
        eventually_sync(lambda: not processes_of(short_root), f"the end of {there}")
    finally:
        for pid in processes_of(short_root):
            os.kill(pid, signal.SIGKILL)


def test_a_plugin_that_dies_fails_the_demo_with_its_log(short_root):
    """Its socket's path is too long: the temporary folder is short, the driver's is not."""
    code = (
        "import cli.demo as d; d.DEFAULT_DRIVER = 'x' * 90 + '.example.com'; "
        "d.demo(['--count', '1'])"
    )
    done = changed_demo(short_root, code)
    assert done.returncode == 1
    assert "demo failed: process plugin ended by itself, status 1" in done.stderr
    assert "the end of plugin.log:" in done.stderr
    assert "at most 107 are possible" in done.stderr
    assert list(short_root.iterdir()) == []


def test_a_container_that_sees_another_card_than_was_allocated_fails_the_demo(short_root):
    code = (
        "import dataclasses, cli.demo as d, cli.demo_story as s; real = s.resolve; "
        "wrong = ('ALIQUOT_GPU_0_UUID=GPU-of-somebody-else',); "
        "s.resolve = lambda *a: dataclasses.replace(real(*a), env=wrong); "
        "d.demo(['--profile', 't4', '--count', '1'])"
    )
    done = changed_demo(short_root, code)
    assert done.returncode == 1
    assert "pod chat sees {'GPU-of-somebody-else'}" in done.stderr
    assert "all as it should be" not in done.stdout
    assert list(short_root.iterdir()) == []


def test_keep_leaves_logs_and_state_and_names_the_folder(short_root):
    done = demo(short_root, "--profile", "t4", "--count", "1", "--keep")
    assert done.returncode == 0
    (kept,) = short_root.iterdir()
    assert f"kept in {kept}" in done.stdout
    assert {"plugin.log", "api-server.log", "hardware"} <= {path.name for path in kept.iterdir()}
    assert "(room on 1 card: 2 of the demo's 6 claims)" in done.stdout


def test_it_works_without_the_optional_cel_engine(short_root):
    code = (
        "import sys; sys.modules['cel_expr_python'] = None; import cli.demo as d; "
        "d.demo(['--profile', 'l4', '--count', '5'])"
    )
    done = changed_demo(short_root, code)
    assert (done.returncode, done.stderr) == (0, "")
    assert "the CEL engine is not installed" in done.stdout
    assert "one NVIDIA L4, selected by CEL" in done.stdout
    assert "none here have NVLink" in done.stdout
    assert "5 cards, 5 held, 0 free" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--profile", "gtx"], "no profile 'gtx'; known: a30, a100-40gb"),
        (["--count", "0"], "must be 1 to 512"),
        (["--count", "many"], "many"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(aliquot, arguments, said):
    result = aliquot("demo", *arguments)
    assert result.exit_code == 2
    assert said in result.output


def devices(count: int, group: str = ""):
    kind = {"type": {"string": "gpu"}, "productName": {"string": "NVIDIA L4"}}
    linked = {"nvlinkGroup": {"string": group}} if group else {}
    return [{"name": f"gpu-{n}", "attributes": {**kind, **linked}} for n in range(count)]


@pytest.mark.parametrize(("count", "claims"), [(1, 1), (2, 2), (3, 2), (4, 3), (8, 3)])
def test_as_many_claims_are_made_as_fit(count, claims):
    made = wishes(devices(count), DRIVER, cel=True)
    assert len(made) == claims
    assert sum(each.spec["requests"][0]["exactly"]["count"] for each in made) <= count


def test_two_cards_are_linked_where_there_is_nvlink():
    linked = wishes(devices(4, "nvswitch"), DRIVER, cel=True)[1]
    assert linked.spec["constraints"][0]["matchAttribute"] == f"{DRIVER}/nvlinkGroup"
    apart = wishes(devices(4), DRIVER, cel=True)[1]
    assert "constraints" not in apart.spec
    assert "none here have NVLink" in apart.words


def pairs(count: int):
    return [each for n in range(count) for each in devices(2, f"pair-{n}")]


@pytest.mark.parametrize(("count", "linked"), [(1, False), (2, True), (4, True)])
def test_a_linked_pair_is_claimed_only_where_earlier_claims_leave_one(count, linked):
    two = next(
        each
        for each in wishes([*pairs(count), *devices(2)], DRIVER, cel=True)
        if each.pod == "training"
    )
    assert ("constraints" in two.spec) == linked
    assert linked or "may leave no NVLink pair" in two.words


def test_without_a_cel_engine_the_selector_is_a_comparison():
    selected = wishes(devices(4), DRIVER, cel=False)[2]
    (selector,) = selected.spec["requests"][0]["exactly"]["selectors"]
    expression = selector["cel"]["expression"]
    assert expression == f"device.attributes['{DRIVER}'].productName == 'NVIDIA L4'"


async def nothing() -> None:
    return None


async def test_waiting_ends_when_a_child_ends(tmp_path):
    async with Children(tmp_path) as children:
        await children.start("brief", "cli.nothing_of_that_name", [])
        with pytest.raises(ChildError, match="process brief ended by itself, status 1"):
            await until(nothing, children, "anything")
        assert "nothing_of_that_name" in "".join(children.tails())


async def test_waiting_has_an_end(tmp_path):
    with pytest.raises(ChildError, match=r"waited 0\.05 s for a miracle"):
        await until(nothing, Children(tmp_path), "a miracle", limit_s=0.05)


async def test_a_child_that_ignores_sigterm_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("cli.children.STOP_S", 0.1)
    script = tmp_path / "deaf.py"
    script.write_text(
        "import signal, pathlib, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"pathlib.Path({str(tmp_path / 'up')!r}).touch()\n"
        "while True: time.sleep(1)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    children = Children(tmp_path)
    await children.start("deaf", "deaf", [])

    async def up() -> bool:
        return await asyncio.to_thread((tmp_path / "up").exists)

    await until(up, children, "the child")
    assert await children.stop("deaf") == -signal.SIGKILL
