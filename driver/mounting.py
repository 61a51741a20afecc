"""The driver's files as containers get them."""

from driver.hw.libraries import DriverFiles
from driver.model.view import Mount


class Mounts:
    """Made once for the value that the hardware hands out until something changed."""

    def __init__(self) -> None:
        self._made: tuple[DriverFiles | None, tuple[Mount, ...]] = (None, ())

    def of(self, files: DriverFiles) -> tuple[Mount, ...]:
        known, mounts = self._made
        if known is not files:
            mounts = mounts_of(files)
            self._made = (files, mounts)
        return mounts


def mounts_of(files: DriverFiles) -> tuple[Mount, ...]:
    """The driver's files, and the names that its links give them.

    Links are mounted as files of their own: without the toolkit's hook nobody makes a link inside
    the container, and programs look for ``libcuda.so.1``.
    """
    mounts = [Mount(host, container) for host, container in files.mounts]
    by_name = {mount.container_path.rsplit("/", 1)[1]: mount.host_path for mount in mounts}
    for target, link in files.symlinks:
        host = by_name.get(target.rsplit("/", 1)[-1])
        if host is not None:
            mounts.append(Mount(host, link))
            by_name.setdefault(link.rsplit("/", 1)[1], host)
    return tuple(mounts)
