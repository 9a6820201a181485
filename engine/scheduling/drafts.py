"""Plans drafts into a step, and takes in which of them were drawn.

A row with drafts computes its last token and guesses of what follows, and draws after each. The draws up to
and including the first that is not its draft are those that single steps would have made: they count, the
others are dropped, and so are the keys and values behind them. How many count is known at the commit, so a
step with drafts is committed before the next one is planned.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.batch import MAX_DRAFTS, Batch, Drafted, Scheduled, StepResult, Verified
from engine.kv_cache import BlockPool
from engine.request import Request, RequestState
from engine.scheduling.drafter import Drafter
from engine.scheduling.request_tracker import RequestTracker
from engine.scheduling.state import SchedulerState
from engine.scheduling.validation import EngineLimits


class Drafts:
    """The drafts of one scheduler's steps."""

    def __init__(
        self,
        state: SchedulerState,
        limits: EngineLimits,
        pool: BlockPool,
        tracker: RequestTracker,
        drafter: Drafter,
    ) -> None:
        self._running, self._queue = state.running, state.queue
        self._limits = limits
        self._pool = pool
        self._tracker = tracker
        self._drafter = drafter
        # Since the last step: requests that had drafts, each with its draws that count.
        self._verified: list[tuple[Request, list[int]]] = []

    def propose(self) -> dict[Request, list[int]]:
        """Returns drafts of running requests, as many as fit beside their next tokens."""
        running = self._running.requests
        # A step draws at most once for each row there could be; waiting requests may take rows in it.
        num_open = min(self._limits.max_rows - len(self._queue), self._limits.max_batch_tokens) - len(running)
        return self._drafter.propose(running, num_open) if num_open > 0 else {}

    def plan(self, batch: Batch, request: Request, token_ids: list[int]) -> Scheduled | None:
        """Schedules a request's last token and drafts behind it; None where its limit or the free blocks
        leave no room for any, or it has drawn nothing and has a constraint: that may begin in several ways.
        """
        if request.constraint is not None and len(request.token_ids) == len(request.group.submit.prompt_ids):
            return None
        table, begin = request.table, request.computed_len + 1
        end = begin + min(len(token_ids), MAX_DRAFTS, request.limit - 1 - request.total_len)
        # No request is preempted for drafts, nor in the next step because of them.
        while table.capacity < end and self._pool.num_free > len(self._running.requests):
            append_block(request, batch)
        num_drafts = min(end, table.capacity) - begin
        if num_drafts <= 0:
            return None
        batch.drafted.append(Drafted(request.row, token_ids[:num_drafts]))
        return request.plan_drafts(num_drafts)

    def commit(
        self, request: Request, drafts: Sequence[int], result: StepResult, first: int, now: float
    ) -> int:
        """Takes in a request's draws, `first` and those behind it in the result. Returns how many count.

        What follows from a token (stops, limits, grammars, the prefix cache) is as if it came alone.
        """
        token_ids = result.token_ids
        num_accepted = 0
        while num_accepted < len(drafts) and drafts[num_accepted] == token_ids[first + num_accepted]:
            num_accepted += 1
        self._drafter.note_verified(request, len(drafts), num_accepted)
        request.accept_drafts(num_accepted)
        counted: list[int] = []
        for place in range(first, first + num_accepted + 1):
            if place in result.failed:
                self._tracker.fail(request)
                break
            request.table.register_computed(request.token_ids, len(request.token_ids))
            token_id = token_ids[place]
            advance(request, token_id)
            request.token_ids.append(token_id)
            counted.append(token_id)
            if self._tracker.record_token(request, token_id, result.logprobs.get(place), now):
                break
        digest = None if request.adapter is None else request.adapter.digest
        num_given = min(num_accepted, len(counted))
        self._tracker.counters.count_drafts(request.tenant, digest, len(drafts), num_given)
        self._verified.append((request, counted))
        return len(counted)

    def report_verified(self, batch: Batch) -> None:
        """Has a step say what the last one left of the rows that had drafts in it."""
        for request, token_ids in self._verified:
            if request.state is RequestState.RUNNING:
                batch.verified.append(Verified(request.row, token_ids, len(request.table.block_ids)))
        self._verified.clear()


def append_block(request: Request, batch: Batch) -> None:
    """Allocates one more block to a running request. There must be one."""
    block_id = request.table.grow()
    if batch.grown and batch.grown[-1][0] == request.row:
        batch.grown[-1][1].append(block_id)
    else:
        batch.grown.append((request.row, [block_id]))


def advance(request: Request, token_id: int) -> None:
    """Tells what follows a request's tokens of one that counts, before the request has it."""
    if request.thinking is not None:
        request.thinking.accept(token_id)
    if request.constraint is not None:
        request.constraint.accept(token_id)
