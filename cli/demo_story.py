"""What the demo does, step by step, against real processes and sockets."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from cli import classes, demo_claims, drawing
from cli.children import Children, until
from cli.demo_claims import NAMESPACE, Wish
from cli.injected import Injected, NotInjectableError, resolve
from cli.text import plural, shortened, table
from cli.tied import stop_daemons
from kubeletplugin.contract import ClaimRef
from kubeletplugin.kube import KubeClient
from kubeletplugin.testing.allocator import allocate, candidates, release
from kubeletplugin.testing.kubelet import Answer, PluginClient, find_plugin
from mps.standin.install import install

API = "/apis/resource.k8s.io/v1"
CLAIMS = f"{API}/namespaces/{NAMESPACE}/resourceclaims"
NODE = "demo-node"
_WISHES = 6  # claims, where there is room for all
_POLICY = "gpus:\n- select: {all: true}\n  modes: [gpu, mps, mig]\n"
_SHOWN = 16  # cards in lists; a node may have 512


class WrongError(Exception):
    """Something is not as it should be: the demo fails."""


@dataclass
class Demo:
    """One run. ``folder`` is new, private and has a short path."""

    folder: Path
    profile: str
    count: int
    driver: str
    children: Children
    say: Callable[[str], None]
    devices: list[Mapping[str, Any]] = field(default_factory=list)
    wishes: list[Wish] = field(default_factory=list)
    refs: dict[str, ClaimRef] = field(default_factory=dict)  # by the claim's name

    async def run(self) -> None:
        """The whole story.

        Raises:
            WrongError, ChildError, ApiError, AllocationError, TimeoutError: what went wrong.
        """
        await self._start_api()
        kubeconfig = str(self.folder / "kubeconfig")
        async with KubeClient.from_environment(kubeconfig) as client:
            await self._start_supervisor()
            await self._start_plugin(client)
            found = await self._until(self._register, "the plugin's registration")
            said = ", ".join(found.supported)
            self.say(f"registered as the kubelet does: {found.name} serves {said}")
            await self._published(client)
            await self._claim(client)
            async with found as plugin:
                await self._prepare(client, plugin)
                await self._map(client)
                await self._unprepare(client, plugin)
        await self._stop()

    @property
    def kubelet(self) -> Path:
        return self.folder / "kubelet"

    @property
    def cdi(self) -> Path:
        return self.folder / "cdi"

    @property
    def journal(self) -> Path:
        return self.kubelet / "plugins" / self.driver / "claims"

    @property
    def mps_socket(self) -> Path:
        return self.folder / "mps" / "supervisor.sock"

    # Start -------------------------------------------------------------------------------

    async def _start_api(self) -> None:
        self._title("Start")
        kubeconfig = self.folder / "kubeconfig"
        arguments = ["--port", "0", "--kubeconfig-out", str(kubeconfig)]
        pid = await self.children.start("api-server", "kubeletplugin.testing.apiserver", arguments)
        await self._until(_now(kubeconfig.exists), "the API server")
        self.say(f"embedded API server, process {pid}")

    async def _start_supervisor(self) -> None:
        """With a stand-in of NVIDIA's control program, which needs a card to be of use."""
        program = await asyncio.to_thread(install, self.folder / "bin")
        arguments = [
            *(
                "--run-dir",
                str(self.folder / "mps"),
                "--state-dir",
                str(self.folder / "mps-state"),
            ),
            *("--control-program", str(program), "--cgroup-root", "none", "--host-shm"),
        ]
        pid = await self.children.start("mps-supervisor", "mps", arguments, self.mps_socket)
        await self._until(_now(self.mps_socket.exists), "the MPS supervisor")
        self.say(f"MPS supervisor, process {pid}, with a stand-in of {program.name}")

    async def stop_daemons(self) -> None:
        """Control daemons outlive their supervisor, so a demo that failed ends them here."""
        await asyncio.to_thread(stop_daemons, self.mps_socket)

    async def _start_plugin(self, client: KubeClient) -> None:
        """The Node comes first: ResourceSlices belong to it."""
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
        await client.create("/api/v1/nodes", node)
        policy = self.folder / "policy.yaml"
        policy.write_text(_POLICY)
        arguments = [
            *("node", "run", "--node-name", NODE, "--driver-name", self.driver),
            *("--simulate", f"{self.profile}:{self.count}"),
            *("--simulate-root", str(self.folder / "hardware")),
            *("--kubeconfig", str(self.folder / "kubeconfig")),
            *("--kubelet-root", str(self.kubelet), "--cdi-dir", str(self.cdi)),
            *("--mps-socket", str(self.mps_socket), "--config", str(policy)),
            *("--http-address", ""),
        ]
        pid = await self.children.start("plugin", "cli.main", arguments)
        self.say(
            f"plugin of {NODE}, process {pid}, {self.count} simulated {self.profile}, "
            f"sockets in {self.kubelet}"
        )

    def _wholes(self) -> list[Mapping[str, Any]]:
        return [each for each in self.devices if drawing.attribute(each, "type") == "gpu"]

    async def _register(self) -> PluginClient | None:
        """A short while, then the caller looks whether the plugin is still there."""
        with contextlib.suppress(TimeoutError):
            registry = self.kubelet / "plugins_registry"
            return await find_plugin(registry, self.driver, timeout_s=3)
        return None

    async def _published(self, client: KubeClient) -> None:
        self._title("Publish")

        async def look() -> list[Mapping[str, Any]]:
            slices, _ = await client.list_pages(f"{API}/resourceslices")
            return [found.device for found in candidates(slices)]

        self.devices = await self._until(look, "the ResourceSlices")
        slices, _ = await client.list_pages(f"{API}/resourceslices")
        names = ", ".join(found["metadata"]["name"] for found in slices)
        self.say(f"{plural(len(slices), 'ResourceSlice')} ({names}):")
        rows = [_published_row(device) for device in self._wholes()]
        lines = table(("DEVICE", "PRODUCT", "MEMORY", "PCI", "NUMA", "NVLINK"), rows)
        for line in shortened(lines, _SHOWN + 1, "device"):
            self.say(line)
        kinds = Counter(drawing.attribute(device, "type") for device in self.devices)
        self.say(f"beside them {kinds['mps']} to share, {kinds['mig']} possible partitions")
        self._demand(
            kinds["gpu"] == kinds["mps"] == self.count,
            f"{self.count} whole and shared cards were wanted, published are {dict(kinds)}",
        )

    # Claims ------------------------------------------------------------------------------

    async def _claim(self, client: KubeClient) -> None:
        self._title("Claim and allocate")
        cel = find_spec("cel_expr_python") is not None
        expression = (classes.whole_card_selector if cel else classes.plain_selector)(self.driver)
        expressions = {
            demo_claims.CLASS: expression,
            demo_claims.SHARES: classes.type_selector(self.driver, "mps"),
            demo_claims.PARTITIONS: classes.type_selector(self.driver, "mig"),
        }
        for name, each in expressions.items():
            await client.create(
                f"{API}/deviceclasses", classes.device_class(self.driver, each, name=name)
            )
            self.say(f"DeviceClass {name}: {each}")
        if not cel:
            self.say("(the CEL engine is not installed: selectors are comparisons only;")
            self.say(' `pip install "aliquot[cel]"` adds it)')
        self.wishes = demo_claims.wishes(self.devices, self.driver, cel)
        if len(self.wishes) < _WISHES:
            room = plural(self.count, "card")
            self.say(f"(room on {room}: {len(self.wishes)} of the demo's {_WISHES} claims)")
        for wish in self.wishes:
            await self._allocate(client, wish)

    async def _allocate(self, client: KubeClient, wish: Wish) -> None:
        await client.create(CLAIMS, wish.claim_object())
        pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
        pod = await client.create(pods, wish.pod_object(NODE))
        claim = await allocate(client, NAMESPACE, wish.claim, pod, NODE)
        self.refs[wish.claim] = ClaimRef(NAMESPACE, wish.claim, claim["metadata"]["uid"])
        got = ", ".join(_allocated(claim))
        self.say(f"{click.style(wish.claim, bold=True)}: {wish.words} → {got}")

    # Prepare -----------------------------------------------------------------------------

    async def _prepare(self, client: KubeClient, plugin: PluginClient) -> None:
        self._title("Prepare: what each container gets")
        answers = await plugin.prepare(self.refs.values())
        again = await plugin.prepare(self.refs.values())
        self._demand(answers == again, "a repeated prepare answered other devices")
        for wish in self.wishes:
            claim = await client.get(f"{CLAIMS}/{wish.claim}")
            self._show(wish, claim, answers[self.refs[wish.claim].uid])
        await self._until(lambda: self._all_ready(client), "the condition Ready of the claims")
        self.say("every claim has the condition Ready in its status.devices")

    def _show(self, wish: Wish, claim: Mapping[str, Any], answer: Answer) -> None:
        self._demand(not answer.error, f"claim {wish.claim} was not prepared: {answer.error}")
        try:
            got = resolve(self.cdi, answer.cdi_device_ids)
        except NotInjectableError as error:
            raise WrongError(str(error)) from error
        self.say(f"container main of pod {click.style(wish.pod, bold=True)}, claim {wish.claim}:")
        lines = [*_wrapped("devices", [path for path, _ in got.nodes])]
        own = [path for path in got.mounts if path.startswith(str(self.folder / "mps"))]
        lines += _wrapped("files", [f"{len(got.mounts) - len(own)} of the driver, read-only"])
        lines += _wrapped("MPS", ["the pipe directory of the card's daemon"] if own else [])
        lines += _wrapped("environment", got.env)
        for line in lines:
            self.say(f"  {line}")
        self._check_injected(wish, claim, got)

    def _check_injected(self, wish: Wish, claim: Mapping[str, Any], got: Injected) -> None:
        by_name = {str(device["name"]): device for device in self.devices}
        uuids = {drawing.attribute(by_name[name], "uuid") for name in _allocated(claim)} - {""}
        told = {
            value for name, _, value in (entry.partition("=") for entry in got.env)
            if name.endswith("_UUID") and not value.startswith("MIG-")
        }  # fmt: skip
        self._demand(told == uuids, f"pod {wish.pod} sees {told}, allocated are {uuids}")
        cards = [path for path, _ in got.nodes if path.removeprefix("/dev/nvidia").isdigit()]
        wanted = len(_allocated(claim))
        self._demand(
            len(cards) == wanted, f"pod {wish.pod} has the nodes {cards} for {wanted} devices"
        )
        # Nodes of partitions' capabilities are made by the runtime where they do not exist.
        missing = [
            host for path, host in got.nodes if "-caps/" not in path and not Path(host).exists()
        ]
        self._demand(not missing, f"pod {wish.pod}: no device node {missing} on the host")

    async def _all_ready(self, client: KubeClient) -> bool:
        claims, _ = await client.list_pages(CLAIMS)
        return all(
            _ready(entry) for claim in claims for entry in claim["status"].get("devices") or [{}]
        )

    # Map and end -------------------------------------------------------------------------

    async def _map(self, client: KubeClient) -> None:
        self._title("Map of the cards")
        slices, _ = await client.list_pages(f"{API}/resourceslices")
        claims, _ = await client.list_pages(f"{API}/resourceclaims")
        found = drawing.cards(slices, claims, self.driver)
        for line in drawing.draw(found):
            self.say(line)
        held = sum(len(card.holders) + len(card.shares) for card in found)
        held += sum(len(part.holders) for card in found for part in card.parts)
        wanted = sum(len(_allocated(claim)) for claim in claims)
        self._demand(held == wanted, f"the map shows {held} holders, {wanted} are allocated")

    async def _unprepare(self, client: KubeClient, plugin: PluginClient) -> None:
        self._title("Unprepare: nothing is left")
        before = _names(self.journal, "*.json"), _names(self.cdi, "*.json")
        errors = await plugin.unprepare(self.refs.values())
        for wish in self.wishes:
            error = errors[self.refs[wish.claim].uid]
            self._demand(not error, f"claim {wish.claim} was not unprepared: {error}")
            await client.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/{wish.pod}")
            await release(client, NAMESPACE, wish.claim)
            await client.delete(f"{CLAIMS}/{wish.claim}")
        after = _names(self.journal, "*.json"), _names(self.cdi, "*.json")
        for what, old, new in zip(("journal records", "CDI files"), before, after, strict=True):
            self.say(f"{what}: {len(old)} before, {len(new)} now")
            self._demand(not new, f"{what} are left: {', '.join(new)}")
            self._demand(len(old) == len(self.refs), f"{len(old)} {what} for {len(self.refs)}")

    async def _stop(self) -> None:
        status = await self.children.stop("plugin")
        self._demand(status == 0, f"the plugin ended with status {status}, 0 was wanted")
        left = [str(path) for path in sorted(self.kubelet.rglob("*.sock"))]
        self._demand(not left, f"sockets are left: {', '.join(left)}")
        self.say("the plugin stopped on SIGTERM with status 0, its sockets are gone")

    # Helpers -----------------------------------------------------------------------------

    def _title(self, text: str) -> None:
        self.say("")
        self.say(click.style(text, bold=True, underline=True))

    def _demand(self, right: bool, otherwise: str) -> None:
        if not right:
            raise WrongError(otherwise)

    async def _until(self, find: Callable[[], Awaitable[Any]], what: str) -> Any:
        return await until(find, self.children, what)


def _now(check: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def find() -> bool:
        return await asyncio.to_thread(check)

    return find


def _names(folder: Path, pattern: str) -> list[str]:
    return sorted(path.name for path in folder.glob(pattern))


def _allocated(claim: Mapping[str, Any]) -> list[str]:
    results = claim["status"]["allocation"]["devices"]["results"]
    return [str(result["device"]) for result in results]


def _ready(entry: Mapping[str, Any]) -> bool:
    return any(
        condition["type"] == "Ready" and condition["status"] == "True"
        for condition in entry.get("conditions") or ()
    )


def _published_row(device: Mapping[str, Any]) -> Sequence[str]:
    memory = device["capacity"]["memory"]["value"]
    names = ("resource.kubernetes.io/pciBusID", "resource.kubernetes.io/numaNode", "nvlinkGroup")
    told = (drawing.attribute(device, name) for name in names)
    return (device["name"], drawing.attribute(device, "productName"), memory, *told)


def _wrapped(label: str, values: Sequence[str]) -> list[str]:
    """One value a line for many, the label before the first."""
    if label == "devices":
        values = [" ".join(values)]
    return [f"{label if i == 0 else '':12} {value}" for i, value in enumerate(values)]
