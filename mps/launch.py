"""Becomes the control daemon, after what only the process itself can do.

Run as ``python -I -S launch.py PLAN``, PLAN in JSON (see ``mps.daemon``). It imports nothing of
the package, so that it starts in 15 ms. The pid and the start time stay those of the daemon.
"""

import json
import os
import sys

FAILED = 70  # EX_SOFTWARE: the reason is on standard output, which is the card's control.log

_NEW_MOUNTS = 0x00020000  # CLONE_NEWNS, as the next two from sched.h and sys/mount.h
_BIND, _RECURSIVE, _SLAVE = 0x1000, 0x4000, 0x80000


def _join(groups: list[str]) -> None:
    """Before the program runs, so that whatever it starts is in the group too."""
    for file in groups:
        with open(file, "w", encoding="ascii") as procs:
            procs.write("0")


def _mount_shm(source: str, target: str) -> None:
    """``source`` becomes this process's /dev/shm; nobody else sees that."""
    import ctypes  # noqa: PLC0415 - 10 ms that most starts need not pay

    libc = ctypes.CDLL(None, use_errno=True)
    steps = (
        (libc.unshare, _NEW_MOUNTS),
        (libc.mount, b"none", b"/", None, _RECURSIVE | _SLAVE, None),
        (libc.mount, os.fsencode(source), os.fsencode(target), None, _BIND, None),
    )
    for call, *arguments in steps:
        if call(*arguments) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), target)


def main(plan: dict) -> int:  # type: ignore[type-arg]
    """Returns only if the program was not started."""
    os.closerange(3, 1 << 16)  # an inherited pipe would keep the container's end waiting
    if plan["session"]:
        os.setsid()
    try:
        _join(plan["groups"])
        root = plan["root"]
        if plan["shm"]:
            _mount_shm(plan["shm"], os.path.join(root, "dev/shm"))
        if root != "/":
            os.chroot(root)
            os.chdir("/")
        if os.getppid() != plan["parent"]:  # nobody would know of this daemon
            sys.stdout.write("aliquot: the supervisor ended while this daemon was starting\n")
            return FAILED
        os.execve(plan["command"][0], plan["command"], os.environ)  # noqa: S606
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        sys.stdout.write(f"aliquot: not started: {error.strerror}{where}\n")
    return FAILED


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
