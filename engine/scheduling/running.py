"""Tracks the requests in the batch and what each holds: a row, blocks, a reference to its adapter's slot.

The planner decides which requests enter and leave.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from heapq import heappop, heappush
from operator import attrgetter

from engine.batch import NO_SLOT, NewRow
from engine.lora.slot_allocator import SlotAllocator
from engine.request import CLASS_ORDER, Request, RequestState
from engine.scheduling.step_timing import StepTiming

_BY_RANK = attrgetter("rank")


def tenant_rows(request: Request) -> int:
    """Returns how many requests of the request's tenant and class are running."""
    assert request.tenant_share is not None
    return request.tenant_share.num_running


class RunningRequests:
    """The running requests by rank, with counts by class and tenant."""

    def __init__(self, max_rows: int, slot_allocator: SlotAllocator, timing: StepTiming) -> None:
        """`timing` records how long requests keep their rows."""
        self.requests: list[Request] = []
        """By rank: class, then arrival."""
        self.num_rows = [0] * len(CLASS_ORDER)
        """Requests of each class, in the order of the classes."""
        self.num_tenants = [0] * len(CLASS_ORDER)
        """Tenants with running requests, of each class."""
        self.most_rows = [0] * len(CLASS_ORDER)
        """Rows of the tenant that has the most, of each class."""
        # By class and number of rows: how many tenants have that many.
        self._tenants_with = [[0] * (max_rows + 1) for _ in CLASS_ORDER]
        self.max_rows = max_rows
        self._timing = timing
        self._slot_allocator = slot_allocator
        self._free_rows = list(range(max_rows))  # a heap: low rows first keep the batch state dense
        self._freed_rows: list[int] = []

    @property
    def is_full(self) -> bool:
        return not self._free_rows

    def enter(self, request: Request, matched: list[int]) -> NewRow:
        """Gives a request from the queue a row, its slot, the `matched` cached blocks, and blocks for the
        rest of its tokens.

        There must be a row and enough blocks, and its adapter must be ready.
        """
        request.table.open(matched, request.total_len)
        slot = NO_SLOT
        if request.adapter is not None:
            self._slot_allocator.remove_demand(request.adapter)
            slot = self._slot_allocator.acquire(request.adapter)
        insort(self.requests, request, key=_BY_RANK)
        self._count(request, 1)
        request.entered_at = self._timing.now
        return request.enter(heappop(self._free_rows), slot, request.table.registered_len)

    def vacate(self, request: Request, state: RequestState) -> None:
        """Takes back everything a request holds. It stays on the list until `sweep`, unless
        removed before."""
        self._freed_rows.append(request.row)
        heappush(self._free_rows, request.row)
        request.table.close()
        if request.slot != NO_SLOT:
            self._slot_allocator.release(request.slot)
        self._count(request, -1)
        self._timing.record_stay(request.entered_at, ended=state is not RequestState.WAITING)
        request.leave(state)

    def remove(self, request: Request) -> None:
        """Removes a request from the list, before it is vacated."""
        if self.requests[-1] is request:
            self.requests.pop()
        else:
            self.requests.remove(request)

    def sweep(self) -> None:
        """Removes requests that no longer run."""
        self.requests[:] = [request for request in self.requests if request.state is RequestState.RUNNING]

    def take_freed_rows(self) -> list[int]:
        """Returns the rows freed since the last call: the runner must free them before they are reused."""
        freed, self._freed_rows = self._freed_rows, []
        return freed

    def _count(self, request: Request, change: int) -> None:
        """Adds `change` rows to the counts of the request's tenant in its class."""
        tenant_share, order = request.tenant_share, request.rank[0]
        assert tenant_share is not None
        tenants_with, before = self._tenants_with[order], tenant_share.num_running
        after = tenant_share.num_running = before + change
        self.num_rows[order] += change
        tenants_with[before] -= 1
        tenants_with[after] += 1
        if after > self.most_rows[order]:
            self.most_rows[order] = after
        elif not tenants_with[self.most_rows[order]]:
            self.most_rows[order] -= 1
        self.num_tenants[order] += (not before) - (not after)

    def check_integrity(
        self, held_blocks: set[int], other_blocks: set[int], other_slots: Sequence[int]
    ) -> None:
        """Asserts that every row, block and slot reference is either free or held by the right request.

        `other_blocks`: those held for prompts that move between engines; `other_slots`: those of draft
        adapters.
        """
        for request in self.requests:
            request.check()
            assert request.state is RequestState.RUNNING
        assert self.requests == sorted(self.requests, key=_BY_RANK)
        rows = [request.row for request in self.requests]
        assert sorted(rows + self._free_rows) == list(range(self.max_rows))
        assert self.num_rows == [
            sum(request.rank[0] == order for request in self.requests) for order in CLASS_ORDER.values()
        ]
        tenant_shares = {id(request.tenant_share): request for request in self.requests}
        for request in tenant_shares.values():
            assert request.tenant_share is not None
            theirs = sum(other.tenant_share is request.tenant_share for other in self.requests)
            assert request.tenant_share.num_running == theirs
        assert self.most_rows == [
            max((tenant_rows(request) for request in self.requests if request.rank[0] == order), default=0)
            for order in CLASS_ORDER.values()
        ]
        assert self.num_tenants == [
            sum(request.rank[0] == order for request in tenant_shares.values())
            for order in CLASS_ORDER.values()
        ]
        own_blocks = {block_id for request in self.requests for block_id in request.table.block_ids}
        assert own_blocks | other_blocks == held_blocks
        for slot in self._slot_allocator.slots.slots:
            theirs = sum(request.slot == slot.index for request in self.requests)
            assert slot.references == theirs + other_slots.count(slot.index)
