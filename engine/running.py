"""The requests in the batch and what they hold: a row, blocks, a reference on their adapter's slot.

Owns rows and the running list. Refuses to decide who enters and who has to leave.
"""

from __future__ import annotations

from bisect import insort
from heapq import heappop, heappush
from operator import attrgetter

from engine.batch import NO_SLOT, NewRow
from engine.lora.residency import Residency
from engine.request import Request, RequestState

_BY_RANK = attrgetter("rank")


class Running:
    def __init__(self, max_rows: int, residency: Residency) -> None:
        self.requests: list[Request] = []
        """By rank: class, then arrival."""
        self._max_rows = max_rows
        self._residency = residency
        self._free_rows = list(range(max_rows))  # a heap: low rows first keep the batch state dense
        self._freed_rows: list[int] = []

    @property
    def is_full(self) -> bool:
        return not self._free_rows

    def enter(self, request: Request, matched: list[int]) -> NewRow:
        """Give a request off the queue all it needs: `matched` cached blocks, and more for all its tokens.

        There must be a row, blocks enough, and its adapter must be ready.
        """
        request.table.open(matched, request.total_len)
        slot = NO_SLOT
        if request.adapter is not None:
            self._residency.dismiss(request.adapter)
            slot = self._residency.acquire(request.adapter)
        insort(self.requests, request, key=_BY_RANK)
        return request.enter(heappop(self._free_rows), slot, request.table.named_len)

    def vacate(self, request: Request, state: RequestState) -> None:
        """Take back all that a request holds. It stays on the list until `sweep`, unless popped already."""
        self._freed_rows.append(request.row)
        heappush(self._free_rows, request.row)
        request.table.close()
        if request.slot != NO_SLOT:
            self._residency.release(request.slot)
        request.leave(state)

    def sweep(self) -> None:
        """Drop requests that have left."""
        self.requests[:] = [request for request in self.requests if request.state is RequestState.RUNNING]

    def take_freed_rows(self) -> list[int]:
        """Rows freed since last asked: the runner is to hear of them before they are used again."""
        freed, self._freed_rows = self._freed_rows, []
        return freed

    def check_integrity(self, held_blocks: set[int]) -> None:
        """Assert that every row, block and slot reference is free, or held by exactly who should hold it."""
        for request in self.requests:
            request.check()
            assert request.state is RequestState.RUNNING
        assert self.requests == sorted(self.requests, key=_BY_RANK)
        rows = [request.row for request in self.requests]
        assert sorted(rows + self._free_rows) == list(range(self._max_rows))
        assert {block_id for request in self.requests for block_id in request.table.block_ids} == held_blocks
        for slot in self._residency.slots.slots:
            assert slot.references == sum(request.slot == slot.index for request in self.requests)
