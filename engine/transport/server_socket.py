"""Serves the engine's end of the wire: one ROUTER socket on one thread.

Decodes and encodes messages, tracks connected clients and sends the heartbeat. Messages are delivered as
`Delivery` values to one callback; responses are queued with `send`, from any thread. The step loop never
waits for the network.

Nothing is dropped silently. A ROUTER drops messages for a peer that is gone unless ROUTER_MANDATORY is set,
so it is: sending to a vanished peer fails, and because the heartbeat goes to every client twice a second, a
client that was killed is noticed within that time. When a peer reads too slowly its queue (SEND_HWM messages)
fills, sends return EAGAIN, and messages wait here in order; past MAX_BACKLOG the client is reported as
stalled, its requests are aborted, and their last messages wait for it. Only heartbeats are skipped while
others wait.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import structlog
import zmq

from engine.protocol import (
    ClientMessage,
    EngineInfo,
    EngineMessage,
    EngineStats,
    Goodbye,
    Hello,
    Outputs,
    Rejected,
)
from engine.transport.curve import ServerKeys
from engine.transport.listening import listen
from engine.transport.wake_pipe import WakePipe

log = structlog.get_logger(__name__)

HEARTBEAT_INTERVAL = 0.5
SEND_HWM = 4096
MAX_BACKLOG = 4096
BACKLOG_RETRY = 0.005
MAX_MESSAGE_BYTES = 32 << 20
"""The longest context is a few hundred thousand ids of at most five bytes; a peer that sends more is
disconnected."""
RECEIVE_BURST = 1000
"""Messages received before waiting output is sent."""

_decoder = msgspec.msgpack.Decoder(ClientMessage)
_encoder = msgspec.msgpack.Encoder()


@dataclass(frozen=True, slots=True)
class FromClient:
    """A decoded message, not yet validated."""

    client: bytes
    message: ClientMessage


@dataclass(frozen=True, slots=True)
class ClientGone:
    """The client said goodbye or vanished: nothing can be sent to it any more."""

    client: bytes


@dataclass(frozen=True, slots=True)
class ClientStalled:
    """The client is connected but does not read: abort its requests."""

    client: bytes


@dataclass(frozen=True, slots=True)
class DrainAnnounced:
    """The clients to which the drain was announced; those that connect later are not answered."""

    clients: frozenset[bytes]


Delivery = FromClient | ClientGone | ClientStalled | DrainAnnounced


@dataclass(slots=True)
class _Peer:
    name: str = ""
    greeted: bool = False
    """Has sent Hello and not been answered yet: the model is loading."""
    informed: bool = False
    """Has been answered, and may submit requests."""
    stalled: bool = False
    backlog: deque[bytes] = field(default_factory=deque)


class Transport:
    """Binds the endpoint at once, answers Hello once `announce`d, and sends heartbeats until `close`d."""

    def __init__(
        self,
        endpoint: str,
        deliver: Callable[[Delivery], None],
        heartbeat: Callable[[], EngineStats | None],
        keys: ServerKeys | None = None,
    ) -> None:
        """`deliver` and `heartbeat` run on the transport's thread; None from `heartbeat` skips a beat. With
        `keys` only clients that have one of these connect, encrypted.

        Raises: zmq.ZMQError when the endpoint cannot be bound (its name is in the message).
        """
        self._deliver = deliver
        self._heartbeat = heartbeat
        self._context = zmq.Context(io_threads=1)
        # What is kept of requests is bounded by load shedding.
        self._socket, self._check = listen(
            self._context, endpoint, keys, send_hwm=SEND_HWM, max_message_bytes=MAX_MESSAGE_BYTES
        )
        self.endpoint: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        """As bound: a port of "*" is filled in."""
        self.num_invalid = 0
        """Messages that could not be decoded, since the start."""
        self._info: EngineInfo | None = None
        self._peers: dict[bytes, _Peer] = {}
        self._waiting: set[bytes] = set()
        """Peers with a backlog."""
        self._outbox: deque[tuple[bytes, EngineMessage]] = deque()
        self._wakes = WakePipe()
        self._closing = False
        self._draining = False
        self._drain_is_announced = False
        self._linger_until = 0.0
        self._thread = threading.Thread(target=self._run, name="transport", daemon=True)
        self._thread.start()

    def send(self, client: bytes, message: EngineMessage) -> None:
        """Queues a message; order per client is kept. Ignored for a client that is gone."""
        self._outbox.append((client, message))
        self._wakes.wake()

    def announce(self, info: EngineInfo) -> None:
        """Answers all clients that said Hello, now and from now on: the model is loaded."""
        self._info = info
        self._wakes.wake()

    def begin_drain(self) -> None:
        """Sends a heartbeat at once, and answers no further Hello. Delivers DrainAnnounced."""
        self._draining = True
        self._wakes.wake()

    def close(self, linger: float) -> None:
        """Sends what is queued, for at most `linger` seconds, then unbinds."""
        self._linger_until = time.monotonic() + linger
        self._closing = True
        self._wakes.wake()
        self._thread.join()
        self._wakes.close()

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wakes.read_fd, zmq.POLLIN)
        if self._check is not None:
            poller.register(self._check.socket, zmq.POLLIN)
        next_beat = time.monotonic()
        greeted_info: EngineInfo | None = None
        while not (self._closing and self._done_sending()):
            nap = BACKLOG_RETRY if self._waiting else max(0.0, next_beat - time.monotonic())
            ready = dict(poller.poll(int(nap * 1000) + 1))
            if self._wakes.read_fd in ready:
                self._wakes.clear()
            if self._check is not None and self._check.socket in ready:
                self._check.answer()
            if self._socket in ready:
                self._receive()
            if self._info is not greeted_info and not self._draining:
                greeted_info = self._info
                for client in [client for client, peer in self._peers.items() if peer.greeted]:
                    self._greet(client)
            self._flush()
            if self._draining and not self._drain_is_announced:
                self._drain_is_announced = True
                next_beat = time.monotonic()
                self._announce_drain()
            if time.monotonic() >= next_beat:
                next_beat = time.monotonic() + HEARTBEAT_INTERVAL
                self._beat()
        self._context.destroy(linger=max(0, int((self._linger_until - time.monotonic()) * 1000)))

    def _done_sending(self) -> bool:
        return not (self._outbox or self._waiting) or time.monotonic() > self._linger_until

    # Receiving --------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        for _ in range(RECEIVE_BURST):
            try:
                client, *parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if client not in self._peers:
                self._peers[client] = _Peer()
            if len(parts) != 1:
                self._refuse(client, b"", f"expected one part, got {len(parts)}")
                continue
            try:
                message = _decoder.decode(parts[0])
            except msgspec.DecodeError as error:  # ValidationError is one
                self._refuse(client, parts[0], str(error))
                continue
            self._take(client, message)

    def _take(self, client: bytes, message: ClientMessage) -> None:
        peer = self._peers[client]
        if isinstance(message, Hello):
            peer.name = message.client
            peer.greeted = True
            log.info("client connected", client=message.client)
            if self._info is not None and not self._draining:
                self._greet(client)
        elif isinstance(message, Goodbye):
            log.info("client left", client=peer.name)
            self._forget(client)
        else:
            self._deliver(FromClient(client, message))

    def _refuse(self, client: bytes, payload: bytes, reason: str) -> None:
        """Counts an invalid message; if it was a request, rejects it."""
        self.num_invalid += 1
        log.warning("invalid message", client=self._peers[client].name, bytes=len(payload), reason=reason)
        try:
            raw = msgspec.msgpack.decode(payload, strict=False)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return
        if isinstance(raw, dict) and raw.get("type") == "submit" and isinstance(raw.get("request_id"), str):
            self._post(client, Outputs(rejected=[Rejected(raw["request_id"], "invalid", reason)]))

    # Sending ----------------------------------------------------------------------------------------------

    def _greet(self, client: bytes) -> None:
        assert self._info is not None
        peer = self._peers[client]
        peer.greeted, peer.informed = False, True
        self._post(client, self._info)

    def _announce_drain(self) -> None:
        informed = (client for client, peer in self._peers.items() if peer.informed)
        self._deliver(DrainAnnounced(frozenset(informed)))

    def _beat(self) -> None:
        stats = self._heartbeat()
        if stats is None:
            return
        payload = _encoder.encode(stats)
        for client in list(self._peers):
            if client not in self._waiting:
                self._offer(client, payload)

    def _flush(self) -> None:
        for client in list(self._waiting):
            self._drain_backlog(client)
        while self._outbox:
            client, message = self._outbox.popleft()
            self._post(client, message)

    def _post(self, client: bytes, message: EngineMessage) -> None:
        peer = self._peers.get(client)
        if peer is None:
            return
        payload = _encoder.encode(message)
        if client not in self._waiting and self._offer(client, payload):
            return
        peer.backlog.append(payload)
        self._waiting.add(client)
        if len(peer.backlog) > MAX_BACKLOG and not peer.stalled:
            peer.stalled = True
            log.error(
                "client does not read; aborting its requests", client=peer.name, backlog=len(peer.backlog)
            )
            self._deliver(ClientStalled(client))

    def _drain_backlog(self, client: bytes) -> None:
        peer = self._peers[client]
        while client in self._peers and peer.backlog and self._offer(client, peer.backlog[0]):
            peer.backlog.popleft()
        if not peer.backlog:
            peer.stalled = False
            self._waiting.discard(client)

    def _offer(self, client: bytes, payload: bytes) -> bool:
        """Sends unless the peer's queue is full. Returns whether the message is done with.

        A peer that has vanished is forgotten, and counts as served.
        """
        try:
            self._socket.send_multipart((client, payload), zmq.NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            log.info("client vanished", client=self._peers[client].name)
            self._forget(client)
        return True

    def _forget(self, client: bytes) -> None:
        self._waiting.discard(client)
        if self._peers.pop(client, None) is not None:
            self._deliver(ClientGone(client))
