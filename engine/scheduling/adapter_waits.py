"""Times how long requests wait for their adapters, so that those that waited too long are rejected.

A request whose adapter is in its slot waits for rows or blocks without limit. One whose adapter is not is
rejected after `limit_s`, so that its client can retry instead of hanging.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from engine.protocol import AdapterRef
from engine.request import RequestGroup


class AdapterWait(NamedTuple):
    """One request's wait, held by id so that the request itself may end meanwhile."""

    deadline: float
    request_id: str
    arrival: int
    adapter: AdapterRef


class AdapterWaits:
    """All waits, oldest first. All have the same limit, so they expire in the order they began."""

    def __init__(self, clock: Callable[[], float], limit_s: float) -> None:
        self.limit_s = limit_s
        self._clock = clock
        self._waits: deque[AdapterWait] = deque()

    def begin(self, group: RequestGroup) -> None:
        """Starts, or restarts, the wait of a request for its adapter."""
        adapter = group.submit.adapter
        assert adapter is not None
        deadline = self._clock() + self.limit_s
        self._waits.append(AdapterWait(deadline, group.submit.request_id, group.arrival, adapter))

    @property
    def has_expired(self) -> bool:
        return bool(self._waits) and self._waits[0].deadline <= self._clock()

    def pop_expired(self) -> Iterator[AdapterWait]:
        """Removes and yields the waits that have reached the limit."""
        now = self._clock()
        while self._waits and self._waits[0].deadline <= now:
            yield self._waits.popleft()
