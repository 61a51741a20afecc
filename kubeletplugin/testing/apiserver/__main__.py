"""``python -m kubeletplugin.testing.apiserver --port 0 --kubeconfig-out FILE``."""

import argparse
import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from kubeletplugin.testing.apiserver.server import ApiServer


def kubeconfig(url: str) -> str:
    """JSON, which is YAML."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "embedded", "cluster": {"server": url}}],
            "users": [{"name": "embedded", "user": {}}],
            "contexts": [
                {"name": "embedded", "context": {"cluster": "embedded", "user": "embedded"}}
            ],
            "current-context": "embedded",
        },
        indent=2,
    )


def write_whole(path: Path, text: str) -> None:
    """Whoever waits for the file never sees half of it."""
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    os.replace(part, path)


async def run(options: argparse.Namespace) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    dropped = [feature for feature in options.drop_features.split(",") if feature]
    server = ApiServer(port=options.port, version=options.version, drop_features=dropped)
    async with server:
        if options.kubeconfig_out:
            write_whole(options.kubeconfig_out, kubeconfig(server.url))
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        await stop.wait()


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m kubeletplugin.testing.apiserver")
    made.add_argument("--port", type=int, default=0, help="0 takes a free port")
    made.add_argument("--kubeconfig-out", type=Path, help="written once the server listens")
    made.add_argument("--version", default="v1.37.2", help="what GET /version answers")
    made.add_argument("--drop-features", default="", help="of taints,counters,sharing")
    return made


if __name__ == "__main__":
    asyncio.run(run(parser().parse_args()))
