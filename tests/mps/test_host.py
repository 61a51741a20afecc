"""What needs the kernel: cgroups, pids, mounts. Parts of it need root."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mps import cgroups, proc
from mps.cgroups import Cgroups, hierarchies
from tests.mps.rig import gpu, spec
from tests.polling import eventually_sync

HYBRID = """\
tmpfs /sys/fs/cgroup tmpfs rw 0 0
cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0
cgroup /elsewhere/pids cgroup rw,pids 0 0
"""


def writable():
    roots = hierarchies(Path("/sys/fs/cgroup"), cgroups.MOUNTS.read_text())
    return bool(roots) and all(os.access(root, os.W_OK) for root in roots)


needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not writable(), reason="needs root and writable cgroups"
)


def test_every_hierarchy_below_the_root_is_used():
    found = hierarchies(Path("/sys/fs/cgroup"), HYBRID)
    assert [path.name for path in found] == ["cpuset", "memory", "unified"]
    v2 = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"
    assert hierarchies(Path("/sys/fs/cgroup"), v2) == (Path("/sys/fs/cgroup"),)
    assert hierarchies(Path("/host/cgroup"), v2) == ()


def test_a_cpuset_group_is_filled_before_it_takes_processes(tmp_path):
    for name, text in (("cpuset.cpus", "0-7\n"), ("cpuset.mems", "0\n")):
        (tmp_path / name).write_text(text)
        for folder in ("aliquot-mps", "aliquot-mps/card"):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / name).write_text("\n")
    (files,) = Cgroups((tmp_path,)).make("card")
    assert files == tmp_path / "aliquot-mps" / "card" / "cgroup.procs"
    assert (files.parent / "cpuset.cpus").read_text() == "0-7\n"
    assert (files.parent / "cpuset.mems").read_text() == "0\n"


def test_a_busy_group_is_left(tmp_path):
    groups = Cgroups((tmp_path,))
    (files,) = groups.make("card")
    files.write_text("1\n2\n")
    assert groups.pids("card") == (1, 2)
    groups.remove("card")
    assert groups.pids("card") == (1, 2)
    files.unlink()
    groups.remove("card")
    groups.remove("card")
    assert groups.pids("card") == ()


@needs_root
def test_a_daemon_is_in_groups_of_its_own_and_with_its_own_shm(rig):
    rig.change(cgroup_root=Path("/sys/fs/cgroup"), private_shm=True)
    with rig.supervisor() as one:
        state = one.ensure(spec())
        group = f"/aliquot-mps/{one._lanes[gpu(0)].keeper._paths.group}"
        lines = Path(f"/proc/{state.pid}/cgroup").read_text().splitlines()
        assert {line.rpartition(":")[2] for line in lines} == {group}
        (state.shm / "seen").write_text("x")
        assert os.listdir(f"/proc/{state.pid}/root/dev/shm") == ["seen"]
        assert not Path("/dev/shm/seen").exists()  # noqa: S108
    with rig.supervisor() as one:
        assert one.cards()[0].pid == state.pid
        one.stop(gpu(0))
        assert rig.processes() == []
    assert not Path(f"/sys/fs/cgroup{group}").exists()
    assert not list(Path("/sys/fs/cgroup").glob(f"*{group}"))


@needs_root
@pytest.mark.parametrize("private_shm", [False, True])
def test_daemons_can_have_another_root_directory(rig, private_shm):
    """As in a pod that has the host's root mounted somewhere."""
    rig.change(driver_root=Path("/proc/self/root"), private_shm=private_shm)
    with rig.supervisor() as one:
        assert one.info().program == f"/proc/self/root{rig.program}"
        state = one.ensure(spec())
        assert state.running
        one.stop(gpu(0))
    assert rig.traces() == []


@needs_root
def test_a_process_that_poses_as_a_daemon_is_not_believed(rig):
    """A tenant can copy the environment and the command line, not join the group."""
    rig.change(cgroup_root=Path("/sys/fs/cgroup"))
    with rig.supervisor() as one:
        state = one.ensure(spec())
        daemon = one._lanes[gpu(0)].keeper._daemon
        environment = {**os.environ, **proc.environment(state.pid)}
        words = [sys.executable, "-c", "input()", "-f"]
        with subprocess.Popen(words, env=environment, stdin=subprocess.PIPE) as poser:
            # Popen returns when exec closes its pipe, which is before /proc shows the environment.
            eventually_sync(lambda: proc.is_ours(poser.pid, daemon.paths.folder), "it poses")
            assert [each.pid for each in daemon.daemons()] == [state.pid]
            poser.communicate(b"\n")
        one.stop(gpu(0))


def test_a_zombie_is_dead():
    pid = os.posix_spawn("/bin/true", ["true"], {})
    start = proc.start_of(pid)
    if start is not None:
        assert proc.Process(pid, start).wait(30)
    assert proc.start_of(pid) is None
    assert proc.found(pid) is None
    os.waitpid(pid, 0)
    assert proc.arguments(pid) == ()
    assert proc.environment(pid) == {}
    assert not proc.is_ours(pid, Path("/x"))
    proc.Process(pid, 0).signal(9)
    assert proc.Process(pid, 0).wait(0)
    proc.sleep_until_ends(pid, 30)


def test_a_process_is_known_by_its_start_too():
    ours = proc.found(os.getpid())
    assert ours is not None
    assert ours.alive
    assert not proc.Process(ours.pid, ours.start + 1).alive
    proc.Process(ours.pid, ours.start + 1).signal(9)  # we live on
    assert not ours.wait(0.01)
    assert abs(proc.wall_clock(ours.start) - Path(f"/proc/{ours.pid}").stat().st_mtime) < 3600


def test_processes_end_without_pidfds_too(monkeypatch):
    """Kernels before 5.3."""

    def missing(_pid):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", missing)
    pid = os.posix_spawn("/bin/sleep", ["sleep", "1000"], {})
    process = proc.found(pid)
    assert process is not None
    assert process.end(30)
    os.waitpid(pid, 0)


def test_a_process_that_ignores_sigterm_is_killed():
    words = ["sh", "-c", "trap '' TERM; echo; while :; do sleep 0.1; done"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as stubborn:
        assert stubborn.stdout is not None
        stubborn.stdout.readline()
        process = proc.found(stubborn.pid)
        assert process is not None
        assert process.end(0.2)
        assert stubborn.wait() == -9
