"""One request's answer as its reader sees it, and what may become of it instead.

Owns the chunks that nobody has read yet, and how a reader learns of more, of the end and of failures. Refuses
to know how chunks arrive: whoever holds the connection hands them in.

    EngineError
    +-- RequestRejected   the request never ran; code and message say why
    +-- EngineGone        not connected, or lost while generating
    +-- ReaderStalled     nobody read this generation's tokens, so it was aborted
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from engine.protocol import RejectCode, TokenChunk, TokenLogprob, Usage


class GenerationSource(Protocol):
    """Where a generation comes from."""

    _num_unread: int
    """Tokens, of all its generations together."""

    def _abort(self, request_id: str) -> None: ...


class EngineError(Exception):
    """A request came to nothing, or to less than it asked for."""


class RequestRejected(EngineError):
    """The engine would not run the request. Nothing is billed."""

    def __init__(self, code: RejectCode, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_after = retry_after
        """Seconds until it may be worth asking again, as far as the engine can tell."""


class EngineGone(EngineError):
    """No engine to ask, or it went away in mid-answer. What it generated until then is billed."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds until it is likely to serve again, by how long its last start took."""


class ReaderStalled(EngineError):
    """Tokens piled up unread past the limit, and the request was aborted."""


class Generation:
    """One request's answer, read with `async for`: each item is every chunk that arrived since the last.

    Ends after the engine's last word; then `usage` is set. Raises RequestRejected, EngineGone or
    ReaderStalled in place of an item, after the chunks that came before it. One reader at a time. A reader
    that is cancelled while it waits aborts the request; one that stops iterating for another reason must call
    `abort` (it may then read on, to the usage). Whoever has to know what was used, whatever becomes of the
    reader, asks with `when_ended`.

    A reader that wants no task of its own to be woken is told by `listen`, and reads with `take`.
    """

    __slots__ = (
        "_client",
        "_closed",
        "_end_callback",
        "_listener",
        "_num_unread",
        "_unread",
        "_waiter",
        "error",
        "held_for",
        "request_id",
        "scores",
        "usage",
    )

    def __init__(self, client: GenerationSource, request_id: str) -> None:
        self.request_id = request_id
        self.usage: Usage | None = None
        """Set once the engine has spoken its last word."""
        self.error: EngineError | None = None
        """Why there is no answer, or no more of it."""
        self.held_for = 0.0
        """Seconds that the first tokens were held back by the engine, of what is wanted whole."""
        self.scores: list[TokenLogprob] = []
        """Of the prompt's tokens from `score_from` on, where asked for; complete before the first chunk."""
        self._client = client
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
        """Every chunk that arrived since the last; none is no sign of the end."""
        chunks = self._unread
        if chunks:
            self._client._num_unread -= self._num_unread
            self._unread, self._num_unread = [], 0
        return chunks

    @property
    def has_unread(self) -> bool:
        """Whether `take` would give anything."""
        return bool(self._unread)

    @property
    def ended(self) -> bool:
        """Nothing more is to come but what `take` still gives; `error` says whether that is in order."""
        return self._closed or self.error is not None

    def listen(self, callback: Callable[[], None] | None) -> None:
        """In place of `async for`: have `callback` called when there is something to take, and at the end. It
        must not raise. None: nobody any more.
        """
        self._listener = callback

    def abort(self) -> None:
        """Ask the engine to stop.

        Returns at once, may be called at any time and again; tokens generated are billed.
        """
        if not self._closed:
            self._client._abort(self.request_id)

    def when_ended(self, callback: Callable[[Generation], None]) -> None:
        """Call `callback` once nothing more is to come: `usage` is set then, or `error`, or (of a stalled
        reader) both. At most one hears. Nobody does when it is this client that leaves: the engine's journal
        will tell.
        """
        assert self._end_callback is None, "somebody hears already"
        self._end_callback = callback
        if self._closed:
            callback(self)

    def _receive(self, chunk: TokenChunk) -> int:
        """Keep a chunk for the reader; how many tokens are unread. For one who was given up, it is counted
        and dropped.
        """
        num_tokens = len(chunk.token_ids)
        if self.error is not None:
            return 0
        unread = self._unread
        if unread and chunk.goes_on_from(unread[-1]):
            unread[-1].token_ids.extend(chunk.token_ids)
        else:
            unread.append(chunk)
        self._num_unread += num_tokens
        self._client._num_unread += num_tokens
        return self._num_unread

    def __del__(self) -> None:
        self._client._num_unread -= self._num_unread

    def _wake(self) -> None:
        if self._listener is not None:
            self._listener()
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _stall(self, error: ReaderStalled) -> None:
        """Give the reader up; the engine's last word, with the usage, is still to come."""
        self.error = error
        self._wake()

    def _close(self, usage: Usage | None, error: EngineError | None) -> None:
        self.usage, self._closed = usage, True
        self.error = self.error or error
        self._wake()
        if self._end_callback is not None:
            self._end_callback(self)
