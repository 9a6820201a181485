"""Runs the engine process's main loop: takes messages in, runs steps, and hands their results to the router.

The loop itself waits only for work: network and Redis have threads of their own. `EngineCore` plans and runs
steps; `ResponseRouter` says in which order results are counted, sent and journaled.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog
import zmq

from engine.core import EngineCore
from engine.journal.meter import Meter
from engine.observation import RequestObserver
from engine.protocol import (
    Abort,
    AskSpooled,
    DrainSeen,
    EngineInfo,
    EngineStats,
    EngineView,
    Inspect,
    Outputs,
    Prefetch,
    RejectCode,
    Rejected,
    ServedElsewhere,
    Submit,
    UsageEvent,
)
from engine.response_router import ResponseRouter
from engine.transport.curve import ServerKeys
from engine.transport.server_socket import (
    ClientGone,
    ClientStalled,
    Delivery,
    DrainAnnounced,
    FromClient,
    Transport,
)

log = structlog.get_logger(__name__)

STATS_INTERVAL = 0.25
"""Seconds between readings of the core's gauges: half the heartbeat's interval."""
VIEW_INTERVAL = 0.25
"""Seconds for which a view is reused for other clients."""
IDLE_WAIT = 1.0
QUIET_AFTER = 0.02
"""Seconds without a message or work."""
ABORT_GRACE = 5.0
"""Seconds that aborted requests have to end when a drain runs out of time."""
DRAIN_SEEN_SECONDS = 2.0
"""For clients to say that they have heard of a drain. Those of older releases do not say it."""
FLUSH_SECONDS = 2.0
"""For the network, at the very end."""
STALL_SECONDS = 120.0
"""A step that takes longer hangs: the process ends itself, and the supervisor starts another."""
STALL_EXIT_CODE = 70
FAILED_SECONDS = 5.0
"""For the step loop to notice that another thread has failed."""


@dataclass(frozen=True, slots=True)
class _AdapterLoaded:
    slot: int
    digest: str
    error: str | None


@dataclass(frozen=True, slots=True)
class _Failed:
    error: Exception


@dataclass(frozen=True, slots=True)
class _Wake:
    """Wakes the loop to look at its flags."""


def _end_process(error: Exception) -> None:
    log.critical("the step loop does not end; the engine ends itself", reason=str(error))
    os._exit(STALL_EXIT_CODE)  # the in-flight table has the bill


class EngineServer:
    """Listens as soon as it exists, and serves once given a core.

    Construction bills what the last incarnation left in flight, before any request can be accepted. Always
    `close` it.
    """

    def __init__(
        self,
        *,
        endpoint: str,
        redis_url: str,
        state_dir: Path,
        engine_id: str,
        drain_seconds: float,
        keys: ServerKeys | None = None,
        observers: Sequence[RequestObserver] = (),
    ) -> None:
        """`state_dir` is this engine's alone: in-flight table and spool. With `keys`, clients need one of
        these.

        Raises: OSError for the files, JournalError when leftovers cannot be written anywhere, zmq.ZMQError
        for the endpoint.
        """
        self.incarnation = uuid.uuid4().hex
        self._drain_seconds = drain_seconds
        self._observers = observers
        self._inbox: queue.SimpleQueue[Delivery | _AdapterLoaded | _Failed | _Wake] = queue.SimpleQueue()
        self.engine_id = engine_id
        self._stats: EngineStats | None = None
        self._stats_at = 0.0
        self._view: EngineView | None = None
        self._view_at = 0.0
        self._view_clients: set[bytes] = set()
        """Clients that have requested a view and not been answered."""
        self._step_began: float | None = None
        self._last_resort: threading.Timer | None = None
        self._num_refused = 0
        self._closing: list[Callable[[], None]] = []
        self._num_stops = 0
        self._not_aware: set[bytes] | None = None
        """Clients that have not said that they know of the drain; None until it was announced to them."""
        self._meter = Meter(
            state_dir=state_dir,
            redis_url=redis_url,
            engine_id=engine_id,
            incarnation=self.incarnation,
            on_settled=lambda receipts: self._router.send_final_messages(receipts),
            on_failed=self.fail,
            on_ended=self._note_ended if observers else None,
        )
        try:
            self._transport = Transport(endpoint, self._inbox.put, self._heartbeat, keys)
        except zmq.ZMQError:
            self._meter.close()
            raise
        self._router = ResponseRouter(self._transport, self._meter)
        self.endpoint = self._transport.endpoint
        """The endpoint as bound."""

    # Called from other threads ----------------------------------------------------------------------------

    def adapter_loaded(self, slot: int, digest: str, error: str | None) -> None:
        """Reports a load, from the adapter loader's thread, to the core before its next step."""
        self._inbox.put(_AdapterLoaded(slot, digest, error))

    def wake(self) -> None:
        """Wakes the loop, from any thread, because the core has work."""
        self._inbox.put(_Wake())

    def at_close(self, close: Callable[[], None]) -> None:
        """Calls `close` when serving has ended, before files and socket are closed."""
        self._closing.append(close)

    def status(self) -> EngineStats | None:
        """Returns the latest gauges and counters; None before serving. Safe in any thread."""
        return None if self._stats is None else self._finish_stats(self._stats)

    def fail(self, error: Exception) -> None:
        """Ends serving with an error of another thread: `serve` raises it. If the step loop hangs, the
        process ends itself soon.
        """
        self._inbox.put(_Failed(error))
        self._last_resort = threading.Timer(FAILED_SECONDS, _end_process, (error,))
        self._last_resort.daemon = True
        self._last_resort.start()

    def stop(self) -> None:
        """Drains: rejects new requests and finishes running ones within `drain_seconds`. A second call aborts
        them.

        Safe in a signal handler.
        """
        self._num_stops += 1
        self._inbox.put(_Wake())

    def close(self) -> None:
        """Writes out the journal, sends what is queued, and closes files and socket."""
        if self._last_resort is not None:
            self._last_resort.cancel()
        for close in self._closing:
            close()
        try:
            self._meter.close()
        finally:
            self._transport.close(FLUSH_SECONDS)

    def serve(self, core: EngineCore, info: EngineInfo) -> None:
        """Serves until drained.

        Raises what the core or the journal raised, or what `fail` was given; `close` then bills what was in
        flight.
        """
        self._core = core
        self._take_stats()
        self._transport.announce(msgspec.structs.replace(info, expects_drain_seen=True))
        self._loop()

    # The loop ---------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        deadline: float | None = None
        aware_by = 0.0
        aborted = False
        while True:
            if self._num_stops and deadline is None:
                deadline = time.monotonic() + self._drain_seconds
                aware_by = min(deadline, time.monotonic() + DRAIN_SEEN_SECONDS)
                self._transport.begin_drain()
                log.info("draining", open_requests=len(self._router), seconds=self._drain_seconds)
            if deadline is not None:
                if not self._router and not self._core.has_work and self._may_leave(aware_by):
                    return
                late = time.monotonic() - deadline
                if not aborted and (late > 0 or self._num_stops > 1):
                    aborted, deadline = True, time.monotonic()
                    log.warning("drain cut short; aborting", open_requests=len(self._router))
                    self._abort_all(self._router.request_ids)
                    if self._core.exporter is not None:
                        self._core.exporter.abort_all()
                elif aborted and late > ABORT_GRACE:
                    raise RuntimeError(f"{len(self._router)} requests did not end when aborted")
            self._take_messages(wait=not self._core.has_work and not self._core.has_captures)
            if self._view_clients:
                self._send_view()
            if self._core.has_work or self._core.has_captures:
                self._step()

    def _may_leave(self, aware_by: float) -> bool:
        """Returns whether no request can be on its way here: one that arrives is rejected, one that finds no
        engine is lost.
        """
        is_known = self._not_aware is not None and not self._not_aware
        return is_known or self._num_stops > 1 or time.monotonic() > aware_by

    def _step(self) -> None:
        began = self._step_began = time.monotonic()
        outputs = self._core.step()
        self._step_began = None
        self._router.publish(outputs)
        for observer in self._observers:
            for event in outputs.started:
                observer.started(event, self._core)
            for rejected in outputs.rejected:
                observer.rejected(rejected.request_id)
        if began - self._stats_at > STATS_INTERVAL:
            self._take_stats()

    # Messages ---------------------------------------------------------------------------------------------

    def _take_messages(self, wait: bool) -> None:
        """Handles all messages that have arrived; with `wait`, waits for one for up to IDLE_WAIT."""
        try:
            delivery = self._wait_for_one() if wait else self._inbox.get_nowait()
            while True:
                self._take(delivery)
                delivery = self._inbox.get_nowait()
        except queue.Empty:
            pass

    def _wait_for_one(self) -> Delivery | _AdapterLoaded | _Failed | _Wake:
        """Returns the next message, or raises queue.Empty. Reads gauges once it is quiet, not between
        requests.
        """
        try:
            return self._inbox.get(timeout=QUIET_AFTER)
        except queue.Empty:
            self._take_stats()
            return self._inbox.get(timeout=IDLE_WAIT)

    def _take(self, delivery: Delivery | _AdapterLoaded | _Failed | _Wake) -> None:
        match delivery:
            case FromClient(client, Submit() as request):
                self._submit(client, request)
            case FromClient(client, Abort(request_id)):
                if self._router.is_owner(client, request_id):
                    self._core.abort(request_id)
            case FromClient(_, Prefetch(adapter, pinned)):
                self._core.prefetch(adapter, pinned)
            case FromClient(_, ServedElsewhere(rates)):
                self._core.scheduler.shared_service.note_elsewhere(rates)
            case FromClient(client, Inspect()):
                self._view_clients.add(client)
            case FromClient(client, AskSpooled(position)):
                self._transport.send(client, self._meter.spooled(position))
            case _AdapterLoaded(slot, digest, error):
                self._core.adapter_loaded(slot, digest, error)
            case FromClient(client, DrainSeen()) if self._not_aware is not None:
                self._not_aware.discard(client)
            case DrainAnnounced(clients):
                self._not_aware = set(clients)
            case ClientGone(client):
                if self._not_aware is not None:
                    self._not_aware.discard(client)
                self._abort_all(self._router.disconnect(client))
            case ClientStalled(client):
                self._abort_all(self._router.requests_of(client))
            case _Failed(error):
                raise error
            case _:
                pass

    def _submit(self, client: bytes, request: Submit) -> None:
        if self._num_stops:
            return self._refuse(client, request, "draining", "the engine is shutting down")
        if request.request_id in self._router:
            return self._refuse(
                client, request, "duplicate", f"request_id {request.request_id!r} is already open"
            )
        try:
            row = self._meter.admit(request)
        except ValueError as error:
            return self._refuse(client, request, "invalid", str(error))
        for observer in self._observers:
            observer.received(request)
        rejected = self._core.submit(request)
        if rejected is not None:
            for observer in self._observers:
                observer.rejected(request.request_id)
            self._meter.cancel(row)
            self._transport.send(client, Outputs(rejected=[rejected]))
            return None
        self._router.open(client, request, row)
        return None

    def _note_ended(self, event: UsageEvent) -> None:
        """Tells the observers, on the journal's thread, that a request's last event is written."""
        for observer in self._observers:
            try:
                observer.ended(event)
            except Exception:  # the journal goes on without the spans of a request
                log.exception("an observer failed", request=event.request_id)

    def _refuse(self, client: bytes, request: Submit, code: RejectCode, message: str) -> None:
        self._num_refused += 1
        self._transport.send(client, Outputs(rejected=[Rejected(request.request_id, code, message)]))

    def _abort_all(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self._core.abort(request_id)

    # Gauges -----------------------------------------------------------------------------------------------

    def _take_stats(self) -> EngineStats:
        self._stats_at = time.monotonic()
        stats = self._core.stats
        self._stats = msgspec.structs.replace(stats, rejected=stats.rejected + self._num_refused)
        for observer in self._observers:
            observer.measured(self._stats, self._core)
        return self._stats

    def _send_view(self) -> None:
        """Answers the clients that requested a view. However many ask, a view is built only now and then."""
        view, now = self._view, time.monotonic()
        if view is None or now - self._view_at > VIEW_INTERVAL:
            view = self._view = self._core.view(self._finish_stats(self._take_stats()))
            self._view_at = now
        for client in self._view_clients:
            self._transport.send(client, view)
        self._view_clients.clear()

    def _finish_stats(self, stats: EngineStats) -> EngineStats:
        """Adds the gauges that the core does not know."""
        disk = self._meter.disk
        return msgspec.structs.replace(
            stats,
            journal_spooled=self._meter.num_spooled,
            journal_set_aside=self._meter.num_set_aside,
            errors=stats.errors + self._transport.num_invalid,
            draining=self._num_stops > 0,
            disk_free_bytes=disk.free_bytes,
            disk_total_bytes=disk.total_bytes,
        )

    def _heartbeat(self) -> EngineStats | None:
        """Runs on the transport's thread, twice a second, and ends the process when a step hangs."""
        began = self._step_began
        if began is not None and time.monotonic() - began > STALL_SECONDS:
            log.critical("a step hangs; the engine ends itself", seconds=STALL_SECONDS)
            os._exit(
                STALL_EXIT_CODE
            )  # the step loop can raise nothing any more; the in-flight table has the bill
        return self.status()
