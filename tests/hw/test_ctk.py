import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from driver.errors import HardwareError
from driver.hw.ctk import Toolkit
from driver.hw.libraries import DriverFiles
from tests.hw.toolkit import CUDA, VERSION, common, printing, stand_in, write_program
from tests.polling import eventually_sync

FILES = DriverFiles(VERSION, (), (), ())


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def root(tmp_path):
    """A driver root with a folder for programs."""
    (tmp_path / "usr/bin").mkdir(parents=True)
    return tmp_path


@pytest.fixture
def bin_(root):
    return root / "usr/bin"


def edits(toolkit):
    found = toolkit.edits(FILES)
    assert found is not None
    return found


def calls(root):
    """The arguments of each run of a program that writes them down."""
    log = root / "calls"
    return log.read_text().splitlines() if log.exists() else []


def counted(root, document):
    return f'echo "$*" >> {root}/calls\n{printing(document)}'


def spec(root, **more):
    return {"cdiVersion": "0.5.0", "containerEdits": common(root, **more)}


def test_a_node_without_the_toolkit_has_no_edits(root):
    assert Toolkit(root).edits(FILES) is None


def test_common_edits_are_kept_without_newer_fields(root, bin_):
    stand_in(bin_, root, additionalGids=[44])
    assert Toolkit(root).edits(FILES) == common(root)


def test_device_nodes_of_newer_toolkits_are_kept(root, bin_):
    nodes = [{"path": "/dev/a", "hostPath": f"{root}/dev/a"}, {"path": "/dev/b"}]
    stand_in(bin_, root, deviceNodes=nodes)
    found = edits(Toolkit(root, Path("/host")))
    assert found["deviceNodes"] == [
        {"path": "/dev/a", "hostPath": "/host/dev/a"},
        {"path": "/dev/b"},
    ]


def test_paths_are_those_of_the_host(root, bin_):
    stand_in(bin_, root)
    (mount,) = edits(Toolkit(root, Path("/")))["mounts"]
    assert (mount["hostPath"], mount["containerPath"]) == (CUDA, CUDA)
    (mount,) = edits(Toolkit(root, Path("/run/nvidia/driver")))["mounts"]
    assert mount["hostPath"] == f"/run/nvidia/driver{CUDA}"


def test_the_program_is_asked_for_the_driver_root_and_hooks_that_the_host_has(root, bin_):
    write_program(bin_, counted(root, spec(root)))
    Toolkit(root, Path("/host")).edits(FILES)
    (bin_ / "nvidia-cdi-hook").touch()
    Toolkit(root, Path("/host")).edits(FILES)
    first = f"cdi generate --format=json --mode=management --driver-root={root}"
    assert calls(root) == [
        f"{first} --nvidia-ctk-path=/host/usr/bin/nvidia-ctk",
        f"{first} --nvidia-cdi-hook-path=/host/usr/bin/nvidia-cdi-hook",
    ]


def test_links_are_followed_inside_the_driver_root(root, bin_):
    """An absolute one starts at the root again, as on the host."""
    there = root / "opt/nv"
    there.mkdir(parents=True)
    write_program(there, counted(root, spec(root)))
    (there / "nvidia-cdi-hook").touch()
    for name in ("nvidia-ctk", "nvidia-cdi-hook"):
        (bin_ / name).symlink_to(f"/opt/nv/{name}")
    assert edits(Toolkit(root, Path("/")))
    assert calls(root)[0].endswith("--nvidia-cdi-hook-path=/usr/bin/nvidia-cdi-hook")


def test_a_driver_root_that_is_a_link_is_told_by_its_real_name(root, bin_, tmp_path):
    (tmp_path / "link").symlink_to(root)
    write_program(bin_, counted(root, spec(root)))
    (mount,) = edits(Toolkit(tmp_path / "link"))["mounts"]
    assert mount["hostPath"] == f"{root}{CUDA}"
    assert f"--driver-root={root} " in calls(root)[0]


def test_hooks_that_come_later_are_noticed(root, bin_):
    write_program(bin_, counted(root, spec(root)))
    toolkit = Toolkit(root)
    edits(toolkit)
    (bin_ / "nvidia-cdi-hook").touch()
    edits(toolkit)
    assert [each.rpartition("--nvidia-")[2].partition("=")[0] for each in calls(root)] == [
        "ctk-path",
        "cdi-hook-path",
    ]


def test_it_is_asked_once_by_all_who_want_it(root, bin_):
    write_program(bin_, f"sleep 0.2; {counted(root, spec(root))}")
    toolkit = Toolkit(root)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(toolkit.edits, [FILES] * 4))
    assert all(each is found[0] for each in found)
    assert len(calls(root)) == 1


def test_a_program_apart_from_the_driver_is_at_the_same_path_on_the_host(root, tmp_path):
    apart = tmp_path / "toolkit"
    apart.mkdir()
    driver = root / "driver"
    write_program(apart, counted(root, spec(driver)))
    toolkit = Toolkit(driver, Path("/run/nvidia/driver"), apart / "nvidia-ctk")
    assert toolkit.edits(FILES)
    assert calls(root)[0].endswith(f"--nvidia-ctk-path={apart}/nvidia-ctk")


def test_it_is_asked_again_only_when_something_has_changed(root, bin_):
    program = write_program(bin_, counted(root, spec(root)))
    toolkit = Toolkit(root)
    found = toolkit.edits(FILES)
    assert toolkit.edits(replace(FILES)) is found
    assert len(calls(root)) == 1
    toolkit.edits(replace(FILES, mounts=(("/a", "/a"),)))
    assert len(calls(root)) == 2
    os.utime(program, ns=(1, 1))
    toolkit.edits(replace(FILES, mounts=(("/a", "/a"),)))
    assert len(calls(root)) == 3
    program.unlink()
    assert toolkit.edits(FILES) is None


def test_a_failure_is_not_tried_again_at_each_claim(root, bin_):
    write_program(bin_, f"echo x >> {root}/calls; exit 1")
    clock = Clock()
    toolkit = Toolkit(root, clock=clock)
    for seconds, runs in ((0, 1), (299, 1), (1, 2), (299, 2)):
        clock.now += seconds
        with pytest.raises(HardwareError, match="status 1"):
            toolkit.edits(FILES)
        assert len(calls(root)) == runs
    stand_in(bin_, root)
    assert toolkit.edits(FILES)


def test_edits_for_another_driver_are_refused(root, bin_):
    stand_in(bin_, root)
    with pytest.raises(HardwareError, match=r"no mount of libcuda.so.590.1, though NVML reports"):
        Toolkit(root).edits(replace(FILES, driver_version="590.1"))


@pytest.mark.parametrize(
    ("body", "text"),
    [
        pytest.param("echo first >&2; echo no NVML >&2; exit 3", "status 3: no NVML", id="exit"),
        pytest.param("exit 1", "status 1: no message", id="silent exit"),
        pytest.param(
            r"""echo 'time="2026-11-30T13:59:53Z" level=error msg="no \"x\""' >&2; exit 1""",
            r'status 1: no \\"x\\"$',
            id="log line",
        ),
        pytest.param(
            "head -c 100000 /dev/zero | tr '\\0' '['",
            "printed no JSON",
            id="a hundred thousand levels",
        ),
        pytest.param("echo not json", "printed no JSON", id="no json"),
        pytest.param("true", "printed no JSON", id="nothing"),
        pytest.param("echo '[]'", "without containerEdits", id="a list"),
        pytest.param("echo '{}'", "without containerEdits", id="no edits"),
        pytest.param(
            printing({"containerEdits": {"mounts": [7]}}), r"printed mounts \[7\]", id="odd mount"
        ),
        pytest.param(
            printing({"containerEdits": {"env": {"A": "b"}}}), "a list of str", id="odd variables"
        ),
        pytest.param(
            printing({"containerEdits": {"env": [7] * 100_000}}), r"\[7, 7, .*\]", id="much of it"
        ),
    ],
)
def test_what_the_toolkit_does_wrong_is_said(root, bin_, body, text):
    program = write_program(bin_, body)
    with pytest.raises(HardwareError, match=text) as caught:
        Toolkit(root).edits(FILES)
    assert str(program) in str(caught.value)


def test_a_program_that_cannot_be_run_is_an_error(root, bin_):
    write_program(bin_, "true", mode=0o644)
    with pytest.raises(HardwareError, match="cannot be run"):
        Toolkit(root).edits(FILES)


def test_a_program_that_was_named_and_is_not_there_is_an_error(root):
    with pytest.raises(HardwareError, match=r"/none/nvidia-ctk cdi generate.* cannot be run"):
        Toolkit(root, program=Path("/none/nvidia-ctk")).edits(FILES)


def test_a_toolkit_that_hangs_is_killed_with_its_children(root, bin_):
    write_program(bin_, f"sleep 600 & echo $! > {root}/child; wait")
    with pytest.raises(HardwareError, match="did not end within 2 s"):
        Toolkit(root, timeout_s=2).edits(FILES)
    child = int((root / "child").read_text())
    eventually_sync(lambda: not _runs(child), "the child of the toolkit ended")


def _runs(pid):
    """Whether the process still executes; a zombie that nobody reaped does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
