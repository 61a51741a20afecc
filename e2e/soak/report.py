"""What a soak found, and what of it is wrong."""

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

_PARTS = (
    (re.compile(r"claim \S+/\S+"), "claim …"),
    (re.compile(r"GPU-[0-9a-f-]+|gpu-[0-9a-f]{8}"), "GPU"),
    (re.compile(r"/\S+"), "/…"),
    (re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}"), "UID"),
    (re.compile(r"\d+"), "N"),
)
_LINE = re.compile(r"^\S+ (WARNING|ERROR)\s+(.*)")
_KIND_LENGTH = 88
BUG = re.compile(r"^Traceback|hit a bug", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Row:
    phase: str
    what: str
    found: float
    at_most: float  # more is a leak

    @property
    def bad(self) -> bool:
        return self.found > self.at_most


@dataclass
class Report:
    rows: list[Row] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """What was done, for the reader to judge what the rest is worth."""

    def add(self, phase: str, what: str, found: float, at_most: float = 0) -> None:
        self.rows.append(Row(phase, what, found, at_most))

    @property
    def failed(self) -> bool:
        return any(row.bad for row in self.rows)

    def render(self, kinds: Counter[str]) -> str:
        """The tables: what was done, what was found, errors in the plugin's log by kind."""
        width = max(len(row.what) for row in self.rows)
        lines = [
            "",
            "done: " + ", ".join(f"{n} {what}" for what, n in sorted(self.counts.items())),
        ]
        lines += ["", f"{'phase':10} {'what':{width}} {'found':>9} {'at most':>9}"]
        lines += [
            f"{row.phase:10} {row.what:{width}} {row.found:9g} {row.at_most:9g}"
            f"{'  <-- too many' if row.bad else ''}"
            for row in self.rows
        ]
        lines += ["", "warnings and errors of the plugin, by kind:"]
        lines += [f"{n:6} {kind}" for kind, n in kinds.most_common()] or ["  none"]
        lines += ["", "FAILED" if self.failed else "nothing leaked"]
        return "\n".join(lines)


def kind_of(message: str) -> str:
    """A log line without what is different each time."""
    for pattern, name in _PARTS:
        message = pattern.sub(name, message)
    return message[:_KIND_LENGTH]


def kinds(log: Path) -> Counter[str]:
    """Warnings and errors in a log in text form."""
    found: Counter[str] = Counter()
    with log.open(errors="replace") as lines:
        for line in lines:
            if match := _LINE.match(line):
                found[f"{match[1]} {kind_of(match[2])}"] += 1
    return found


def bugs(log: Path) -> int:
    """How often the plugin met what it did not expect."""
    return len(BUG.findall(log.read_text(errors="replace")))
