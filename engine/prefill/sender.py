"""Sends the blocks of computed prompts to the engines that asked for them: one ROUTER socket on one thread.

A client asks, cancels, and returns pieces of memory; it gets a beat twice a second. Of each client at most
`PIECES` messages with blocks are under way: the others wait here by their ids alone, their contents in the
cache. A client that is gone is noticed at the next beat, and its prompts are cancelled.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import structlog
import zmq

from engine.gauges import EngineStats
from engine.prefill.copies import PIECES, CacheCopies, OutgoingPieces
from engine.prefill.exporting import BlocksSent, ComputedBlocks, ExportEvent, PromptAsked, PromptCancelled
from engine.prefill.messages import (
    AskPrompt,
    Beat,
    Blocks,
    CacheFormat,
    CancelPrompt,
    Greeting,
    PromptEnded,
    Refusal,
    SenderMessage,
    SourceMessage,
    Welcome,
)
from engine.transport.curve import ServerKeys
from engine.transport.listening import listen
from engine.transport.wake_pipe import WakePipe

log = structlog.get_logger(__name__)

BEAT_INTERVAL = 0.5
NOT_READY_NAP = 0.001
"""Seconds until a step in flight, whose blocks are to be sent, is looked at again."""
REST_SECONDS = 60.0
"""A client whose connection broke may still read shared memory, until writes that it has queued are over."""
MAX_MESSAGE_BYTES = 8 << 20
"""Of what clients send: the longest prompt is a few hundred thousand ids of at most five bytes."""
RECEIVE_BURST = 100

_decoder = msgspec.msgpack.Decoder(SourceMessage)
_encoder = msgspec.msgpack.Encoder()


@dataclass(slots=True)
class _Client:
    """An engine that may ask for prompts."""

    name: str
    pieces: OutgoingPieces
    free: list[int] = field(default_factory=lambda: list(range(PIECES)))
    queue: deque[ComputedBlocks | PromptEnded] = field(default_factory=deque)
    asked: set[str] = field(default_factory=set)
    """Prompts that have not ended."""


class PromptSender:
    """Listens from its construction until `close`."""

    def __init__(
        self,
        endpoint: str,
        engine_id: str,
        cache_format: CacheFormat,
        copies: CacheCopies,
        deliver: Callable[[ExportEvent], None],
        status: Callable[[], EngineStats | None],
        keys: ServerKeys | None = None,
    ) -> None:
        """`deliver` and `status` run on the sender's thread. With `keys` only engines that have one of these
        connect, encrypted.

        Raises: zmq.ZMQError when the endpoint cannot be bound (its name is in the message).
        """
        self._engine_id = engine_id
        self._format = cache_format
        self._copies = copies
        self._deliver = deliver
        self._status = status
        self._context = zmq.Context(io_threads=2)
        # Pieces bound what is under way.
        self._socket, self._check = listen(
            self._context,
            endpoint,
            keys,
            send_hwm=0,
            max_message_bytes=MAX_MESSAGE_BYTES,
            purpose=" for prompts",
        )
        self.endpoint: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        """As bound: a port of "*" is filled in."""
        self._clients: dict[bytes, _Client] = {}
        self._resting: deque[tuple[float, OutgoingPieces]] = deque()
        """Memory of clients that are gone, and when others may have it."""
        self._inbox: deque[tuple[bytes, ComputedBlocks | PromptEnded]] = deque()
        self._wakes = WakePipe()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="prompt sender", daemon=True)
        self._thread.start()

    # Called from the step loop's thread -------------------------------------------------------------------

    def mark_launched(self) -> Any:
        return self._copies.mark_launched()

    def send_blocks(self, blocks: ComputedBlocks) -> None:
        self._inbox.append((blocks.client, blocks))
        self._wakes.wake()

    def send_end(self, client: bytes, ended: PromptEnded) -> None:
        self._inbox.append((client, ended))
        self._wakes.wake()

    def close(self) -> None:
        """Stops at once; clients notice that the connection is gone."""
        self._closing = True
        self._wakes.wake()
        self._thread.join()
        self._wakes.close()

    # The thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wakes.read_fd, zmq.POLLIN)
        if self._check is not None:
            poller.register(self._check.socket, zmq.POLLIN)
        next_beat = time.monotonic()
        is_waiting = False
        while not self._closing:
            nap = NOT_READY_NAP if is_waiting else max(0.0, next_beat - time.monotonic())
            ready = dict(poller.poll(int(nap * 1000) + (not is_waiting)))
            if self._wakes.read_fd in ready:
                self._wakes.clear()
            if self._check is not None and self._check.socket in ready:
                self._check.answer()
            if self._socket in ready:
                self._receive()
            while self._inbox:
                self._queue(*self._inbox.popleft())
            is_waiting = False
            for name, client in list(self._clients.items()):
                is_waiting |= self._send_queued(name, client)
            if time.monotonic() >= next_beat:
                next_beat = time.monotonic() + BEAT_INTERVAL
                self._beat()
        self._context.destroy(linger=0)

    def _receive(self) -> None:
        for _ in range(RECEIVE_BURST):
            try:
                name, *parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                message = _decoder.decode(parts[0] if len(parts) == 1 else b"")
            except msgspec.DecodeError as error:
                log.warning("an invalid message on the socket for prompts", reason=str(error))
                continue
            self._take(name, message)

    def _take(self, name: bytes, message: SourceMessage) -> None:
        client = self._clients.get(name)
        if isinstance(message, Greeting):
            self._greet(name, message)
        elif client is None:
            self._send(name, Refusal("the first message must be a greeting"))
        elif isinstance(message, AskPrompt):
            client.asked.add(message.fetch_id)
            self._deliver(PromptAsked(name, message))
        elif isinstance(message, CancelPrompt):
            self._cancel(client, message.fetch_id)
        elif 0 <= message.piece < PIECES and message.piece not in client.free:
            client.free.append(message.piece)

    def _greet(self, name: bytes, greeting: Greeting) -> None:
        difference = greeting.format.difference(self._format)
        if difference:
            log.error("an engine cannot get prompts here", engine=greeting.engine_id, reason=difference)
            reason = f"its keys and values differ from those of {self._engine_id}: {difference}"
            self._send(name, Refusal(reason))
            return
        log.info("an engine may ask for prompts", engine=greeting.engine_id)
        if name in self._clients:
            return
        rested = self._resting and self._resting[0][0] <= time.monotonic()
        pieces = self._resting.popleft()[1] if rested else self._copies.outgoing()
        self._clients[name] = _Client(greeting.engine_id, pieces)
        self._send(name, Welcome(self._engine_id, pieces.share()))
        self._beat()

    def _cancel(self, client: _Client, fetch_id: str) -> None:
        if fetch_id not in client.asked:
            return
        client.asked.discard(fetch_id)
        kept: deque[ComputedBlocks | PromptEnded] = deque()
        for item in client.queue:
            if item.fetch_id != fetch_id:
                kept.append(item)
            elif isinstance(item, ComputedBlocks):
                self._deliver(BlocksSent(item.block_ids))
        client.queue = kept
        self._deliver(PromptCancelled(fetch_id))

    def _queue(self, name: bytes, item: ComputedBlocks | PromptEnded) -> None:
        client = self._clients.get(name)
        if client is not None and item.fetch_id in client.asked:
            client.queue.append(item)
        elif isinstance(item, ComputedBlocks):
            self._deliver(BlocksSent(item.block_ids))

    def _send_queued(self, name: bytes, client: _Client) -> bool:
        """Sends what may be sent. Returns whether the next blocks belong to a step that is not over yet."""
        queue = client.queue
        while queue:
            item = queue[0]
            if isinstance(item, PromptEnded):
                queue.popleft()
                client.asked.discard(item.fetch_id)
                if not self._send(name, item):
                    return False
                continue
            if not client.free:
                return False
            if not self._copies.is_over(item.ready):
                return True
            if not self._send_piece(name, client, item):
                return False
        return False

    def _send_piece(self, name: bytes, client: _Client, blocks: ComputedBlocks) -> bool:
        """Sends the first blocks of the queue's first item. Returns False when the client is gone."""
        now = blocks.block_ids[: self._copies.blocks_per_piece]
        left = blocks.block_ids[len(now) :]
        piece = client.free.pop()
        payload = client.pieces.fill(piece, now, blocks.is_shared)
        if left:
            client.queue[0] = replace(blocks, first_block=blocks.first_block + len(now), block_ids=left)
        else:
            client.queue.popleft()
        self._deliver(BlocksSent(now))
        message = Blocks(blocks.fetch_id, blocks.first_block, len(now), piece)
        return self._send(name, message, payload)

    def _beat(self) -> None:
        stats = self._status()
        if stats is None:
            return
        beat = Beat(dict(stats.predicted_wait), stats.prompt_rate, stats.draining)
        for name in list(self._clients):
            self._send(name, beat)

    def _send(self, name: bytes, message: SenderMessage, payload: Any = None) -> bool:
        """Returns False when the client is gone."""
        parts: list[Any] = [name, _encoder.encode(message)]
        if payload is not None:
            parts.append(payload)
        try:
            self._socket.send_multipart(parts, zmq.NOBLOCK, copy=payload is None)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            self._forget(name)
            return False
        return True

    def _forget(self, name: bytes) -> None:
        client = self._clients.pop(name, None)
        if client is None:
            return
        log.info("an engine that asked for prompts is gone", engine=client.name, prompts=len(client.asked))
        for fetch_id in list(client.asked):
            self._cancel(client, fetch_id)
        for item in client.queue:
            if isinstance(item, ComputedBlocks):
                self._deliver(BlocksSent(item.block_ids))
        client.queue.clear()
        self._resting.append((time.monotonic() + REST_SECONDS, client.pieces))
