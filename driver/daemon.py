"""The node plugin put together: what starts after what, and what runs side by side."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from driver.announcing import Announcer
from driver.apply.executor import Executor
from driver.counting import Counts
from driver.forward import Forward
from driver.hw.card import Cards
from driver.hw.health import HealthSource
from driver.hw.mps import MpsCards
from driver.hw.nvml import Nvml
from driver.lanes import Lanes
from driver.listening import Probe, listen
from driver.metrics import Metrics
from driver.node import MPS_BACK, Change, NodeCards
from driver.periodic import every
from driver.plan.cdi import spec_file_prefix
from driver.plan.layout import cluster_features
from driver.plugin import GpuDriver, Identity
from driver.reconciler import Local, Reconciler, Remote
from driver.settings import Settings
from driver.share_service import Shared, ShareService
from driver.state.boot import boot_id
from driver.state.cdi_dir import CdiDir
from driver.state.journal import Journal
from driver.state.known import Known
from driver.status_writer import StatusWriter
from driver.telling import Telling
from driver.watching import CardWatch, PolicyFile, read_policy
from kubeletplugin.claim_cache import ClaimCache
from kubeletplugin.claims import ClaimReader, ClaimSource
from kubeletplugin.events import EventRecorder
from kubeletplugin.kube import ApiError, KubeClient
from kubeletplugin.paths import plugin_paths
from kubeletplugin.plan_publish import Identity as Owner
from kubeletplugin.plugin import KubeletPlugin, Phase
from kubeletplugin.probe import TAINTS, probe, server_version
from kubeletplugin.publisher import Publisher
from mps.client import MpsClient

if TYPE_CHECKING:
    from driver.http import HttpServer

log = logging.getLogger(__name__)

_PROBES_AFTER_S = 0.5  # at the latest: a standby publishes nothing
_PROBE_RETRY_S = 1.0
_TIME_SLICES_S = 600.0  # whether they can be set changes with what is installed
_CHECK_GRACE_S = 2.0  # a check under way is given this long to end by itself


class NodeDaemon:
    """One node's plugin. ``run`` ends when ``stop`` is set, or raises why it cannot serve."""

    def __init__(self, settings: Settings, client: KubeClient, nvml: Nvml) -> None:
        self.settings = settings
        self.stop = asyncio.Event()
        self.metrics = Metrics()
        self.client = client
        self._nvml = nvml
        self._lanes = Lanes()
        self._features: frozenset[str] | None = None
        self._unprobed = ""  # why the features are not known yet
        self._tasks: list[asyncio.Task[Any]] = []
        self._checks: list[asyncio.Task[Any]] = []  # of these, those that end by themselves
        self._watch: CardWatch | None = None
        self._shares: ShareService | None = None
        self._build()

    @property
    def watch(self) -> CardWatch:
        """There once the lock is held."""
        if self._watch is None:
            raise RuntimeError("the node's state is not loaded yet")
        return self._watch

    @property
    def shares(self) -> ShareService:
        """There once the lock is held."""
        if self._shares is None:
            raise RuntimeError("the node's state is not loaded yet")
        return self._shares

    # Parts -------------------------------------------------------------------------------

    def _build(self) -> None:
        """Make the parts that need nothing of the node's state yet."""
        s = self.settings
        policy = read_policy(s.policy_file, s.node_name)
        self._policy_file = PolicyFile(s.policy_file, s.node_name)
        self._identity = Identity(s.driver_name, s.node_name, boot_id(s.root / "proc"))
        mps = MpsCards(MpsClient(s.mps_socket) if s.mps_socket else None)
        self._hardware = Cards(
            self._nvml, s.root, s.host_driver_root, mps, s.cgroup_root, s.nvidia_ctk
        )
        self.cards = NodeCards(
            self._hardware,
            Known(s.known_file),
            policy,
            driver=s.driver_name,
            pool=s.node_name,
            boot_id=self._identity.boot_id,
        )
        self._cdi = CdiDir(s.cdi_dir, spec_file_prefix(s.driver_name))
        self._events = EventRecorder(self.client, s.driver_name, s.node_name)
        self._telling = Telling(self._events, s.node_name)
        self._announcer = Announcer(self._telling, self.metrics)
        self.publisher = Publisher(
            self.client, Owner(s.driver_name, s.node_name), on_dropped=self._on_dropped
        )
        self._status = StatusWriter(self.client, s.driver_name, lambda: self.cards.gpus)
        self._claims: ClaimSource = ClaimReader(
            self.client, lambda: self._lanes.start(self.cards.look_ahead)
        )
        if s.claim_cache:
            cache = ClaimCache(self.client, self._claims)
            self._claims = cache
            self._tasks.append(asyncio.create_task(cache.run(), name="claim cache"))

    def _open_state(self) -> None:
        """Load what an earlier process left; only after the lock, or it would be stale."""
        s = self.settings
        self.journal = Journal.open(s.journal_dir)
        for damaged in self.journal.damaged:
            log.error("record %s cannot be trusted: %s", damaged.path, damaged.problem)
        self.cards.load()
        executor = Executor(self._hardware, self.journal, self._cdi)
        self.driver = GpuDriver(
            self._identity, self.cards, self.journal, self._cdi, executor, self._lanes
        )
        self._watch = CardWatch(
            self.cards,
            self._nvml,
            HealthSource(self._nvml),
            self.journal,
            self._publish,
            self._tell_change,
        )
        parts = Shared(
            self._hardware, self.cards, self.journal, self.driver, self._lanes, self._watch
        )
        self._shares = ShareService(parts, self.client, self._telling, self._status)
        self._status.troubles = self._shares.troubles
        self.driver.on_claim = self._shares.pods.learn

    # Life --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until ``stop`` is set.

        Raises:
            StateError: the plugin's own folders cannot be used.
            OSError: a socket cannot be bound.
        """
        s = self.settings
        paths = plugin_paths(
            s.driver_name,
            kubelet_root=s.kubelet_root,
            plugin_dir=s.plugin_dir,
            registry_dir=s.registry_dir,
            instance=s.instance,
        )
        forward = Forward()
        self.plugin = KubeletPlugin(
            s.driver_name, paths, forward, self._claims, self.publisher, self.metrics
        )
        self._status.idle = self.plugin.idle
        if s.http_address:
            self._spawn(self._answer_probes(listen(s.http_address)), "probes and metrics")
        try:
            if not await self._or_stop(self.plugin.acquire()):
                return
            await asyncio.to_thread(self._open_state)
            forward.driver = self.driver
            await self._start()
            await self._until_stopped()
        finally:
            await self._shut_down()

    async def _start(self) -> None:
        self._spawn(self.publisher.run(), "publisher")
        self._spawn(self._find_features(), "feature probe")
        await self.watch.refresh()
        await self.shares.look()
        for recovery in await asyncio.to_thread(self.driver.recover):
            self._announcer.recovery(recovery)
        self.reconciler = Reconciler(
            Local(self._identity, self.journal, self.cards, self.driver, self._lanes),
            Remote(self.client, self.plugin, self._status, self._telling),
            self.metrics,
        )
        self.reconciler.on_claim = self.shares.pods.learn
        self.reconciler.pods = self.shares.pods.uids
        self.driver.on_prepared = self._status.put
        self.driver.on_released = self._status.drop
        await self.reconciler.rebuild()
        self._publish()
        await self.plugin.serve()
        log.info("serving %s cards of node %s", len(self.cards.gpus), self.settings.node_name)
        self._spawn(self._status.run(), "claim status")
        self._spawn(self.watch.listen(), "card events")
        self._spawn(self.shares.follow(), "MPS supervisor")
        s = self.settings
        before = len(self._tasks)
        self._spawn(every(s.health_interval_s, self.watch.poll, self.stop), "card health")
        self._spawn(every(s.refresh_interval_s, self._look_again, self.stop), "cards")
        self._spawn(every(s.reconcile_interval_s, self._reconcile, self.stop), "reconciler")
        self._spawn(every(s.watchdog_interval_s, self.shares.look_at_use, self.stop), "watchdog")
        self._spawn(self._look_at_time_slices(), "time slices")
        self._checks = self._tasks[before:]

    async def _until_stopped(self) -> None:
        """Until asked to stop, or until something that must run has ended by itself."""
        waits = [
            asyncio.create_task(self.stop.wait()),
            asyncio.create_task(self.plugin.failed.wait()),
        ]
        done, _ = await asyncio.wait([*waits, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in waits:
            task.cancel()
        for task in done - set(waits):
            if error := task.exception():
                raise error
        if self.plugin.failed.is_set():
            raise RuntimeError("another instance has taken the sockets")

    async def _shut_down(self) -> None:
        """Finish what is under way, in the order that keeps answers and records true.

        The plugin's stop frees the lock: by then no check may still write what the next instance
        reads.
        """
        self.stop.set()
        if self._checks:
            await asyncio.wait(self._checks, timeout=_CHECK_GRACE_S)
        if not await self.plugin.stop():
            log.error("work on claims outlasts the stop; the journal covers it")
        if self._watch is not None:
            await asyncio.to_thread(self.journal.flush)
        await self.publisher.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._events.close()
        self._lanes.close()

    async def _or_stop(self, act: Awaitable[None]) -> bool:
        """False: asked to stop before ``act`` was done (a standby that is not needed)."""
        task = asyncio.ensure_future(act)
        stop = asyncio.create_task(self.stop.wait())
        await asyncio.wait([task, stop], return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if task.done():
            await task
            return True
        task.cancel()
        await asyncio.wait([task])
        return False

    def _spawn(self, work: Awaitable[None], name: str) -> None:
        self._tasks.append(asyncio.ensure_future(work))
        self._tasks[-1].set_name(name)

    # Publishing --------------------------------------------------------------------------

    async def _find_features(self) -> None:
        """Ask what the cluster keeps, before anything is published."""
        s = self.settings
        while True:
            try:
                found = await probe(self.client, s.driver_name, s.node_name)
                version = await server_version(self.client)
                await self._take_policy()  # its part by label decides what is published
                break
            except ApiError as error:
                if str(error) != self._unprobed:
                    log.warning("cannot tell yet what the cluster supports: %s", error)
                self._unprobed = str(error)
                await asyncio.sleep(_PROBE_RETRY_S)
        self._unprobed = ""
        self._features = cluster_features(found, *version)
        missed = ({TAINTS} | self.cards.policy.wanted_features) - found
        if missed:
            self._announcer.missing(frozenset(missed))
        self._publish()
        await asyncio.Event().wait()  # the task's end would mean a failure

    def _on_dropped(self, features: frozenset[str]) -> None:
        if self._features is not None and features & self._features:
            self._features -= features
            self._announcer.missing(features)
            self._publish()

    def _publish(self) -> None:
        """Hand over the pool as it should be; the publisher writes only what differs."""
        if self._features is None or self._watch is None or not self._watch.answered:
            return
        held = self.watch.held_devices()
        self.publisher.set_pool(self.cards.pool(held, self._features))
        self.plugin.set_health(self.cards.device_health(held))

    # Rounds ------------------------------------------------------------------------------

    async def _look_again(self) -> None:
        try:
            await self._take_policy()
        except ApiError as error:
            log.info("labels of the node, which the policy may select on, not read: %s", error)
        await self.watch.refresh()

    async def _take_policy(self) -> None:
        """Read labels and file anew; raises ApiError where the labels cannot be read."""
        if not self._policy_file.named:
            return
        try:
            found = await self.client.get(f"/api/v1/nodes/{self.settings.node_name}")
            self._policy_file.set_labels(found["metadata"].get("labels") or {})
        except ApiError as error:
            if error.code != 404:
                raise
        finally:
            policy = await asyncio.to_thread(self._policy_file.changed)
            if policy is not None:
                self.cards.policy = policy
            elif self._policy_file.problem:
                self._telling.node_event("Warning", "PolicyInvalid", self._policy_file.problem)

    async def _look_at_time_slices(self) -> None:
        """After the start, which it would delay, and now and then."""
        if not self.stop.is_set():
            await self.watch.look_at_time_slices()
        await every(_TIME_SLICES_S, self.watch.look_at_time_slices, self.stop)

    async def _reconcile(self) -> None:
        await self.reconciler.round()
        await self.shares.keep_up()
        self._publish()

    def _tell_change(self, change: Change) -> None:
        self._announcer.change(change)
        if self._shares is not None and change.mended == MPS_BACK:
            self._shares.retell(change.gpu)

    # Probes ------------------------------------------------------------------------------

    async def _answer_probes(self, listener: socket.socket) -> None:
        """Until cancelled. What is loaded for it takes 0.1 s, which the first ResourceSlice must
        not wait for; who comes earlier waits in the socket's queue."""
        with listener:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.publisher.published.wait(), _PROBES_AFTER_S)
            server = await asyncio.to_thread(self._http_server, listener)
            server.start()
            log.info("health and metrics on port %s", server.port)
            try:
                await asyncio.Event().wait()  # the task's end would mean a failure
            finally:
                server.stop()

    def _http_server(self, listener: socket.socket) -> "HttpServer":
        from driver.http import Endpoints, HttpServer  # noqa: PLC0415  (see above)

        Counts(
            self.cards, lambda: self.journal if self._watch else None, lambda: self._shares
        ).show(self.metrics)
        return HttpServer(
            listener, Endpoints(lambda: Probe(True), self.ready, self.metrics.render)
        )

    def ready(self) -> Probe:
        """Ready: standing by, or registered with the kubelet and everything published."""
        if self.plugin.phase is Phase.STANDBY:
            return Probe(True, (Phase.STANDBY.value,))
        reasons = []
        if not self.plugin.ready:
            refused = self.plugin.registration.error
            reasons.append(
                refused or f"not registered with the kubelet: {self.plugin.phase.value}"
            )
        status = self.publisher.status
        if status.error or status.generation == 0:
            why = status.error or self._unprobed or "not published yet"
            reasons.append(f"ResourceSlices: {why}")
        if self._watch is not None and self._watch.problem:
            reasons.append(self._watch.problem)
        return Probe(not reasons, tuple(reasons))
