"""Holds the generations that are open on an engine, and hands its outputs to them.

Bounds what their readers leave unread, each alone and all together.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.protocol import Outputs, Rejected
from engine.transport.generation import EngineError, Generation, ReaderStalled, RequestRejected

MAX_UNREAD_TOKENS = 65_536
"""Of one generation."""
MAX_UNREAD_IN_ALL = 2_097_152
"""Of all generations together; beyond it, those with more than their share unread are aborted. Unread tokens
take some 36 bytes each."""


class OpenGenerations:
    """By request id: those that have not received their last message."""

    def __init__(
        self,
        send_abort: Callable[[str], None],
        max_unread_tokens: int = MAX_UNREAD_TOKENS,
        max_unread_in_all: int = MAX_UNREAD_IN_ALL,
    ) -> None:
        """`send_abort` asks the engine to stop a request; without an engine it does nothing."""
        self._send_abort = send_abort
        self._max_unread_tokens = max_unread_tokens
        self._max_unread_in_all = max_unread_in_all
        self._by_id: dict[str, Generation] = {}
        self.num_unread = 0
        """Tokens, of all of them together; the generations count them."""

    def __len__(self) -> int:
        return len(self._by_id)

    def add(self, generation: Generation) -> None:
        """Raises RequestRejected when a request of its id is open."""
        request_id = generation.request_id
        if request_id in self._by_id:
            raise RequestRejected("duplicate", f"request_id {request_id!r} is already open")
        generation.source = self
        self._by_id[request_id] = generation

    def abort(self, request_id: str) -> None:
        """Asks the engine to stop a request, if it is open."""
        if request_id in self._by_id:
            self._send_abort(request_id)

    def receive(self, outputs: Outputs, gained: set[Generation]) -> list[tuple[Generation, Rejected]]:
        """Hands an engine's outputs over. Adds to `gained` whose readers are to be woken. Returns what the
        engine rejected: those generations are open no more, and are the caller's to end.
        """
        by_id = self._by_id
        for begun in outputs.begun:
            generation = by_id.get(begun.request_id)
            if generation is not None:
                generation.held_for = begun.seconds
        for scores in outputs.scores:
            generation = by_id.get(scores.request_id)
            if generation is not None:
                generation.scores += scores.logprobs
        for chunk in outputs.chunks:
            generation = by_id.get(chunk.request_id)
            if generation is not None:
                gained.add(generation)
                self._bound(generation, generation.receive(chunk))
        for finished in outputs.finished:
            generation = by_id.pop(finished.request_id, None)
            if generation is not None:
                generation.end(finished.usage, None)
        return [
            (generation, rejected)
            for rejected in outputs.rejected
            if (generation := by_id.pop(rejected.request_id, None)) is not None
        ]

    def fail(self, error: Callable[[], EngineError]) -> None:
        """Ends every generation with an error of its own: the engine is gone."""
        generations, self._by_id = self._by_id, {}
        for generation in generations.values():
            generation.end(None, error())

    def forget_callbacks(self) -> None:
        """Makes no call at the end of those that are open."""
        for generation in self._by_id.values():
            generation.forget_callback()

    def _bound(self, generation: Generation, num_unread: int) -> None:
        if num_unread > self._max_unread_tokens or (
            self.num_unread > self._max_unread_in_all
            and num_unread * len(self._by_id) > self._max_unread_in_all
        ):
            self._send_abort(generation.request_id)
            generation.stall(
                ReaderStalled(f"the client left {num_unread} tokens unread; the request was aborted")
            )
