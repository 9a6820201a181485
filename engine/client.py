"""Connects an asyncio process to one engine: submits requests, streams tokens, detects at once when it is
gone.

A connection is never repaired: at its first fault (the peer closed it, three seconds without a heartbeat,
another incarnation answering) the socket is discarded with everything queued in it, every open generation
fails with EngineGone, and a new socket sends Hello. So no message meant for one incarnation of the engine
reaches the next.

`engine.transport.generation` defines the errors that callers may see.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

import msgspec
import structlog
import zmq

from engine.protocol import (
    Abort,
    AdapterRef,
    AskSpooled,
    ClientMessage,
    DrainSeen,
    EngineInfo,
    EngineMessage,
    EngineStats,
    EngineView,
    Goodbye,
    Hello,
    Inspect,
    Outputs,
    Prefetch,
    ServedElsewhere,
    Spooled,
    Submit,
    TenantService,
)
from engine.transport.connection import Connection
from engine.transport.curve import Address
from engine.transport.generation import EngineError, EngineGone, Generation, ReaderStalled, RequestRejected
from engine.transport.open_generations import MAX_UNREAD_IN_ALL, MAX_UNREAD_TOKENS, OpenGenerations
from engine.transport.start_estimate import StartEstimate
from telemetry.tasks import cancel

__all__ = ["EngineClient", "EngineError", "EngineGone", "Generation", "ReaderStalled", "RequestRejected"]

log = structlog.get_logger(__name__)

SILENCE_LIMIT = 3.0
"""Seconds without a message from a ready engine until it counts as gone; it sends twice a second."""
CONNECT_LIMIT = 2.0
"""Seconds for a connection to be made before another is tried."""
TICK = 0.1
BURST = 64
"""Messages handled before other tasks of the event loop have their turn."""

_decoder = msgspec.msgpack.Decoder(EngineMessage)
_encoder = msgspec.msgpack.Encoder()


class EngineClient:
    """A connection to one engine. All methods belong to the event loop that called `start`."""

    def __init__(
        self,
        endpoint: str,
        name: str,
        max_unread_tokens: int = MAX_UNREAD_TOKENS,
        max_unread_in_all: int = MAX_UNREAD_IN_ALL,
    ) -> None:
        """`name` appears in the engine's log.

        Connects at `start`; the engine need not be running yet. Raises ValueError for an endpoint with keys
        that cannot be used.
        """
        self._address = Address.parse(endpoint)
        self.endpoint = self._address.endpoint
        """Without its keys."""
        self.info: EngineInfo | None = None
        """The engine's identity; None until it first answered. Kept while the engine is away."""
        self.stats: EngineStats | None = None
        """Its latest gauges and counters."""
        self._view: asyncio.Future[EngineView] | None = None
        self._spooled: asyncio.Queue[Spooled] = asyncio.Queue()
        self._name = name
        self._estimate = StartEstimate(time.monotonic())
        self._ready = asyncio.Event()
        self._generations = OpenGenerations(self._send_abort, max_unread_tokens, max_unread_in_all)
        self._on_changed: Callable[[], None] = lambda: None
        self._on_drained: Callable[[Generation], bool] = lambda generation: False
        self._context: zmq.Context | None = None
        self._connection: Connection | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def ready(self) -> bool:
        """Whether it is connected to an engine that has loaded its model."""
        return self._ready.is_set()

    @property
    def is_starting(self) -> bool:
        """Whether it is connected to an engine that is still loading its model."""
        return not self.ready and self._connection is not None and self._connection.is_connected

    @property
    def ready_in(self) -> float:
        """Seconds until the engine is likely to serve again, judged by how long its last start took."""
        return self._estimate.ready_in(time.monotonic())

    @property
    def num_open(self) -> int:
        """Generations that have not received their last message."""
        return len(self._generations)

    def follow(self, on_changed: Callable[[], None], on_drained: Callable[[Generation], bool]) -> None:
        """Calls `on_changed` when the engine is ready, has sent statistics, or is gone; in that case before
        its generations fail. Calls `on_drained` with a generation that the engine rejected because it drains:
        True means that the generation was submitted elsewhere (`resubmit`). Neither may raise.
        """
        self._on_changed, self._on_drained = on_changed, on_drained

    async def start(self) -> None:
        """Begins to connect, and keeps reconnecting until `close`."""
        assert self._watch is None, "started twice"
        self._loop = asyncio.get_running_loop()
        self._context = zmq.Context(io_threads=1)
        self._connect()
        self._watch = asyncio.create_task(self._keep_connected(), name=f"engine-client {self.endpoint}")

    async def close(self) -> None:
        """Sends Goodbye; the engine aborts what is open. Open generations fail with EngineGone."""
        if self._watch is None or self._context is None:
            return
        await cancel(self._watch)
        self._watch = None
        if self._connection is not None:
            if self._connection.is_connected:
                self._connection.socket.send(_encoder.encode(Goodbye()), zmq.NOBLOCK)
            self._ready.clear()
            self._generations.forget_callbacks()
            self._disconnect("the client is closing", linger=200)
        await asyncio.to_thread(self._context.term)

    async def wait_ready(self) -> EngineInfo:
        """Waits for the engine and returns its info. Has no timeout of its own: use `asyncio.timeout`."""
        await self._ready.wait()
        assert self.info is not None
        return self.info

    def submit(self, request: Submit) -> Generation:
        """Sends a request.

        Raises EngineGone when not ready, RequestRejected when its id is already open here.
        """
        generation = Generation(self._generations, request.request_id)
        self.resubmit(request, generation)
        return generation

    def resubmit(self, request: Submit, generation: Generation) -> None:
        """Sends a request whose output goes to a generation that has none yet: another engine rejected it.

        Raises EngineGone when not ready, RequestRejected when its id is already open here.
        """
        if not self.ready:
            raise EngineGone(f"engine at {self.endpoint} is not connected", self.ready_in)
        self._generations.add(generation)
        self._send(request)

    def prefetch(self, adapter: AdapterRef, pinned: bool | None = None) -> None:
        """Asks the engine to load an adapter before its first request, and to pin or unpin it (`pinned`).

        A hint: without an engine it is dropped, and an engine that restarts has no pins.
        """
        if self.ready:
            self._send(Prefetch(adapter, pinned))

    def served_elsewhere(self, rates: list[TenantService]) -> None:
        """Tells the engine how fast others serve its tenants. Not for engines that do not report it of
        themselves.
        """
        if rates and self.ready:
            self._send(ServedElsewhere(rates))

    async def inspect(self, within: float) -> EngineView | None:
        """Returns the engine's view, or None when there is no answer within `within` seconds.

        Concurrent callers share one answer.
        """
        if not self.ready:
            return None
        if self._view is None:
            self._view = self._loop.create_future()
            self._send(Inspect())
        view = self._view
        try:
            return await asyncio.wait_for(asyncio.shield(view), within)
        except TimeoutError:
            if self._view is view:
                self._view = None  # the next one asks again
            return None

    async def spooled(self, within: float, most: int | None = None) -> list[bytes]:
        """Returns the usage events that wait on the engine's disk, as `disk` does."""
        return (await self.disk(within, most)).events

    async def disk(self, within: float, most: int | None = None) -> Spooled:
        """Returns what the engine has on its disk. Of the usage events waiting there, in order, at least the
        first `most`. One caller at a time.

        Raises EngineGone when there is no answer within `within` seconds, or the engine restarts meanwhile.
        """
        found = Spooled()
        position: int | None = 0
        try:
            async with asyncio.timeout(within):
                incarnation = (await self.wait_ready()).incarnation
                while position is not None and (most is None or len(found.events) <= most):
                    if not self.ready:
                        raise EngineGone(f"engine at {self.endpoint} is gone")
                    self._send(AskSpooled(position))
                    page = await self._spooled.get()
                    first = page if position == 0 else found
                    found = msgspec.structs.replace(first, events=[*found.events, *page.events])
                    position = page.position
        except TimeoutError:
            why = "no answer; it may be of an older release" if self.ready else "no connection"
            raise EngineGone(
                f"cannot read the usage spooled by the engine at {self.endpoint}: {why}"
            ) from None
        if self.info is None or self.info.incarnation != incarnation:
            raise EngineGone(f"engine at {self.endpoint} was restarted")
        return found

    def _send_abort(self, request_id: str) -> None:
        if self.ready:
            self._send(Abort(request_id))

    def _send(self, message: ClientMessage) -> None:
        assert self._connection is not None
        with contextlib.suppress(zmq.Again):  # the connection just broke, which is about to be noticed
            self._connection.socket.send(_encoder.encode(message), zmq.NOBLOCK)
        # The descriptor is edge-triggered, and sending may have swallowed an edge: look for what came in
        # meanwhile.
        if self._connection.has_message:
            self._loop.call_soon(self._on_readable)

    # The connection ---------------------------------------------------------------------------------------

    def _connect(self) -> None:
        assert self._context is not None
        connection = self._connection = Connection(self._context, self._address, self._loop.time())
        self._loop.add_reader(connection.socket.FD, self._on_readable)
        self._loop.add_reader(connection.monitor.FD, self._on_monitor)
        self._send(Hello(self._name))
        self._on_monitor()

    def _disconnect(self, reason: str, linger: int = 0) -> None:
        """Discards the connection and fails every generation that was open on it."""
        connection, self._connection = self._connection, None
        assert connection is not None
        self._loop.remove_reader(connection.socket.FD)
        self._loop.remove_reader(connection.monitor.FD)
        connection.close(linger)
        if self.ready:
            self._ready.clear()
            self._estimate.lost(time.monotonic())
            log.warning(
                "engine is gone", endpoint=self.endpoint, reason=reason, open_requests=len(self._generations)
            )
            self._on_changed()
        self._generations.fail(
            lambda: EngineGone(f"engine at {self.endpoint} is gone: {reason}", self.ready_in)
        )

    async def _keep_connected(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            if self._connection is None:
                self._connect()
            # Read what waits before judging silence: this process may have been the busy one.
            self._on_readable()
            self._on_monitor()
            connection, now = self._connection, self._loop.time()
            if connection is None:
                continue
            if self.ready and connection.silence.seconds(now) > SILENCE_LIMIT:
                self._disconnect(f"no heartbeat for {SILENCE_LIMIT:g} s")
            elif not connection.is_connected and now - connection.opened_at > CONNECT_LIMIT:
                self._disconnect("no connection")

    def _on_monitor(self) -> None:
        if self._connection is None:
            return
        self._connection.poll_monitor()
        if self._connection.is_lost:
            gained: set[Generation] = set()
            while self._take_message(gained):
                pass  # messages sent before it died still count
            if self._connection is not None:
                self._disconnect("it closed the connection")
            for generation in gained:
                generation.wake()

    # Messages ---------------------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        """Handles messages that have arrived, then wakes readers: a slow reader gets them in one piece."""
        gained: set[Generation] = set()
        for _ in range(BURST):
            if not self._take_message(gained):
                break
        else:
            self._loop.call_soon(
                self._on_readable
            )  # the descriptor is edge-triggered: it will not signal again that there is more
        for generation in gained:
            generation.wake()

    def _take_message(self, gained: set[Generation]) -> bool:
        """Returns whether there was a message, and it could be decoded."""
        connection = self._connection
        if connection is None:
            return False
        if not connection.has_message:
            return False
        payload = connection.socket.recv(zmq.NOBLOCK)
        connection.silence.heard(self._loop.time())
        try:
            message = _decoder.decode(payload)
        except msgspec.DecodeError as error:
            self._disconnect(f"it sent an invalid message ({error})")
            return False
        if isinstance(message, Outputs):
            self._on_outputs(message, gained)
        elif isinstance(message, EngineInfo):
            self._on_info(message)
        elif isinstance(message, EngineView):
            self._on_view(message)
        elif isinstance(message, Spooled):
            self._spooled.put_nowait(message)
        else:
            self._on_stats(message)
        return True

    def _on_outputs(self, outputs: Outputs, gained: set[Generation]) -> None:
        for generation, rejected in self._generations.receive(outputs, gained):
            retry_after = rejected.retry_after
            if rejected.code == "draining":
                if self._on_drained(generation):
                    continue
                retry_after = self.ready_in if retry_after is None else retry_after
            generation.end(None, RequestRejected(rejected.code, rejected.message, retry_after))

    def _on_info(self, info: EngineInfo) -> None:
        if self.ready and self.info is not None and info.incarnation != self.info.incarnation:
            self._disconnect(f"it was restarted as {info.incarnation}")
            return
        self.info = info
        self._estimate.served(info.start_seconds)
        self._ready.set()
        log.info(
            "engine is ready", endpoint=self.endpoint, engine=info.engine_id, incarnation=info.incarnation
        )
        self._on_changed()

    def _on_stats(self, stats: EngineStats) -> None:
        if self.ready and self.info is not None and stats.incarnation != self.info.incarnation:
            self._disconnect(f"it was restarted as {stats.incarnation}")
            return
        self.stats = stats
        self._on_changed()
        if stats.draining and self.ready and self.info is not None and self.info.expects_drain_seen:
            self._say_drain_seen()

    def _say_drain_seen(self) -> None:
        """Tells a draining engine, once, that it need not wait for requests: the follower has been told to
        submit none, and what it submitted before went out before.
        """
        assert self._connection is not None
        if not self._connection.drain_is_seen:
            self._connection.drain_is_seen = True
            self._send(DrainSeen())

    def _on_view(self, view: EngineView) -> None:
        waited, self._view = self._view, None
        if waited is not None and not waited.done():
            waited.set_result(view)
