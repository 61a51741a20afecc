"""The time slice of a card. Only ``nvidia-smi compute-policy`` sets it: NVML has no call for it.

It exits 0 on some refusals, so every setting is read back. It is a setting of the whole card for
all processes, needs compute preemption (Pascal and newer, not P4, not MIG devices), and is lost
when the driver is loaded again.
"""

import os
import re
from pathlib import Path

from driver.errors import HardwareError, NotSupportedError
from driver.hw.folders import find_library, program_folders
from driver.hw.program import Printed, run_program
from driver.model.ids import GpuUuid
from driver.model.steps import TimeSliceInterval

PROGRAM = "nvidia-smi"
DEFAULT_TIMEOUT_S = 20.0  # it loads NVML, which takes seconds on a node without persistence mode

_LIBRARY = "libnvidia-ml.so.1"
_ELF = b"\x7fELF"
# "Timeslice: Default", "| 0  timeslice  DEFAULT |": its tables differ between versions.
_VALUE = re.compile(r"time-?slice\W+(default|short|medium|long)\b", re.IGNORECASE)


class TimeSlices:
    """Through the program of the driver root ``root``. All calls block.

    Raises:
        NotSupportedError: the program is not there or has no compute-policy, or the card has no
            compute preemption.
        HardwareError: anything else that keeps the time slice from being read or set.
    """

    def __init__(self, root: Path, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self._root = root
        self._timeout_s = timeout_s

    def read(self, gpu: GpuUuid) -> TimeSliceInterval:
        """What is set now."""
        printed = self._run(gpu, "--list")
        found = _VALUE.search(printed.output)
        if found is None:
            raise NotSupportedError(
                _call(gpu, "--list"), f"printed no time slice, but: {printed.last_words}"
            )
        return TimeSliceInterval[found[1].upper()]

    def set(self, gpu: GpuUuid, interval: TimeSliceInterval) -> None:
        """Set it and read it back."""
        printed = self._run(gpu, "--set-timeslice", str(interval.value))
        found = self.read(gpu)
        if found is not interval:
            raise HardwareError(
                _call(gpu, f"--set-timeslice {interval.value}"),
                f"ended well, but {found.name} is set and {interval.name} was wanted; it said: "
                f"{printed.last_words}",
            )

    def problem(self, gpu: GpuUuid) -> str:
        """Why the card's time slice cannot be set; empty where it can. Changes nothing."""
        try:
            self.read(gpu)
        except HardwareError as error:
            return str(error)
        return ""

    def _run(self, gpu: GpuUuid, *more: str) -> Printed:
        program = self._program(gpu)
        arguments: list[str | Path] = [program, "compute-policy", "-i", gpu, *more]
        printed = run_program(arguments, self._timeout_s, self._environment())
        if printed.status != 0 or "not supported" in printed.output.lower():
            # A program of old answers an unknown command so too; there is no code for it.
            raise NotSupportedError(
                _call(gpu, *more), f"ended with status {printed.status}: {printed.last_words}"
            )
        return printed

    def _program(self, gpu: GpuUuid) -> Path:
        folders = program_folders(self._root)
        for folder in folders:
            if os.access(folder / PROGRAM, os.X_OK):
                return folder / PROGRAM
        looked = ", ".join(map(str, folders)) or "no program folder at all"
        raise NotSupportedError(
            _call(gpu),
            f"there is no {PROGRAM} below driver root {self._root} ({looked}), and nothing else "
            "sets a time slice; install NVIDIA's utilities, set --driver-root, or ask for no "
            "interval",
        )

    def _environment(self) -> dict[str, str]:
        """With the driver root's own NVML: this container may have none, or another version's."""
        env = {**os.environ, "LC_ALL": "C"}
        if self._root != Path(self._root.anchor):
            for library in find_library(self._root, _LIBRARY):
                if _is_elf(library):
                    return env | {"LD_PRELOAD": str(library)}
        return env


def _is_elf(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_ELF)) == _ELF
    except OSError:
        return False


def _call(gpu: GpuUuid, *more: str) -> str:
    return " ".join([PROGRAM, "compute-policy", "-i", gpu, *more])
