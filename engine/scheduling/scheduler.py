"""Plans steps and takes in their results: advances every request by what its steps drew.

`StepPlanner` decides what goes into a step, `RequestTracker` how requests begin and end; running batches,
sending messages and loading adapters happen elsewhere.

Overlap: a request advances when its step is planned, so that the next step can be planned before this one has
ended. With one step in flight:

    host    schedule(n) launch(n) | schedule(n+1) launch(n+1) .. commit(n) | schedule(n+2) launch(n+2) ..
    device                  [========== step n ==========][========== step n+1 ==========][== step n+2 ==

An end by length is known ahead: when step n draws a request's last token, the request is in no later step,
and from schedule(n+1) on it holds nothing. An end by a token (end of sequence, stops), a failure or an abort
is known only after step n+1 was launched: what that step draws for the row is dropped at commit(n+1), neither
published, billed nor registered in the prefix cache. The token in flight of a preempted request counts, and
is known before the request returns.

Who owns memory when. A row, a block or a slot reference is held from the schedule that allocates it to the
event that takes it back: commit(n) (ended by a token), schedule(n+1) (preempted, or ended by its limit), or
an abort in between. Then it is free on the host, and the next schedule may reallocate it, although the device
may read and write it until the end of the last step launched so far. That is safe: the next owner's writes
are launched later, and steps run in order. Only copies that are not steps have to wait for that end: adapters
loaded into a slot. Likewise, blocks of a prompt are registered when the step that computes them is planned: a
request that finds them runs in a later step.

Scores of prompt tokens belong to a step as draws do: a token counts as scored when the step that scores it is
planned, so that it is scored once, whatever is preempted and recomputed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from engine.batch import Batch, Scored, StepResult
from engine.environment import EngineEnvironment
from engine.grammar.constraint import CompiledGrammar
from engine.kv_cache import BlockPool
from engine.lora.slot_allocator import SlotAllocator
from engine.lora.slots import NO_SLOT, SlotTable
from engine.outputs import Counters, StepOutputs
from engine.protocol import AdapterRef, PriorityClass, Rejected, Submit, TokenLogprob
from engine.request import CLASS_ORDER, Request, RequestState
from engine.scheduling.adapter_waits import AdapterWaits
from engine.scheduling.byte_floor import ByteFloor
from engine.scheduling.draft_adapters import DraftAdapters
from engine.scheduling.drafter import Drafter, NoDrafts
from engine.scheduling.drafts import Drafts, advance
from engine.scheduling.fairness import FairQueue
from engine.scheduling.overload import LoadShedder
from engine.scheduling.prompt_fetches import PromptFetches
from engine.scheduling.request_builder import RequestBuilder
from engine.scheduling.request_tracker import RequestTracker
from engine.scheduling.running import RunningRequests
from engine.scheduling.shared_service import SharedService
from engine.scheduling.state import SchedulerState
from engine.scheduling.step_bound import StepBound
from engine.scheduling.step_planner import StepPlan, StepPlanner
from engine.scheduling.step_timing import StepTiming
from engine.scheduling.validation import EngineLimits

MAX_UNCOMMITTED = 2
"""Batches planned and not committed: one that runs, and one behind it."""

HEAD_START_STEPS = 64
"""Steps with only PRIORITY rows by which that class may be ahead of DEFAULT before they take turns."""


class Scheduler:
    """Call from one thread, in turns: any number of submit, abort and so on, then schedule, then commit.

    Batches are committed in the order in which they were planned; one may be planned ahead of a commit.
    """

    def __init__(
        self,
        limits: EngineLimits,
        pool: BlockPool,
        slots: SlotTable,
        eos_ids: Iterable[int],
        token_bytes: list[bytes],
        environment: EngineEnvironment,
        floor: ByteFloor | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        """`token_bytes` is the vocabulary's, for stop strings. `floor` counts the bytes that steps must
        read. Without a `drafter` nothing is drafted.
        """
        monotonic = environment.monotonic
        self.limits = limits
        self.pool = pool
        self.slot_allocator = SlotAllocator(slots, monotonic, limits.slot_patience_s)
        # Two tokens' cost of a row in a step, by PRIORITY's weight of 16.
        self.queue = FairQueue(limits.flex_wait_s, HEAD_START_STEPS * limits.max_rows / 8)
        self.shared_service = SharedService(self.queue, monotonic)
        self.engine_id = environment.engine_id
        self.incarnation = environment.incarnation
        self._clock = environment.clock
        self._floor = floor
        self._timing = StepTiming(monotonic, limits.max_batch_tokens)
        self._waits = AdapterWaits(monotonic, limits.adapter_wait_s)
        self._running = RunningRequests(limits.max_rows, self.slot_allocator, self._timing)
        bound = StepBound(limits.priority_step_s, self.queue, self._running, self._timing)
        self.load_shedder = LoadShedder(limits, self.queue, self._running, self._timing, bound)
        self.fetches = PromptFetches(pool, monotonic)
        state = SchedulerState(self.queue, self._running, self.slot_allocator, self._timing, self.fetches)
        builder = RequestBuilder(limits, pool, eos_ids, environment.draw_seed, token_bytes)
        self._drafter: Drafter = NoDrafts() if drafter is None else drafter
        self._tracker = RequestTracker(
            state, builder, self._waits, self.load_shedder, token_bytes, environment, self._drafter
        )
        self.draft_adapters = DraftAdapters(self.slot_allocator, monotonic)
        self._drafts = Drafts(state, limits, pool, self._tracker, self._drafter, self.draft_adapters)
        self._planner = StepPlanner(state, limits, pool, self._tracker, bound, self._drafts)
        self._uncommitted: deque[StepPlan] = deque()
        self._has_learnt = False  # for the next step
        self.composition: tuple[list[int], list[int]] = ([], [])
        """Of the last planned step, by class: known tokens that it computes, and rows that decode."""

    # Requests and adapters --------------------------------------------------------------------------------

    def submit(self, submit: Submit, grammar: CompiledGrammar | None = None) -> Rejected | None:
        """Queues a request, or returns why it is rejected. Never raises, whatever the request contains.

        `grammar` is the request's, compiled.
        """
        assert (grammar is None) == (submit.grammar is None), "grammars are compiled before"
        return self._tracker.submit(submit, grammar)

    def validate(self, submit: Submit) -> Rejected | None:
        """Returns why a request can never run, and counts it as rejected; None when it may be submitted.

        For requests that are prepared before `submit`, which repeats this.
        """
        return self._tracker.validate(submit)

    def reject(self, rejected: Rejected, *, counted: bool = False) -> None:
        """Publishes the rejection of a request that was accepted and never queued."""
        self._tracker.publish_rejection(rejected, counted=counted)

    def abort(self, request_id: str) -> None:
        """Ends all choices of a request and frees what they hold. Unknown ids are ignored."""
        self._tracker.abort(request_id)

    def prefetch(self, ref: AdapterRef, pinned: bool | None = None) -> None:
        """Loads an adapter that no request waits for, if a slot can be freed; pins or unpins it."""
        self.slot_allocator.prefetch(ref, pinned)

    def adapter_loaded(self, slot: int, digest: str, error: str | None) -> None:
        """Records that a load has ended, or for `NO_SLOT` a fetch. On an error, requests waiting for the
        adapter end too.
        """
        if error is None and slot == NO_SLOT:
            self.slot_allocator.fetched(digest)
        elif error is None:
            self.slot_allocator.loaded(slot, digest)
        else:
            self.slot_allocator.failed(slot, digest)
            self.draft_adapters.failed(digest)
            self._tracker.reject_waiting_for(digest, error)

    # Steps -------------------------------------------------------------------------------------------------

    def schedule(self) -> Batch | None:
        """Plans the next step, or returns None when nothing can run until a step is committed."""
        assert len(self._uncommitted) < MAX_UNCOMMITTED, "the batch before the last is not committed"
        if self._uncommitted and self._must_commit_first(self._uncommitted[-1].batch):
            return None
        self._learn()
        self._has_learnt = False
        self._timing.begin_step()
        self._tracker.reject_overdue()
        self._tracker.queue_fetched()
        self.slot_allocator.take_turns()
        plan = self._planner.next_step(may_draft=not self._uncommitted)
        if plan is None:
            return None
        self.load_shedder.is_short_of_blocks = self._planner.is_short_of_blocks
        known, decoding = plan.known_by_class, self._running.num_rows.copy()
        for request, _ in plan.prefill:
            decoding[request.rank[0]] -= 1
        num_known = sum(known)
        self.counters.prefill_tokens += num_known
        self.counters.decode_tokens += sum(decoding)
        self.composition = known, decoding
        if self._floor is not None:
            self.counters.step_bytes += self._floor.of(plan.batch, plan.requests, self.slot_allocator.slots)
        self._timing.end_step(num_known, len(plan.requests), self._planner.has_more_work)
        num_more = sum(len(token_ids) for _, token_ids in plan.batch.drafted)
        num_more += sum(share.num_tokens for share in plan.batch.placeholders)
        self._drafter.note_step(len(plan.requests), num_more, num_known)
        self._uncommitted.append(plan)
        return plan.batch

    def constrained(self, batch: Batch) -> list[tuple[int, Request]]:
        """Returns the requests of the oldest batch that think or have a constraint, each with its position
        among the batch's draws.
        """
        plan = self._uncommitted[0]
        assert plan.batch is batch, "batches must be committed in the order they were planned"
        if all(request.constraint is None and request.thinking is None for request in plan.requests):
            return []
        drafts = dict(batch.drafted)
        found, position = [], 0
        for request, share in zip(plan.requests, batch.scheduled, strict=True):
            if not share.samples:
                continue
            # A row with drafts is advanced when they are committed: no step in flight waits for its masks.
            if share.row in drafts:
                position += len(drafts[share.row])
            elif request.constraint is not None or request.thinking is not None:
                found.append((position, request))
            position += 1
        return found

    def _must_commit_first(self, last: Batch) -> bool:
        """Returns whether the next step has to wait until the last one is committed: the lengths of rows with
        drafts are known then, and so are the tokens that drafts follow.
        """
        self._learn()
        return bool(last.drafted) or self._drafts.is_waiting()

    def _learn(self) -> None:
        """Has texts taken in once for each step, while the one before it runs if one does."""
        if not self._has_learnt:
            self._drafts.learn()
            self._has_learnt = True

    @staticmethod
    def advance_grammars(constrained: list[tuple[int, Request]], result: StepResult) -> None:
        """Tells such requests' constraints what was drawn, before `commit`: masks for the next step are
        filled meanwhile.
        """
        token_ids, failed, finished = result.token_ids, result.failed, RequestState.FINISHED
        for position, request in constrained:
            if request.state is finished or position in failed:
                continue
            advance(request, token_ids[position])

    def commit(self, batch: Batch, result: StepResult) -> StepOutputs:
        """Takes in what the oldest batch drew. Returns what has happened since the last commit."""
        plan = self._uncommitted.popleft()
        assert plan.batch is batch, "batches must be committed in the order they were planned"
        now = self._clock()
        any_ended = bool(plan.scoring) and self._commit_scores(batch.scored, plan.scoring, result.scores)
        block_size, record_token, finished = (
            self.pool.block_size,
            self._tracker.record_token,
            RequestState.FINISHED,
        )
        token_ids, logprobs, failed = result.token_ids, result.logprobs, result.failed
        drafts = dict(batch.drafted)
        guessed = zip(batch.placeholders, result.guesses, strict=True)
        guesses = {placeholders.row: token_ids for placeholders, token_ids in guessed}
        drawn: list[Request] = []
        position = -1
        for request, share in zip(plan.requests, batch.scheduled, strict=True):
            if not share.samples:
                continue
            position += 1
            if drafts and share.row in drafts:
                first, position = position, position + len(drafts[share.row])
                if request.state is not finished:
                    of_row = drafts[share.row], guesses.get(share.row, ())
                    num_drawn = self._drafts.commit(request, *of_row, result, first, now)
                    drawn += [request] * num_drawn
                    any_ended = any_ended or request.state is finished
                continue
            if request.state is finished:
                continue  # it ended while the step ran
            if failed and position in failed:
                self._tracker.fail(request)
                any_ended = True
                continue
            # The step computed the tokens known before it; the block of the token drawn is not full yet.
            known_len = len(request.token_ids)
            if (
                known_len - request.table.registered_len >= block_size
                and request.state is RequestState.RUNNING
            ):
                request.table.register_computed(request.token_ids, known_len)
            if request.group.scores_only:
                self._tracker.finish_scored(request)
                continue
            token_id = token_ids[position]
            request.token_ids.append(token_id)
            drawn.append(request)
            if record_token(request, token_id, logprobs.get(position), now):
                any_ended = True
        assert position + 1 == len(token_ids), "the runner drew for other rows than the plan's"
        self.queue.charge_decode(drawn)
        self.counters.completion_tokens += len(drawn)
        if any_ended:
            self._running.sweep()
        return self.collect()

    def _commit_scores(
        self, scored: list[Scored], scoring: list[Request], scores: list[list[TokenLogprob] | None]
    ) -> bool:
        """Publishes the scores of running requests. Returns whether any request failed."""
        any_ended = False
        for request, share, logprobs in zip(scoring, scored, scores, strict=True):
            if request.state is RequestState.FINISHED:
                continue
            if logprobs is None:
                self._tracker.fail_scores(request)
                any_ended = True
            else:
                self._tracker.record_scores(request, share.first, logprobs)
        return any_ended

    def collect(self) -> StepOutputs:
        """Returns what has happened since the last commit or collect."""
        return self._tracker.take_outputs()

    # Inspection -------------------------------------------------------------------------------------------

    @property
    def counters(self) -> Counters:
        return self._tracker.counters

    @property
    def num_running(self) -> int:
        return len(self._running.requests)

    @property
    def running(self) -> list[Request]:
        """The requests in the batch, by rank; not to be changed."""
        return self._running.requests

    def read_clock(self) -> float:
        """Returns the time on the clock by which waits are measured."""
        return self._timing.read_clock()

    @property
    def planned_prompts(self) -> list[Request]:
        """The requests of which the last planned step computes known tokens."""
        return [request for request, _ in self._uncommitted[-1].prefill]

    @property
    def running_by_class(self) -> dict[str, int]:
        return {str(priority): self._running.num_rows[order] for priority, order in CLASS_ORDER.items()}

    @property
    def predicted_waits(self) -> dict[str, float]:
        """By class: seconds that a short request of a tenant without others would wait now."""
        return {str(priority): self.load_shedder.predicted_wait(priority) for priority in PriorityClass}

    @property
    def prompt_rate(self) -> float:
        """Prompt tokens computed per second, as measured lately; 0: not known."""
        return self._timing.prompt_rate or 0.0

    @property
    def has_requests(self) -> bool:
        return bool(self._tracker)

    @property
    def has_expired_waits(self) -> bool:
        """Whether a request may have waited too long for its adapter, or for its prompt to be fetched."""
        return self._waits.has_expired or self.fetches.has_expired

    @property
    def has_outputs(self) -> bool:
        return self._tracker.has_outputs

    def check_integrity(self, lent_blocks: set[int] | None = None) -> None:
        """Asserts that nothing is lost or held twice. Linear in everything: for idle moments and tests.

        `lent_blocks`: those held outside the scheduler.
        """
        self.pool.check_integrity()
        self.slot_allocator.check_integrity()
        self.fetches.check_integrity()
        other_blocks = self.fetches.held_ids() | (lent_blocks or set())
        self._running.check_integrity(self.pool.held_ids(), other_blocks, self.draft_adapters.held)
        for request in self.queue:
            request.check()
            assert request.state is RequestState.WAITING
            assert not request.table.block_ids
        alive = self._tracker.unfinished_requests()
        ending = [request for request in alive if request.state is RequestState.ENDING]
        fetching = list(self.fetches.waiting())
        assert len(alive) == self.num_running + len(self.queue) + len(ending) + len(fetching)
        assert all(not request.table.block_ids and request.num_pending == 1 for request in ending)
        self._check_in_flight(alive)

    def _check_in_flight(self, alive: list[Request]) -> None:
        """Asserts that exactly the tokens that uncommitted batches draw are pending, at most one
        per batch."""
        pending: dict[Request, int] = {}
        for plan in self._uncommitted:
            for request, share in zip(plan.requests, plan.batch.scheduled, strict=True):
                pending[request] = pending.get(request, 0) + share.samples
        assert all(request.num_pending == pending.get(request, 0) for request in alive)
