"""How gRPC is set, in a process of its own: it is read once."""

import os
import subprocess
import sys

SCRIPT = """
import asyncio, os, sys
from pathlib import Path
from kubeletplugin.sockets import SocketServer

async def serve():
    server = SocketServer(Path(sys.argv[1]), lambda _: None)
    await server.start()
    await server.stop()

asyncio.run(serve())
print(os.environ["GRPC_EXPERIMENTS"])
"""


def run(short, **more):
    environment = {key: value for key, value in os.environ.items() if key != "GRPC_EXPERIMENTS"}
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, str(short / "s.sock")],
        env=environment | more,
        capture_output=True,
        text=True,
        check=True,
    )


def test_grpc_knows_what_is_turned_off(root):
    ended = run(root)
    assert ended.stdout == "-event_engine_listener\n"
    assert "Unknown experiment" not in ended.stderr


def test_what_the_node_has_set_stays_and_reaches_grpc(root):
    ended = run(root, GRPC_EXPERIMENTS="-no_such_choice")
    assert ended.stdout == "-no_such_choice\n"
    assert "Unknown experiment: no_such_choice" in ended.stderr
