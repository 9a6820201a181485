"""Plans the next engine step: which requests run, with how many tokens, and which are admitted or preempted.

Rows, blocks and slot references are allocated and taken back here. There are no prefill and decode phases:
each request's computed tokens catch up with its total tokens, all under one token budget. `FairQueue` decides
who is next, `Preemption` who is preempted.

Order of a step:

1. A FLEX request that has waited too long and whose turn it is, if there is room for it.
2. Requests that may be admitted before their turn (`Preemption`): they take rows and blocks of others, if
   there are too few. As many as this step can compute anything for.
3. Running requests, each at least one token. Decoding requests first; then those with more to compute, by
   class and then by how few tokens those are, so that a long prompt does not delay shorter ones. When blocks
   run out, the last in rank (class, then arrival) is preempted: its blocks are released, its tokens stay,
   and it returns before others of its class. The first in rank can take every other request's blocks, and
   validation rejects what does not fit alone, so something always progresses.
4. If nothing was preempted: waiting requests, in the order of `FairQueue`, while there are tokens, rows and
   blocks. One that lacks blocks holds up the rest, one whose adapter has no slot does not.
"""

from __future__ import annotations

from engine.batch import Batch, Scheduled
from engine.kv_cache import BlockPool
from engine.protocol import PriorityClass
from engine.request import CLASS_ORDER, Request, RequestState
from engine.scheduling.drafter import Proposal
from engine.scheduling.drafts import Drafts, append_block
from engine.scheduling.fairness import DEFAULT, FLEX, PRIORITY
from engine.scheduling.preemption import Preemption, protect
from engine.scheduling.request_tracker import RequestTracker
from engine.scheduling.state import SchedulerState
from engine.scheduling.step_bound import StepBound
from engine.scheduling.validation import EngineLimits


class StepPlan:
    """A batch, with the requests parallel to its shares and to what it scores."""

    __slots__ = ("batch", "drafting", "prefill", "requests", "scoring")

    def __init__(self, step: int) -> None:
        self.batch = Batch(step)
        self.requests: list[Request] = []
        self.scoring: list[Request] = []
        self.prefill: list[tuple[Request, Scheduled]] = []
        """Shares of known tokens; those of more than one token come last in the batch."""
        self.drafting: list[tuple[Request, Scheduled]] = []
        """Shares with drafts or placeholders, which come before those."""

    @property
    def known_by_class(self) -> list[int]:
        """Known tokens to compute, in the order of the classes."""
        found = [0] * len(CLASS_ORDER)
        for request, share in self.prefill:
            found[request.rank[0]] += share.num_tokens
        return found

    def add(self, request: Request, share: Scheduled) -> None:
        self.requests.append(request)
        self.batch.scheduled.append(share)


class StepPlanner:
    """Plans steps, and allocates what their requests need."""

    def __init__(
        self,
        state: SchedulerState,
        limits: EngineLimits,
        pool: BlockPool,
        tracker: RequestTracker,
        bound: StepBound,
        drafts: Drafts,
    ) -> None:
        self.is_short_of_blocks = False
        """Whether the next request in line lacked blocks when the last step was planned."""
        self._limits = limits
        self._pool = pool
        self._slot_allocator = state.slot_allocator
        self._queue = state.queue
        self._running = state.running
        self._timing = state.timing
        self._fetches = state.fetches
        self._tracker = tracker
        self._preemption = Preemption(state.queue, state.running)
        self._bound = bound
        self._drafts = drafts
        self._step = 0
        self._flex_left = 0  # tokens of FLEX prompts that this step may still compute
        # Preempted in this step (the token they drew last may be in flight), and admitted in it.
        self._preempted: list[Request] = []
        self._entered: list[Request] = []
        self._at_limit: list[Request] = []  # planned to draw the last token their limit allows
        self._partial: list[Request] = []  # have more known tokens to compute than the last step did

    def next_step(self, may_draft: bool) -> StepPlan | None:
        """Returns the next step, or None when nothing can run until a step in flight is committed.

        `may_draft`: no step is in flight, so that every row's last token is known.
        """
        running, queue = self._running, self._queue
        plan = StepPlan(self._step)
        self._drafts.report_verified(plan.batch)
        self._preempted.clear()
        self._entered.clear()
        self._retire()
        queue.take_turns(self._timing.now)
        self._bound.observe()
        self._flex_left = self._flex_tokens()
        drafts = self._drafts.propose() if may_draft else {}  # not for requests admitted in this step
        if queue:
            self._admit_early(plan)
        budget = self._serve_running(plan, drafts)
        if queue and budget > 0 and not self._preempted:
            self._admit(plan, budget)
        for request, share in plan.drafting:
            plan.add(request, share)
        for request, share in plan.prefill:
            if share.num_tokens > 1:
                self._add(plan, request, share)
        batch = plan.batch
        if not batch.scheduled:
            assert not running.requests, "running requests must progress"
            return None
        self._share_prefixes(plan)
        self._step += 1
        queue.charge_rows(running.num_rows)
        batch.freed_rows = running.take_freed_rows()
        return plan

    @property
    def has_more_work(self) -> bool:
        """Whether any row has more to do after the last planned step."""
        return len(self._running.requests) > len(self._at_limit)

    def _retire(self) -> None:
        """Takes back what requests hold whose last token is in flight: they need no further step."""
        if not self._at_limit:
            return
        for request in self._at_limit:
            if request.state is RequestState.RUNNING:
                self._end_stay(request, RequestState.ENDING)
        self._at_limit.clear()
        self._running.sweep()

    # Running requests -------------------------------------------------------------------------------------

    def _serve_running(self, plan: StepPlan, drafts: dict[Request, Proposal]) -> int:
        """Gives every running request its share, preempting from the end. Returns the budget left."""
        running, planned, scheduled = self._running.requests, plan.requests, plan.batch.scheduled
        budget = self._limits.max_batch_tokens
        computing: list[Request] = []
        index = 0
        while index < len(running):
            request = running[index]
            index += 1
            computed_len, total_len = request.computed_len, request.total_len
            if total_len - computed_len == 1:
                if computed_len == request.table.capacity and not self._grow(request, plan.batch):
                    break  # it was the last, and was preempted itself
                if drafts and request in drafts:
                    share = self._drafts.plan(plan.batch, request, drafts[request])
                    if share is not None:
                        plan.drafting.append((request, share))
                        budget -= share.num_tokens
                        continue
                planned.append(request)
                scheduled.append(request.decode_share)
                request.computed_len = total_len
                request.total_len = total_len = total_len + 1
                if total_len == request.limit:
                    self._at_limit.append(request)
                budget -= 1
            else:
                computing.append(request)  # its blocks were all taken at admission
        if len(computing) > 1:
            computing.sort(key=_prefill_order)
        for place, request in enumerate(computing, start=1):
            # One token is reserved for each request after it.
            budget -= self._compute(plan, request, budget - (len(computing) - place))
        return budget

    def _flex_tokens(self) -> int:
        """Returns the FLEX prompt tokens that a step may compute: few, where they would delay others."""
        limits, running, queue = self._limits, self._running.requests, self._queue
        others = (running and running[0].priority is not FLEX) or len(queue) > queue.num_waiting(FLEX)
        if limits.max_flex_tokens is None or not others:
            return limits.max_batch_tokens
        # All in one step out of several: most steps of the other classes take no longer than without FLEX.
        return 0 if self._step % limits.flex_interval else limits.max_flex_tokens

    def _compute(self, plan: StepPlan, request: Request, budget: int) -> int:
        """Schedules as many of a request's known tokens as the budget allows. Returns how many."""
        begin = request.computed_len
        num_left = request.total_len - begin
        if request.priority is FLEX:
            budget = max(1, min(budget, self._flex_left))
        num_tokens = min(num_left, budget)
        if request.priority is FLEX:
            self._flex_left -= num_tokens
        share = Scheduled(request.row, num_tokens, num_tokens == num_left)
        plan.prefill.append((request, share))
        request.computed_len += num_tokens
        request.total_len += share.samples
        scored = request.take_scored(begin)
        if scored is not None:
            plan.batch.scored.append(scored)
            plan.scoring.append(request)
        if num_tokens == 1:  # wider shares come last
            self._add(plan, request, share)
        return num_tokens

    def _add(self, plan: StepPlan, request: Request, share: Scheduled) -> None:
        plan.add(request, share)
        if request.total_len == request.limit:
            self._at_limit.append(request)

    def _share_prefixes(self, plan: StepPlan) -> None:
        """Registers the blocks that this step computes, so that later steps hit them, siblings first."""
        for request, share in plan.prefill:
            request.table.register_computed(request.token_ids, request.computed_len)
            if share.samples:
                self._tracker.queue_siblings(request.group)
        self._partial = [request for request, share in plan.prefill if not share.samples]

    # Preemption -------------------------------------------------------------------------------------------

    def _grow(self, request: Request, batch: Batch) -> bool:
        """Allocates one more block to a running request. Returns False when it was preempted itself."""
        while not self._pool.num_free:
            if self._fetches.release_one():
                continue
            victim = self._running.requests[-1]
            self._preempt(victim)
            self._queue.push_returning(victim, self._timing.now)
            if victim is request:
                return False
        append_block(request, batch)
        return True

    def _preempt(self, request: Request) -> None:
        """Ends a running request's stay; the caller queues it again."""
        assert request not in self._entered, "a request admitted in this step cannot be preempted in it"
        self._preempted.append(request)
        protect(request)
        self._tracker.note_preemption(request)
        self._running.remove(request)
        self._end_stay(request, RequestState.WAITING)

    def _end_stay(self, request: Request, state: RequestState) -> None:
        """Takes back what a request holds; the tokens it computed stay in the prefix cache."""
        request.table.register_computed(request.token_ids, request.computed_len)
        self._running.vacate(request, state)

    def _make_room(self, request: Request) -> bool:
        """Preempts running requests in favour of a waiting one. Returns whether there is room for it then."""
        if self._has_room(request):
            return True
        victims = [victim for victim in self._preemption.victims(request) if victim not in self._entered]
        if not victims:
            return False
        # An upper bound: blocks that victims share with others do not become free.
        most_free = self._pool.num_free + sum([len(victim.table.block_ids) for victim in victims])
        if most_free < -(-request.total_len // self._pool.block_size) - len(self._match(request)):
            return False
        for victim in self._preemption.victims(request):
            if victim in self._entered:
                continue
            self._preempt(victim)
            self._queue.push(victim, self._timing.now, first=True)
            if self._has_room(request):
                return True
        return False

    # Waiting requests -------------------------------------------------------------------------------------

    def _admit_early(self, plan: StepPlan) -> None:
        """Admits requests that wait neither for running requests' shares nor for others to end."""
        queue, admits = self._queue, self._slot_allocator.admits
        flex = queue.flex_in_turn(admits)
        if flex is not None and not self._running.is_full:
            if not self._has_blocks(flex):
                return (
                    queue.unpark()
                )  # blocks that become free are reserved for it: it has waited long enough
            self._enter(plan, flex)
        num_tokens = self._limits.max_batch_tokens - len(self._running.requests)
        for priority in (PRIORITY, DEFAULT):
            while (request := self._next_early(priority)) is not None:
                if self._num_ahead(request) >= num_tokens:
                    break
                if not self._make_room(request):
                    if not self._has_row(request):
                        break
                    return queue.unpark()  # it lacks blocks: no lower class may take them
                self._enter(plan, request)
                self._partial.append(request)
        return queue.unpark()

    def _next_early(self, priority: PriorityClass) -> Request | None:
        """Returns the request of a class to admit before running requests have their share, if any."""
        for place, request in enumerate(self._queue.heads(priority, self._slot_allocator.admits)):
            if request in self._preempted:
                continue
            if self._preemption.may_preempt(request):
                return request
            if not place and self._partial and not self._running.is_full:
                return request  # the prompt under way may be of a tenant with more service
        return None

    def _num_ahead(self, request: Request) -> int:
        """Returns the known tokens of running requests that are computed before those of the request."""
        key = _prefill_order(request)
        return sum(
            [
                other.total_len - other.computed_len
                for other in self._partial
                if other.state is RequestState.RUNNING and _prefill_order(other) <= key
            ]
        )

    def _admit(self, plan: StepPlan, budget: int) -> None:
        """Admits waiting requests while there are tokens, rows and blocks for them."""
        self.is_short_of_blocks = False
        while budget > 0 and not self._running.is_full:
            closed: tuple[PriorityClass, ...] = () if self._flex_left > 0 else (FLEX,)
            if self._bound.is_closed_to(DEFAULT):
                closed = (DEFAULT, FLEX)
            request = self._queue.pick(self._slot_allocator.admits, closed)
            if request is None:
                break
            if not self._has_room(request):
                if not self._running.requests and self._fetches.release_one():
                    continue  # else each could wait for what the other holds
                self.is_short_of_blocks = True
                break
            self._enter(plan, request)
            budget -= self._compute(plan, request, budget)
        self._queue.unpark()

    def _match(self, request: Request) -> list[int]:
        """Returns the cached blocks that a waiting request would begin with."""
        return request.table.match(request.token_ids, request.num_reusable)

    def _has_room(self, request: Request) -> bool:
        """Returns whether there are a row and blocks for the request."""
        return self._has_row(request) and self._has_blocks(request)

    def _has_row(self, request: Request) -> bool:
        return not self._running.is_full and not self._bound.is_closed_to(request.priority)

    def _has_blocks(self, request: Request) -> bool:
        matched = self._match(request)
        num_needed = -(-request.total_len // self._pool.block_size) - len(matched)
        # One block is left for each running request to grow: otherwise the next step would preempt.
        return self._pool.num_free_besides(matched) >= num_needed + len(self._running.requests)

    def _enter(self, plan: StepPlan, request: Request) -> None:
        """Gives a waiting request its row and its blocks. There must be room."""
        total_len = request.total_len
        self._entered.append(request)
        self._queue.take(request)
        plan.batch.new_rows.append(self._running.enter(request, self._match(request)))
        self._tracker.note_admission(request)
        if total_len == len(request.group.submit.prompt_ids):
            self._queue.charge_prefill(request, total_len - request.cached_len)


def _prefill_order(request: Request) -> tuple[int, int, int, int]:
    """Sort key: the order in which requests with more than one token to compute get their shares."""
    return (request.rank[0], request.total_len - request.computed_len, *request.rank[1:])
