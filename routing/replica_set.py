"""Connects an API process to all replicas of its engine, and routes each request to one of them.

Callers use it as they would use the client of one engine. Replicas join when they serve the same base model
in the same weights as those that serve already, and leave when they are gone or drain.

A request that a draining replica rejects has not begun there: it is submitted to another one. A request whose
replica dies fails with EngineGone, even if it had no token yet: the dead replica bills at its restart what it
had computed by then, and would bill next to the replica that runs the request again.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import structlog

from engine.client import EngineClient, EngineGone, Generation, RequestRejected
from engine.protocol import AdapterRef, EngineInfo, EngineStats, Submit
from routing.admission import why_left_out
from routing.endpoints import registry_in
from routing.membership import Membership
from routing.pins import PinChange, PinnedAdapters
from routing.reports import report_of
from routing.router import Choice, NoReplica, Reason, Router, RoutingQuery
from routing.served_elsewhere import ServedElsewhere
from routing.warming import KnownAdapters, warm
from telemetry.tasks import cancel, gather_all

__all__ = ["ReplicaSet"]

log = structlog.get_logger(__name__)

_UNKNOWN_START_S = 10.0
"""Seconds after which clients shall try again while no engine is known."""


@dataclass(slots=True)
class _Replica:
    """One endpoint, and the engine that was found there."""

    endpoint: str
    client: EngineClient
    name: str | None = None
    """Its engine's id, once it has joined or begun to; None: it takes no requests."""
    incarnation: str | None = None
    """Of the engine that was looked at last."""
    left_out: str | None = None
    """Why the engine may not join."""
    joining: asyncio.Task[None] | None = None


@dataclass(slots=True)
class _Open:
    """A request that has not ended."""

    request: Submit | None
    """None once it has begun: it cannot be submitted elsewhere any more."""
    choice: Choice
    submitted_at: float
    session: str | None


@dataclass(slots=True)
class RoutingCounts:
    """What was routed since the start."""

    chosen: dict[tuple[str, Reason], int] = field(default_factory=dict)
    """Requests by replica and reason."""
    rerouted: int = 0
    """Requests that a draining replica rejected and another one took."""


class ReplicaSet:
    """Several engines as one. All methods belong to the event loop that called `start`."""

    def __init__(
        self,
        endpoints: Sequence[str],
        name: str,
        *,
        base: str | None = None,
        router: Router | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`endpoints`: all engines, or one registry of engines (`engine.registry`), which is followed.
        `name` appears in the engines' logs. Engines of another base model than `base` are left out; without
        it, those of another than the first that connects. Connects at `start`; no engine need be running
        yet. Raises ValueError without endpoints, when one is named twice, and where keys cannot be used.
        """
        if not endpoints or len(set(endpoints)) < len(endpoints):
            raise ValueError(
                f"engine endpoints {', '.join(endpoints)!r}: name each engine once, at least one"
            )
        self.info: EngineInfo | None = None
        """The identity of one of the engines; None until one first answered. Kept while all are away."""
        self.counts = RoutingCounts()
        self._router = Router() if router is None else router
        self._clock = clock
        self._client_name = name
        self._base = base
        registry = registry_in(endpoints)
        self._membership = None if registry is None else Membership(registry, self._follow)
        self._replicas: list[_Replica] = []
        self.clients: list[EngineClient] = []
        """The connections to the engines, in the order of their endpoints. Changes as engines come and go."""
        for endpoint in endpoints if registry is None else ():
            self._add(endpoint)
        self._by_name: dict[str, _Replica] = {}
        """The replicas that have a name."""
        self._adapters = KnownAdapters()
        self._pins = PinnedAdapters(self._router.placement)
        self._served = ServedElsewhere()
        self._open: dict[str, _Open] = {}
        self._available = asyncio.Event()

    def latest_stats(self) -> list[EngineStats]:
        """Returns the engines' latest statistics; of an engine that is gone, its last."""
        return [client.stats for client in self.clients if client.stats is not None]

    @property
    def ready(self) -> bool:
        """Whether a replica takes requests."""
        return self._available.is_set()

    @property
    def num_serving(self) -> int:
        """Replicas that take requests."""
        return self._router.num_available

    def takes_requests(self) -> dict[str, bool]:
        """Returns, by the name of each engine that answers, whether requests are routed to it: one that is
        connected may still be loading adapters, draining or left out.
        """
        known = [one.info.engine_id for one in self.clients if one.info is not None and one.ready]
        return {name: self._router.view(name) is not None for name in known}

    @property
    def is_starting(self) -> bool:
        """Whether no replica takes requests, and one is about to."""
        may_serve = [one for one in self.clients if one.info is None or one.info.role != "prefill"]
        return not self.ready and any(client.is_starting or client.ready for client in may_serve)

    @property
    def ready_in(self) -> float:
        """Seconds until a replica is likely to take requests again."""
        return min((client.ready_in for client in self.clients), default=_UNKNOWN_START_S)

    @property
    def left_out(self) -> list[str]:
        """Returns why each engine that answers and may not serve here is left out."""
        return [replica.left_out for replica in self._replicas if replica.left_out is not None]

    @property
    def num_open(self) -> int:
        """Generations that have not received their last message."""
        return sum(client.num_open for client in self.clients)

    async def start(self) -> None:
        """Begins to connect to all engines, and keeps reconnecting until `close`."""
        for replica in self._replicas:
            await self._connect(replica)
        if self._membership is not None:
            await self._membership.start()

    async def close(self) -> None:
        """Disconnects. The engines abort what is open; open generations fail with EngineGone."""
        if self._membership is not None:
            await self._membership.close()
        for replica in self._replicas:
            await self._stop_joining(replica)
        await gather_all(*(client.close() for client in self.clients))
        self._available.clear()

    async def wait_ready(self) -> EngineInfo:
        """Waits until a replica takes requests. Has no timeout of its own: use `asyncio.timeout`."""
        await self._available.wait()
        assert self.info is not None
        return self.info

    # Requests ----------------------------------------------------------------------------------------------

    def submit(self, request: Submit, session: str | None = None) -> Generation:
        """Sends a request to the replica that the router chooses. `session` names requests that belong
        together.

        Raises EngineGone when no replica takes requests, RequestRejected when its id is already open here.
        """
        if request.request_id in self._open:
            raise RequestRejected("duplicate", f"request_id {request.request_id!r} is already open")
        replica, choice = self._choose(request, session)
        try:
            generation = replica.client.submit(request)
        except BaseException:
            self._router.ended(choice, self._clock())
            raise
        self._open[request.request_id] = _Open(request, choice, self._clock(), session)
        generation.on_first, generation.on_closed = self._on_first, self._on_closed
        if request.adapter is not None:
            self._adapters.used(request.adapter)
        return generation

    def prefetch(self, adapter: AdapterRef, pinned: bool | None = None) -> None:
        """Asks the adapter's homes to load it before its first request, and to pin or unpin it (`pinned`).

        A hint, as it is to one engine; but replicas that restart get the pins again.
        """
        if pinned is not None:
            self._send_pins(self._pins.set(adapter, pinned))
            return
        for name in self._router.placement.homes(adapter.digest):
            self._by_name[name].client.prefetch(adapter)

    def _choose(self, request: Submit, session: str | None) -> tuple[_Replica, Choice]:
        query = RoutingQuery(
            tenant=request.tenant,
            priority=request.priority,
            adapter=None if request.adapter is None else request.adapter.digest,
            prompt_ids=request.prompt_ids,
            session=session,
        )
        try:
            choice = self._router.choose(query, self._clock())
        except NoReplica:
            raise EngineGone("no engine takes requests", self.ready_in) from None
        if request.adapter is not None:
            for name in choice.preload:
                self._by_name[name].client.prefetch(request.adapter)
        key = (choice.replica, choice.reason)
        self.counts.chosen[key] = self.counts.chosen.get(key, 0) + 1
        return self._by_name[choice.replica], choice

    def _on_first(self, generation: Generation) -> None:
        open_request = self._open.get(generation.request_id)
        if open_request is not None:
            open_request.request = None
            now = self._clock()
            seconds = now - open_request.submitted_at - generation.held_for
            self._router.first_token(open_request.choice, seconds, now)

    def _on_closed(self, generation: Generation) -> None:
        open_request = self._open.pop(generation.request_id, None)
        if open_request is not None:
            self._router.ended(open_request.choice, self._clock())

    def _on_drained(self, replica: _Replica, generation: Generation) -> bool:
        """Submits a request that a draining replica rejected to another one. Returns whether one took it."""
        self._leave(replica)
        open_request = self._open.get(generation.request_id)
        if open_request is None or open_request.request is None:
            return False
        request = open_request.request
        self._router.ended(open_request.choice, self._clock())
        try:
            other, choice = self._choose(request, open_request.session)
        except EngineGone:
            self._open.pop(request.request_id)
            return False
        open_request.choice = choice
        try:
            other.client.resubmit(request, generation)
        except (EngineGone, RequestRejected):
            return False
        self.counts.rerouted += 1
        return True

    # Membership --------------------------------------------------------------------------------------------

    def _add(self, endpoint: str) -> _Replica:
        replica = _Replica(endpoint, EngineClient(endpoint, self._client_name))
        self._replicas.append(replica)
        self.clients.append(replica.client)
        return replica

    async def _connect(self, replica: _Replica) -> None:
        replica.client.follow(
            functools.partial(self._on_changed, replica), functools.partial(self._on_drained, replica)
        )
        await replica.client.start()

    async def _follow(self, endpoints: frozenset[str]) -> None:
        """Connects to engines that are new, and forgets those that are neither listed nor connected."""
        known = {replica.endpoint for replica in self._replicas}
        for endpoint in sorted(endpoints - known):
            await self._connect(self._add(endpoint))
        for replica in [one for one in self._replicas if one.endpoint not in endpoints]:
            client = replica.client
            if client.ready or client.is_starting:
                continue
            await self._stop_joining(replica)
            self._leave(replica)
            self._replicas.remove(replica)
            self.clients.remove(client)
            await client.close()

    # Replicas ----------------------------------------------------------------------------------------------

    def _on_changed(self, replica: _Replica) -> None:
        """Looks at what a client has learned of its engine."""
        client = replica.client
        info, stats = client.info, client.stats
        if not client.ready or info is None:
            replica.incarnation, replica.left_out = None, None
            self._leave(replica)
            return
        if info.incarnation != replica.incarnation:
            self._leave(replica)
            replica.incarnation = info.incarnation
            self._begin_to_join(replica, info)
        if replica.name is not None and stats is not None and stats.incarnation == info.incarnation:
            self._router.report(replica.name, report_of(stats), self._clock())
            if stats.served is not None:
                self._served.report(replica.name, stats.served)
                client.served_elsewhere(self._served.of(replica.name))
            if stats.draining:
                self._leave(replica)

    def _begin_to_join(self, replica: _Replica, info: EngineInfo) -> None:
        if info.role == "prefill":
            return  # other engines have it compute prompts; it takes no requests
        serving = {
            one.client.endpoint: one.client.info
            for one in self._replicas
            if one is not replica and one.name is not None and one.client.info is not None
        }
        reason = why_left_out(info, self._base, serving)
        replica.left_out = reason
        if reason is not None:
            log.error("an engine is left out", endpoint=replica.client.endpoint, reason=reason)
            return
        replica.name = info.engine_id
        self._by_name[info.engine_id] = replica
        if not self._router.num_available:
            self._join(replica, info)
            return
        replica.joining = asyncio.get_running_loop().create_task(
            self._join_warm(replica, info), name=f"join of {info.engine_id}"
        )

    async def _join_warm(self, replica: _Replica, info: EngineInfo) -> None:
        """Lets a replica load the adapters that it will be a home of, then gives it requests."""
        adapters = self._adapters.moving_to(info.engine_id, self._router.placement)
        await warm(replica.client, adapters)
        replica.joining = None
        self._join(replica, info)

    def _join(self, replica: _Replica, info: EngineInfo) -> None:
        now = self._clock()
        self._router.join(info.engine_id, now)
        stats = replica.client.stats
        if stats is not None and stats.incarnation == info.incarnation:  # else it is of the one before
            self._router.report(info.engine_id, report_of(stats), now)
        self.info = info
        self._available.set()
        self._send_pins(self._pins.moved())
        log.info("an engine takes requests", engine=info.engine_id, engines=self._router.num_available)

    def _leave(self, replica: _Replica) -> None:
        """Gives a replica no more requests; those it has go on while it lives."""
        if replica.joining is not None:
            replica.joining.cancel()
            replica.joining = None
        name, replica.name = replica.name, None
        if name is None:
            return
        del self._by_name[name]
        self._router.leave(name)
        self._served.leave(name)
        self._pins.forget(name)
        if not self._router.num_available:
            self._available.clear()
        self._look_again()
        self._send_pins(self._pins.moved())

    def _look_again(self) -> None:
        """Looks at the engines that do not take requests yet: what kept them may have been the one that
        left."""
        for replica in self._replicas:
            info = replica.client.info
            if info is None or not replica.client.ready:
                continue
            if replica.left_out is not None:
                self._begin_to_join(replica, info)
            elif replica.joining is not None and not self._router.num_available:
                replica.joining.cancel()
                replica.joining = None
                self._join(replica, info)

    def _send_pins(self, changes: Iterable[PinChange]) -> None:
        for name, adapter, pinned in changes:
            replica = self._by_name.get(name)
            if replica is not None:
                replica.client.prefetch(adapter, pinned)

    async def _stop_joining(self, replica: _Replica) -> None:
        task, replica.joining = replica.joining, None
        await cancel(task)
