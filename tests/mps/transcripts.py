"""Conversations with a control program, real or stand-in."""

import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.polling import eventually_sync

# What is asked on standard input of one front end, in this order.
CONVERSATION: tuple[tuple[str, ...], ...] = (
    ("get_server_list",),
    ("get_default_active_thread_percentage",),
    ("set_default_active_thread_percentage 50", "get_default_active_thread_percentage"),
    ("set_default_active_thread_percentage 33.3",),
    *((f"set_default_active_thread_percentage {bad}",) for bad in ("150", "0", "-5", "abc", "")),
    ("get_default_device_pinned_mem_limit 0",),
    *(
        (f"set_default_device_pinned_mem_limit 0 {size}", "get_default_device_pinned_mem_limit 0")
        for size in ("1G", "512", "512K", "10MB", "2g", "1.5G", "1536M", "2047M", "1023M", "0M")
    ),
    ("set_default_device_pinned_mem_limit 31 7M", "get_default_device_pinned_mem_limit 31"),
    ("set_default_device_pinned_mem_limit 32 7M", "get_default_device_pinned_mem_limit 32"),
    ("set_default_device_pinned_mem_limit foo 1G", "get_default_device_pinned_mem_limit foo"),
    *(
        (command,)
        for command in (
            "set_device_pinned_mem_limit 1234 0 1G",
            "get_device_pinned_mem_limit 1234 0",
            "set_active_thread_percentage 1234 50",
            "get_active_thread_percentage 1234",
            "get_client_list 1234",
            "get_device_client_list 1234",
            "get_device_client_list",
            "shutdown_server 1234",
            "get_server_status 1234",
            "terminate_client 1 2",
            "ps",
            "ps -p 1234",
            "get_default_client_priority",
            "set_default_client_priority 1",
            "set_default_client_priority 2",
            "help",
            "lspart",
            "bogus",
            "",
            "start_server",
        )
    ),
    ("get_server_list", "get_default_client_priority", "bogus"),
    ("start_server -uid 0",),
)
OPTIONS: tuple[tuple[str, ...], ...] = (
    ("-h",),
    ("--help",),
    ("foo",),
    ("-f", "-bogus"),
    ("-f", "-M"),
    ("-f", "-p", "3"),
    ("-d", "-bogus"),
    ("-f",),  # a daemon runs already
    ("-d",),
)


@dataclass(frozen=True)
class Spoken:
    """What a program said."""

    asked: tuple[str, ...]
    status: int
    out: str
    err: str


class Speaker:
    """One control program with a pipe directory of its own."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.program = program
        self.folder = folder
        self.pipe, self.logs = folder / "pipe", folder / "log"
        for each in (self.pipe, self.logs):
            each.mkdir(parents=True)
        self.environment = {
            **os.environ,
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(self.logs),
            "CUDA_VISIBLE_DEVICES": "GPU-00000000-0000-0000-0000-000000000000",
            "ALIQUOT_STANDIN_SERVER_FAILS": "true",  # as without a GPU
        }

    def run(self, words: Sequence[str] = (), said: str = "", **environment: str) -> Spoken:
        done = subprocess.run(
            [str(self.program), *words],
            input=said,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            env={**self.environment, **environment},
        )
        out = done.stdout.replace(str(self.folder), "FOLDER")
        return Spoken((*words, said), done.returncode, out, done.stderr)

    def ask(self, *lines: str) -> Spoken:
        return self.run(said="\n".join(lines))

    def daemon(self) -> None:
        """As a daemon in the background; returns once it answers."""
        assert self.run(["-d"]).status == 0
        eventually_sync(lambda: self.ask("get_server_list").status == 0, "the daemon answers")

    def quit(self) -> Spoken:
        return self.ask("quit -t 1")

    def conversation(self) -> Iterable[Spoken]:
        """Everything of this module, against one daemon."""
        yield self.ask("get_server_list")  # nobody there
        self.daemon()
        for words in OPTIONS:
            yield self.run(words)
        for lines in CONVERSATION:
            yield self.ask(*lines)

    def log_texts(self) -> list[str]:
        """control.log without times and pids."""
        text = (self.logs / "control.log").read_text()
        lines = [re.sub(r"^\[.*? Control +\d+\] ", "", line) for line in text.splitlines()]
        return [line.replace(str(self.folder), "FOLDER") for line in lines]
