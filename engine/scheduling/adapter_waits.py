"""How long requests have waited for their adapters, and which have waited too long.

A request whose adapter is in its slot waits for rows or blocks like any other, without end; one whose adapter
is not is turned away after `limit_s`, so that its client can try again instead of hanging. Refuses to know
why an adapter is not there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from engine.protocol import AdapterRef
from engine.request import RequestGroup


class Wait(NamedTuple):
    """Of one request, named so that the request itself may go meanwhile."""

    deadline: float
    request_id: str
    arrival: int
    adapter: AdapterRef


class AdapterWaits:
    """All waits, the longest first. Every one is as long, so they end in the order they began."""

    def __init__(self, clock: Callable[[], float], limit_s: float) -> None:
        self.limit_s = limit_s
        self._clock = clock
        self._waits: deque[Wait] = deque()

    def begin(self, group: RequestGroup) -> None:
        """A request on an adapter has come, or is to go on waiting."""
        adapter = group.submit.adapter
        assert adapter is not None
        deadline = self._clock() + self.limit_s
        self._waits.append(Wait(deadline, group.submit.request_id, group.arrival, adapter))

    @property
    def has_expired(self) -> bool:
        return bool(self._waits) and self._waits[0].deadline <= self._clock()

    def pop_expired(self) -> Iterator[Wait]:
        """Those that have lasted as long as they may."""
        now = self._clock()
        while self._waits and self._waits[0].deadline <= now:
            yield self._waits.popleft()
