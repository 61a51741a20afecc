import asyncio
import base64
import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from kubeletplugin.lock import InstanceLock
from kubeletplugin.paths import SOCKET_PATH_MAX, plugin_paths, registration_names


def test_two_locks_on_the_same_files_exclude_each_other(tmp_path):
    files = [tmp_path / "a", tmp_path / "b"]
    first, second = InstanceLock(files), InstanceLock(files)
    assert first.try_acquire()
    assert first.try_acquire()  # again is no change
    assert not second.try_acquire()
    first.release()
    assert second.try_acquire()
    second.release()


def test_a_lock_that_gets_only_some_files_gives_them_back(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    holder, greedy, other = InstanceLock([b]), InstanceLock([a, b]), InstanceLock([a])
    assert holder.try_acquire()
    assert not greedy.try_acquire()
    assert not greedy.held
    assert other.try_acquire()
    holder.release()
    other.release()


async def test_waiting_for_the_lock_can_be_cancelled_and_ends_when_it_is_free(tmp_path):
    first, second = InstanceLock([tmp_path / "a"]), InstanceLock([tmp_path / "a"])
    assert first.try_acquire()
    waiter = asyncio.create_task(second.acquire(0.001))
    await asyncio.sleep(0.01)
    waiter.cancel()
    await asyncio.wait([waiter])
    assert not second.held
    first.release()
    await second.acquire(0.001)
    assert second.held
    second.release()


def test_the_kernel_frees_the_lock_of_a_killed_process(tmp_path):
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom kubeletplugin.lock import InstanceLock\n"
        "lock = InstanceLock([Path(sys.argv[1])])\nassert lock.try_acquire()\n"
        "print('held', flush=True)\ntime.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "a")], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        lock = InstanceLock([tmp_path / "a"])
        assert not lock.try_acquire()
        process.kill()
        process.wait()
        assert lock.try_acquire()
        lock.release()


def test_a_deleted_lock_file_is_noticed_and_locked_again(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    lock = InstanceLock([a, b])
    assert lock.try_acquire()
    assert lock.intact()
    b.unlink()
    assert not lock.intact()
    assert lock.retake()
    assert lock.intact()

    b.unlink()
    thief = InstanceLock([b])
    assert thief.try_acquire()
    assert not lock.retake()
    thief.release()
    lock.release()


def test_sockets_stand_in_the_usual_places():
    root = Path("/k")
    paths = plugin_paths("gpu.example.com", kubelet_root=root)
    assert paths.dra_socket == root / "plugins/gpu.example.com/dra.sock"
    assert paths.registration_socket == root / "plugins_registry/gpu.example.com-reg.sock"
    plugin_lock, registry_lock = paths.locks
    assert plugin_lock == root / "plugins/gpu.example.com/dra.lock"
    assert registry_lock.name.startswith(".")  # the kubelet's watcher skips dot files


def test_folders_can_be_given_apart_from_the_kubelets_root():
    paths = plugin_paths("d", plugin_dir=Path("/p"), registry_dir=Path("/r"))
    assert paths.dra_socket == Path("/p/dra.sock")
    assert paths.registration_socket == Path("/r/d-reg.sock")


def test_registration_names_follow_the_go_library():
    driver, uid = "gpu.example.com", "5f0e6f0a-8f1b-4d1c-9a53-0b0f5d1f8a11"

    def hashed(text, size):
        return base64.urlsafe_b64encode(hashlib.sha256(text).digest()[:size]).decode().rstrip("=")

    both = f"{driver}\0{uid}".encode()
    assert registration_names(driver, uid) == (
        f"{driver}-{uid}-reg.sock",
        f"{driver}-{hashed(uid.encode(), 8)}-reg.sock",
        f"dra-{hashed(both, 16)}-reg.sock",
    )


@pytest.mark.parametrize(("spare", "form"), [(0, 0), (-1, 1), (-25, 1), (-26, 2)])
def test_the_best_registration_name_that_fits_is_taken(spare, form):
    driver, uid = "gpu.example.com", "5f0e6f0a-8f1b-4d1c-9a53-0b0f5d1f8a11"
    names = registration_names(driver, uid)
    registry = Path("/" + "x" * (SOCKET_PATH_MAX - 2 - len(names[0]) - spare))
    paths = plugin_paths(driver, plugin_dir=Path("/p"), registry_dir=registry, instance=uid)
    assert paths.registration_socket.name == names[form]


@pytest.mark.parametrize("which", ["plugin_dir", "registry_dir"])
def test_a_path_that_is_too_long_says_by_how_much_and_what_to_shorten(tmp_path, which):
    folders = {"plugin_dir": tmp_path, "registry_dir": tmp_path, which: tmp_path / ("x" * 120)}
    with pytest.raises(ValueError, match=r"has \d+ bytes, at most 107 are possible: choose"):
        plugin_paths("gpu.example.com", **folders)
