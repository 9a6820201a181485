"""Plans drafts and placeholders into a step, and takes in which drafts were drawn and what was guessed.

A row with drafts computes its last token and guesses of what follows, and draws after each. The draws up to
and including the first that is not its draft are those that single steps would have made: they count, the
others are dropped, and so are the keys and values behind them. How many count is known at the commit, so a
step with drafts is committed before the next one is planned.

Behind the drafts a row may have placeholders, in whose places a draft adapter guesses what follows all that.
The guesses are the next step's drafts, if every draft before them was drawn; keys and values of placeholders
are dropped in any case.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.batch import MAX_DRAFTS, Batch, Drafted, Placeholders, Scheduled, StepResult, Verified
from engine.kv_cache import BlockPool
from engine.request import Request, RequestState
from engine.scheduling.draft_adapters import DraftAdapters
from engine.scheduling.drafter import Drafter, DraftKind, Proposal
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
        adapters: DraftAdapters,
    ) -> None:
        self._running, self._queue = state.running, state.queue
        self._limits = limits
        self._pool, self._block_size = pool, pool.block_size
        self._tracker = tracker
        self._drafter = drafter
        self._adapters = adapters
        self._planned: dict[Request, Proposal] = {}
        """Of the requests with drafts or placeholders in the step in flight."""
        # Since the last step: requests that had drafts, each with its draws that count.
        self._verified: list[tuple[Request, list[int]]] = []

    def is_waiting(self) -> bool:
        """Returns whether the step in flight should be committed first: drafts would be worth that."""
        return self._drafter.is_waiting(self._running.requests, self._adapters.ready)

    def learn(self) -> None:
        """Takes in what was drawn lately: before a step is planned, while another runs if one does."""
        self._drafter.learn(self._running.requests)

    def propose(self) -> dict[Request, Proposal]:
        """Returns drafts and placeholders of running requests, as many as fit beside their next tokens.
        Called while no step is in flight.
        """
        running = self._running.requests
        # A step draws at most once for each row there could be, guesses included; waiting requests may take
        # rows in it.
        num_open = min(self._limits.max_rows - len(self._queue), self._limits.max_batch_tokens) - len(running)
        return self._drafter.propose(running, num_open, self._adapters.ready) if num_open > 0 else {}

    def plan(self, batch: Batch, request: Request, proposal: Proposal) -> Scheduled | None:
        """Schedules a request's last token, and drafts and placeholders behind it. None where its limit or
        the free blocks leave no room for any, or it has drawn nothing and has a constraint: that may begin in
        several ways.
        """
        if request.constraint is not None and len(request.token_ids) == len(request.group.submit.prompt_ids):
            return None
        table, begin = request.table, request.computed_len + 1
        num_left = request.limit - 1 - request.total_len
        num_drafts = min(len(proposal.token_ids), MAX_DRAFTS, num_left)
        # A guess is of use where it can be a draft: behind the token drawn after this step's drafts.
        num_placeholders = max(0, min(proposal.num_placeholders, num_left - num_drafts - 1))
        # Requests admitted since it was proposed may have taken the draft adapter's slot.
        adapter = self._adapters.ready(request) if num_placeholders else None
        num_placeholders = 0 if adapter is None else num_placeholders
        end = begin + num_drafts + num_placeholders
        # No request is preempted for drafts, nor in the next step because of them.
        while table.capacity < end and self._pool.num_free > len(self._running.requests):
            append_block(request, batch)
        num_more = min(end, table.capacity) - begin
        if num_more <= 0:
            return None
        num_drafts = min(num_drafts, num_more)
        batch.drafted.append(Drafted(request.row, proposal.token_ids[:num_drafts]))
        num_placeholders = num_more - num_drafts
        if adapter is not None and num_placeholders:
            places = num_placeholders, adapter.placeholder_id, self._adapters.use(adapter)
            batch.placeholders.append(Placeholders(request.row, *places))
        self._planned[request] = proposal
        return request.plan_drafts(num_drafts, num_placeholders)

    def commit(
        self,
        request: Request,
        drafts: Sequence[int],
        guesses: Sequence[int],
        result: StepResult,
        first: int,
        now: float,
    ) -> int:
        """Takes in a request's draws, `first` and those behind it in the result, and the guesses of its
        placeholders. Returns how many draws count.

        What follows from a token (stops, limits, grammars, the prefix cache) is as if it came alone.
        """
        token_ids, failed = result.token_ids, result.failed
        num_accepted = 0
        while num_accepted < len(drafts) and drafts[num_accepted] == token_ids[first + num_accepted]:
            num_accepted += 1
        self._drafter.note_verified(request, len(drafts), num_accepted, guesses)
        places = range(first, first + num_accepted + 1)
        places = self._sound(request, places, result) if guesses and failed else places
        request.accept_drafts(len(places) - 1)
        counted = token_ids[places.start : places.stop]
        if failed or result.logprobs or not self._take(request, counted, now):
            counted = self._take_one_by_one(request, places, result, now)
        self._count(request, len(drafts), min(num_accepted, len(counted)), len(guesses))
        self._verified.append((request, counted))
        return len(counted)

    def _take(self, request: Request, token_ids: list[int], now: float) -> bool:
        """Takes in all draws of a request at once, unless something follows from a single one of them."""
        if request.matcher is not None or request.thinking is not None or request.constraint is not None:
            return False
        if request.group.first_token_at is None:
            return False
        known, table = request.token_ids, request.table
        if len(known) + len(token_ids) >= request.limit or not request.stop_ids.keys().isdisjoint(token_ids):
            return False
        known += token_ids
        if len(known) - 1 - table.registered_len >= self._block_size:
            table.register_computed(known, len(known) - 1)
        self._tracker.record_tokens(request, token_ids, now)
        return True

    def _take_one_by_one(self, request: Request, places: range, result: StepResult, now: float) -> list[int]:
        """Takes in draws of a request, up to the one that ends it. Returns them."""
        known, table, record = request.token_ids, request.table, self._tracker.record_token
        follows = request.thinking is not None or request.constraint is not None
        counted: list[int] = []
        for place in places:
            if place in result.failed:
                self._tracker.fail(request)
                break
            if len(known) - table.registered_len >= self._block_size:
                table.register_computed(known, len(known))
            token_id = result.token_ids[place]
            if follows:
                advance(request, token_id)
            known.append(token_id)
            counted.append(token_id)
            if record(request, token_id, result.logprobs.get(place), now):
                break
        return counted

    @staticmethod
    def _sound(request: Request, places: range, result: StepResult) -> range:
        """Returns the draws of a row with placeholders before the first whose logits were not finite. That
        one is drawn again, without placeholders: the draft adapter's keys may be why.
        """
        failed = [place for place in places if place in result.failed]
        if not failed:
            return places
        request.may_guess = False
        return range(places.start, failed[0])

    def _count(self, request: Request, num_drafts: int, num_given: int, num_placeholders: int) -> None:
        planned = self._planned.pop(request)
        digest = None if request.adapter is None else request.adapter.digest
        num_forced = min(planned.num_forced, num_drafts)
        num_given_forced = min(num_forced, num_given)
        if num_drafts:
            self._tracker.counters.count_draft_step(request.tenant, digest)
        count = self._tracker.counters.count_drafts
        if num_forced:
            count(request.tenant, digest, DraftKind.GRAMMAR.value, num_forced, num_given_forced)
        rest = num_drafts - num_forced, num_given - num_given_forced
        count(request.tenant, digest, planned.kind.value, *rest, planned.guessed_by)
        self._tracker.counters.placeholder_tokens += num_placeholders

    def report_verified(self, batch: Batch) -> None:
        """Has a step say what the last one left of the rows that had drafts in it. Steps with drafts are
        committed before: no step in flight has any.
        """
        self._planned.clear()  # of requests that ended meanwhile
        self._adapters.let_go()
        for request, token_ids in self._verified:
            if request.state is RequestState.RUNNING:
                num_blocks, last = len(request.table.block_ids), request.token_ids[-1]
                batch.verified.append(Verified(request.row, token_ids, num_blocks, last))
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
