"""A whole DRA driver: eight lamps a node, each an environment variable in its container."""

import asyncio
import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from kubeletplugin.claims import ClaimReader
from kubeletplugin.contract import ClaimRef, DesiredPool, DesiredSlice, Object, PreparedDevice
from kubeletplugin.kube import KubeClient
from kubeletplugin.paths import plugin_paths
from kubeletplugin.plan_publish import Identity
from kubeletplugin.plugin import KubeletPlugin
from kubeletplugin.publisher import Publisher

DRIVER = "lamp.example.com"


class Lamps:
    """The CDI file of a claim is all its state: written whole, the same at every repeat."""

    expected_errors: tuple[type[Exception], ...] = (OSError,)

    def __init__(self, cdi: Path) -> None:
        self.cdi = cdi

    def file(self, uid: str) -> Path:
        return self.cdi / f"{DRIVER}-claim_{uid}.json"

    async def prepare(self, claim: Object) -> Sequence[PreparedDevice]:
        uid = claim["metadata"]["uid"]
        results = claim["status"]["allocation"]["devices"]["results"]
        ours = [(n, r) for n, r in enumerate(results) if r["driver"] == DRIVER]
        devices = [
            {"name": f"{uid}-{n}", "containerEdits": {"env": [f"LAMP_{n}={r['device']}"]}}
            for n, r in ours
        ]
        spec = {"cdiVersion": "0.5.0", "kind": f"{DRIVER}/claim", "devices": devices}
        draft = self.cdi / f".{uid}"
        draft.write_text(json.dumps(spec))
        draft.rename(self.file(uid))
        return [
            PreparedDevice(
                (r["request"].split("/")[0],),
                r["pool"],
                r["device"],
                (f"{DRIVER}/claim={uid}-{n}",),
            )
            for n, r in ours
        ]

    async def unprepare(self, claim: ClaimRef) -> None:
        self.file(claim.uid).unlink(missing_ok=True)

    async def recall(self, claim: ClaimRef) -> Sequence[PreparedDevice] | None:
        return None  # no answer while the API server is away


async def main(node: str, cdi: Path, kubelet_root: Path) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with KubeClient.from_environment(os.environ.get("KUBECONFIG")) as client:
        publisher = Publisher(client, Identity(DRIVER, node))
        lamps = [{"name": f"lamp-{n}", "attributes": {"index": {"int": n}}} for n in range(8)]
        publisher.set_pool(DesiredPool(node, (DesiredSlice("00-lamps", tuple(lamps)),)))
        paths = plugin_paths(DRIVER, kubelet_root=kubelet_root)
        plugin = KubeletPlugin(DRIVER, paths, Lamps(cdi), ClaimReader(client), publisher)
        publishing = asyncio.create_task(publisher.run())
        await plugin.acquire()
        await plugin.serve()
        await stop.wait()
        await plugin.stop()
        publishing.cancel()


if __name__ == "__main__":
    cdi, kubelet = (Path(os.environ[name]) for name in ("CDI_DIR", "KUBELET_ROOT"))
    asyncio.run(main(os.environ["NODE_NAME"], cdi, kubelet))
