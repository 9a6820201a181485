"""Connects to one engine that computes prompts: from the greeting to the first fault, then anew.

Belongs to the thread of `engine.prefill.sources`, except for what other threads read under `lock`.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
import structlog
import zmq

from engine.prefill.copies import CacheCopies, IncomingPieces
from engine.prefill.messages import (
    Beat,
    Blocks,
    Greeting,
    PieceTaken,
    PromptEnded,
    Refusal,
    SenderMessage,
    SourceMessage,
    Welcome,
)
from engine.scheduling.prompt_fetches import ArrivedBlocks, FetchEnded
from engine.transport.connection import Connection
from engine.transport.curve import Address

log = structlog.get_logger(__name__)

SILENCE_LIMIT = 3.0
"""Seconds without a message until the engine counts as gone; it sends twice a second."""
CONNECT_LIMIT = 5.0
"""Seconds for a connection to be made, or a greeting answered, before another is tried."""
RECONNECT_PAUSE = 0.5
ASSUMED_PROMPT_RATE = 10_000.0
"""Prompt tokens per second, until the engine has measured them."""
BURST = 32

_decoder = msgspec.msgpack.Decoder(SenderMessage)
_encoder = msgspec.msgpack.Encoder()


class Piece:
    """A message's blocks, until they are written and their memory is returned."""

    __slots__ = ("connection", "data", "number")

    def __init__(self, connection: Connection, number: int, data: Any) -> None:
        self.connection = connection
        self.number = number
        self.data = data


class Link:
    """One engine as a source of prompts."""

    def __init__(
        self,
        address: Address,
        greeting: Greeting,
        copies: CacheCopies,
        deliver: Callable[[ArrivedBlocks | FetchEnded], None],
    ) -> None:
        self._addresses = deque((address, *address.alternatives))
        """The first is tried next."""
        self._greeting = greeting
        self._copies = copies
        self._deliver = deliver
        self.connection: Connection | None = None
        self.lock = threading.Lock()
        """Guards what decides whether a prompt is asked for: `open`, and whether the engine takes prompts."""
        self._retry_at = 0.0
        self._pieces: IncomingPieces | None = None
        """Set while prompts may be asked for."""
        self._beat: Beat | None = None
        self._arrived: list[ArrivedBlocks] = []
        """Reported, and not yet written or dropped."""
        self._written: list[Piece] = []
        """Whose memory is to be returned."""
        self.refusal = ""
        """Why the engine gives no prompts; empty when it does or was not reached."""
        self.open: dict[str, int] = {}
        """Prompts asked for: the tokens that have not come."""

    # Called by any thread, with the lock ------------------------------------------------------------------

    @property
    def is_shared(self) -> bool:
        return self._pieces is not None and self._pieces.is_shared

    def expected_wait(self, priority: str) -> float | None:
        """Returns the seconds that a prompt would wait there; None when it takes none."""
        beat = self._beat
        if self._pieces is None or beat is None or beat.draining:
            return None
        backlog = sum(self.open.values()) / (beat.prompt_rate or ASSUMED_PROMPT_RATE)
        return max(beat.predicted_wait.get(priority, 0.0), backlog)

    # The thread -------------------------------------------------------------------------------------------

    def keep_connected(self, context: zmq.Context, now: float) -> None:
        """Connects when it is time to, and gives up a connection that is silent."""
        connection = self.connection
        if connection is None:
            if now >= self._retry_at:
                self.connection = Connection(context, self._addresses[0], now)
                self.send(self._greeting)
            return
        connection.poll_monitor()
        if connection.is_lost:
            self.disconnect("it closed the connection", now)
        elif not self.refusal:
            limit = CONNECT_LIMIT if self._pieces is None else SILENCE_LIMIT
            if connection.silence.seconds(now) > limit:
                self.disconnect("it does not answer", now)

    def send(self, message: SourceMessage) -> None:
        if self.connection is not None:
            with contextlib.suppress(zmq.Again):  # the connection just broke, which is about to be noticed
                self.connection.socket.send(_encoder.encode(message), zmq.NOBLOCK)

    def disconnect(self, reason: str, now: float) -> None:
        """Discards the connection, because of a fault; its prompts will not come."""
        if self._pieces is not None:
            log.warning("a prefill engine is gone", endpoint=self._addresses[0].endpoint, reason=reason)
        else:
            self._addresses.rotate(-1)  # its keys may be rotated
        self.close(now)

    def close(self, now: float = 0.0) -> None:
        """Discards the connection, if there is one."""
        if self.connection is None:
            return
        self.connection.close()
        self.connection = None
        self._written.clear()
        self._retry_at = now + RECONNECT_PAUSE
        if self.is_shared:
            for blocks in self._arrived:
                blocks.is_lost = True
        self._arrived.clear()
        with self.lock:
            self._pieces, self._beat, self.refusal = None, None, ""
            lost, self.open = list(self.open), {}
        for fetch_id in lost:
            self._deliver(FetchEnded(fetch_id, "lost"))

    def receive(self, now: float) -> None:
        """Handles messages that have arrived."""
        for _ in range(BURST):
            connection = self.connection
            if connection is None or not connection.has_message:
                return
            parts = connection.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            connection.silence.heard(now)
            try:
                self._take(_decoder.decode(parts[0].buffer), parts[1].buffer if len(parts) > 1 else None)
            except (msgspec.DecodeError, ValueError) as error:
                self.disconnect(f"it sent an invalid message ({error})", now)

    def _take(self, message: SenderMessage, payload: Any) -> None:
        match message:
            case Blocks():
                self._take_blocks(message, payload)
            case PromptEnded(fetch_id, cause, reason, cached_tokens):
                with self.lock:
                    is_open = self.open.pop(fetch_id, None) is not None
                if is_open:
                    if cause:
                        log.info("a prompt is computed here", cause=cause, reason=reason)
                    self._deliver(FetchEnded(fetch_id, cause, cached_tokens))
            case Beat():
                self._beat = message
            case Welcome(engine_id, shared):
                self._pieces = self._copies.incoming(shared)
                log.info("prompts may be computed elsewhere", engine=engine_id, shared_memory=self.is_shared)
            case Refusal(reason):
                self.refusal = reason
                log.error("a prefill engine refuses", endpoint=self._addresses[0].endpoint, reason=reason)

    def _take_blocks(self, blocks: Blocks, payload: Any) -> None:
        if self._pieces is None or self.connection is None:
            raise ValueError("blocks before a welcome")
        data = self._pieces.stage(blocks.piece, blocks.num_blocks, payload)
        piece = Piece(self.connection, blocks.piece, data)
        with self.lock:
            num_left = self.open.get(blocks.fetch_id)
            if num_left is not None:
                num_tokens = blocks.num_blocks * self._greeting.format.block_size
                self.open[blocks.fetch_id] = max(0, num_left - num_tokens)
        if num_left is None:
            self._written.append(piece)  # it was cancelled
            return
        origin = (self, piece)
        arrived = ArrivedBlocks(blocks.fetch_id, blocks.first_block, blocks.num_blocks, data, origin)
        self._arrived.append(arrived)
        self._deliver(arrived)

    def taken(self, blocks: ArrivedBlocks) -> None:
        """Takes note that blocks were written or dropped."""
        self._arrived = [one for one in self._arrived if one is not blocks]
        self._written.append(blocks.origin[1])

    def return_pieces(self) -> bool:
        """Returns memory that has been copied. Returns whether some has not been."""
        waiting = []
        for piece in self._written:
            if piece.connection is not self.connection or self._pieces is None:
                continue
            if self._pieces.is_free(piece.data):
                self.send(PieceTaken(piece.number))
            else:
                waiting.append(piece)
        self._written = waiting
        return bool(waiting)
