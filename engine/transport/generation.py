"""Streams one request's response to its reader, and defines the errors that may come instead.

Keeps unread chunks, and notifies the reader of more chunks, the end and failures. The owner of the connection
hands chunks in.

    EngineError
    +-- RequestRejected   the request never ran; code and message say why
    +-- EngineGone        not connected, or lost while generating
    +-- ReaderStalled     the reader left too many tokens unread, so the request was aborted
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from engine.protocol import RejectCode, TokenChunk, TokenLogprob, Usage


class GenerationSource(Protocol):
    """What a generation belongs to."""

    num_unread: int
    """Tokens, of all its generations together."""

    def abort(self, request_id: str) -> None: ...


class EngineError(Exception):
    """A request failed or ended early."""


class RequestRejected(EngineError):
    """The engine rejected the request. Nothing is billed."""

    def __init__(self, code: RejectCode, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_after = retry_after
        """Seconds after which a retry may succeed, as far as the engine can tell."""


class EngineGone(EngineError):
    """The engine is not connected, or was lost during the response. Tokens generated until then
    are billed.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds until it is likely to serve again, judged by how long its last start took."""


class ReaderStalled(EngineError):
    """Unread tokens exceeded the limit, and the request was aborted."""


class Generation:
    """One request's response, read with `async for`: each item has every chunk that arrived since the last.

    Ends after the engine's last message; then `usage` is set. Raises RequestRejected, EngineGone or
    ReaderStalled in place of an item, after the chunks that came before it. One reader at a time. A reader
    that is cancelled while it waits aborts the request; one that stops iterating for another reason must call
    `abort` (it may then read on, to the usage). Use `when_ended` to learn the usage whatever becomes of the
    reader.

    A reader without a task of its own is notified through `listen`, and reads with `take`.
    """

    __slots__ = (
        "_closed",
        "_end_callback",
        "_listener",
        "_num_unread",
        "_unread",
        "_waiter",
        "error",
        "held_for",
        "on_closed",
        "on_first",
        "request_id",
        "scores",
        "source",
        "usage",
    )

    def __init__(self, source: GenerationSource, request_id: str) -> None:
        self.source = source
        self.request_id = request_id
        self.usage: Usage | None = None
        """Set once the engine has sent its last message."""
        self.error: EngineError | None = None
        """Why there is no response, or no more of it."""
        self.held_for = 0.0
        """Seconds that the engine buffered the first tokens, if the client does not stream."""
        self.scores: list[TokenLogprob] = []
        """Of the prompt's tokens from `score_from` on, if requested; complete before the first chunk."""
        self.on_first: Callable[[Generation], None] | None = None
        """Called once, at the first chunk; like `on_closed`, for the code that chose the engine."""
        self.on_closed: Callable[[Generation], None] | None = None
        """Called once, when nothing more will arrive."""
        self._unread: list[TokenChunk] = []
        self._num_unread = 0
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False
        self._end_callback: Callable[[Generation], None] | None = None
        self._listener: Callable[[], None] | None = None

    def __aiter__(self) -> AsyncIterator[list[TokenChunk]]:
        return self

    async def __anext__(self) -> list[TokenChunk]:
        while not self._unread:
            if self.error is not None:
                raise self.error
            if self._closed:
                raise StopAsyncIteration
            assert self._waiter is None, "a generation has one reader"
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            except asyncio.CancelledError:
                self.abort()
                raise
            finally:
                self._waiter = None
        return self.take()

    def take(self) -> list[TokenChunk]:
        """Returns every chunk that arrived since the last call; an empty list does not mean the end."""
        chunks = self._unread
        if chunks:
            self.source.num_unread -= self._num_unread
            self._unread, self._num_unread = [], 0
        return chunks

    @property
    def has_unread(self) -> bool:
        """Whether `take` would return anything."""
        return bool(self._unread)

    @property
    def ended(self) -> bool:
        """Whether nothing more will arrive beyond what `take` still returns; `error` is set on a failure."""
        return self._closed or self.error is not None

    def listen(self, callback: Callable[[], None] | None) -> None:
        """Calls `callback` when there is something to take, and at the end, in place of `async for`. It must
        not raise. None removes it.
        """
        self._listener = callback

    def abort(self) -> None:
        """Asks the engine to stop.

        Returns at once, may be called at any time and repeatedly; tokens generated are billed.
        """
        if not self._closed:
            self.source.abort(self.request_id)

    def when_ended(self, callback: Callable[[Generation], None]) -> None:
        """Calls `callback` once nothing more will arrive: `usage` is set then, or `error`, or (of a stalled
        reader) both. At most one callback. It is not called when this client closes: the engine's journal has
        the usage.
        """
        assert self._end_callback is None, "a callback is set already"
        self._end_callback = callback
        if self._closed:
            callback(self)

    def __del__(self) -> None:
        self.source.num_unread -= self._num_unread

    # For the owner of the connection ----------------------------------------------------------------------

    def receive(self, chunk: TokenChunk) -> int:
        """Keeps a chunk for the reader. Returns how many tokens are unread. Chunks of a stalled generation
        are dropped.
        """
        num_tokens = len(chunk.token_ids)
        if self.on_first is not None:
            on_first, self.on_first = self.on_first, None
            on_first(self)
        if self.error is not None:
            return 0
        unread = self._unread
        if unread and chunk.goes_on_from(unread[-1]):
            unread[-1].token_ids.extend(chunk.token_ids)
        else:
            unread.append(chunk)
        self._num_unread += num_tokens
        self.source.num_unread += num_tokens
        return self._num_unread

    def wake(self) -> None:
        """Tells the reader to look."""
        if self._listener is not None:
            self._listener()
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def stall(self, error: ReaderStalled) -> None:
        """Gives the reader up; the engine's last message, with the usage, will still come."""
        self.error = error
        self.wake()

    def forget_callback(self) -> None:
        """Makes no call at the end."""
        self._end_callback = None

    def end(self, usage: Usage | None, error: EngineError | None) -> None:
        """Nothing more will arrive: the engine has sent its last message, or why there is none."""
        self.usage, self._closed = usage, True
        self.error = self.error or error
        if self.on_closed is not None:
            on_closed, self.on_closed = self.on_closed, None
            on_closed(self)
        self.wake()
        if self._end_callback is not None:
            self._end_callback(self)
