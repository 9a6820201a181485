"""What runs in the next step, and to whom what a step drew belongs.

Owns the plans of steps: rows, blocks and slot references are given and taken here. There are no prefill and
decode phases: each request has computed tokens chasing its total tokens, all under one token budget. Refuses
to know how a batch is run, messages are sent, adapters are loaded, and how requests begin and end (`Roster`).

Order: running requests are served first, by rank (class, then arrival), each at least one token. When
blocks run out, the last in rank is preempted: its blocks go, its tokens stay, and it returns before others
of its class. The first in rank can take every other request's blocks, and the door turns away what does not
fit alone, so something always progresses. Only then new requests are admitted, in the order of `FairQueue`;
one that lacks blocks holds up the rest, one whose adapter has no slot does not.

Overlap: a request advances when its step is planned, so that the next step can be planned before this one
has ended. With one step in flight:

    host    schedule(n) launch(n) | schedule(n+1) launch(n+1) .. commit(n) | schedule(n+2) launch(n+2) ..
    device                  [========== step n ==========][========== step n+1 ==========][== step n+2 ==

What a limit ends is known ahead: when step n draws a request's last token, the request is in no later step,
and from schedule(n+1) on it holds nothing. What a token ends (end of sequence, stops), a failure and an abort
are learnt after step n+1 was launched: what that draws for the row is dropped at commit(n+1), neither told,
billed nor named in the prefix cache. A preempted request's token in flight counts, and is known before it
returns.

Who owns memory when. A row, a block or a slot reference is held from the schedule that gives it to whatever
takes it back: commit(n) (ended by a token), schedule(n+1) (preempted, or ended by its limit), an abort in
between. Then it is free on the host, and the next schedule may give it on, although the device may read and
write it until the end of the last step launched so far. No harm comes of that: its next owner's writes are
launched later, and steps run in order. Only copies that are no steps have to wait for that end: adapters
loaded into a slot. Likewise the prefix cache names blocks of a prompt when the step that computes them is
planned: whoever finds them runs in a later step.

Scores of prompt tokens belong to a step as draws do: a token counts as scored when the step that scores it is
planned, so that it is scored once, whatever is preempted and computed again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from secrets import randbits

from engine.adapter_waits import AdapterWaits
from engine.admission import Limits
from engine.batch import Batch, Scheduled, Scored, StepResult
from engine.fairness import FairQueue
from engine.intake import Intake
from engine.kv_cache import BlockPool
from engine.lora.residency import Residency
from engine.lora.slots import SlotTable
from engine.outputs import Counters, StepOutputs
from engine.protocol import AdapterRef, PriorityClass, Rejected, Submit, TokenLogprob
from engine.request import Request, RequestState
from engine.roster import Roster
from engine.running import Running

MAX_UNCOMMITTED = 2
"""Batches planned and not committed: one that runs, and one behind it."""

FLEX = PriorityClass.FLEX

_Shares = list[tuple[Request, Scheduled]]


class Scheduler:
    """Call from one thread, in turns: any number of submit, abort and so on, then schedule, then commit.

    Batches are committed in the order in which they were planned; one may be planned over another.
    """

    def __init__(
        self,
        limits: Limits,
        pool: BlockPool,
        slots: SlotTable,
        eos_ids: Iterable[int],
        token_bytes: list[bytes],
        engine_id: str,
        incarnation: str,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        draw_seed: Callable[[], int] = lambda: randbits(63),
    ) -> None:
        """`token_bytes` is the vocabulary's, for stop strings. `clock` gives Unix seconds."""
        self.limits = limits
        self.pool = pool
        self.residency = Residency(slots, monotonic, limits.slot_patience_s)
        self.queue = FairQueue()
        self.engine_id = engine_id
        self.incarnation = incarnation
        self._clock = clock
        self._waits = AdapterWaits(monotonic, limits.adapter_wait_s)
        self._running = Running(limits.max_rows, self.residency)
        self._roster = Roster(
            Intake(limits, pool, eos_ids, draw_seed),
            self.queue,
            self._running,
            self.residency,
            token_bytes,
            engine_id,
            incarnation,
            clock,
            self._waits,
        )
        # Uncommitted batches, with the requests parallel to their shares and to what they score.
        self._uncommitted: deque[tuple[Batch, list[Request], list[Request]]] = deque()
        self._planned: list[Request] = []  # parallel to the shares of the batch being planned
        self._scoring: list[Request] = []  # parallel to what it scores
        self._flex_left = 0  # tokens of FLEX prompts that it may still compute
        self._at_limit: list[Request] = []  # planned to draw the last token their limit allows
        self._step = 0

    # Requests come and go --------------------------------------------------------------------------------

    def submit(self, submit: Submit) -> Rejected | None:
        """Queue a request, or say why not. Never raises, whatever is in it."""
        return self._roster.submit(submit)

    def abort(self, request_id: str) -> None:
        """End all choices of a request and free what they hold. Unknown ids are ignored."""
        self._roster.abort(request_id)

    def prefetch(self, ref: AdapterRef, pinned: bool | None = None) -> None:
        """Load an adapter nobody waits for yet, if a slot can be spared; keep it, or no longer."""
        self.residency.prefetch(ref, pinned)

    def adapter_loaded(self, slot: int, digest: str, error: str | None) -> None:
        """A load has ended. On an error, requests waiting for the adapter end too."""
        if error is None:
            self.residency.loaded(slot, digest)
        else:
            self.residency.failed(slot, digest)
            self._roster.turn_away(digest, error)

    # A step ----------------------------------------------------------------------------------------------

    def schedule(self) -> Batch | None:
        """Plan the next step, or None when nothing can run as long as nothing is committed."""
        assert len(self._uncommitted) < MAX_UNCOMMITTED, "the batch before the last is not committed"
        batch = Batch(self._step)
        prefill: _Shares = []
        self._planned, self._scoring = [], []
        self._retire()
        self._flex_left = self._flex_tokens()
        num_running = self.num_running
        self._roster.turn_away_overdue()
        self.residency.take_turns()
        budget = self._serve_running(batch, prefill)
        if budget > 0 and self.num_running == num_running and self.queue:
            self._admit(batch, prefill, budget)
        for request, share in prefill:
            if share.num_tokens > 1:
                self._add(batch, request, share)
        if not batch.scheduled:
            assert not self.num_running, "running requests must progress"
            return None
        self._share_prefixes(prefill)
        self._step += 1
        batch.freed_rows = self._running.take_freed_rows()
        self._uncommitted.append((batch, self._planned, self._scoring))
        return batch

    def commit(self, batch: Batch, result: StepResult) -> StepOutputs:
        """Take in what the oldest batch drew. Returns all there is to tell since the last commit."""
        planned_batch, planned, scoring = self._uncommitted.popleft()
        assert planned_batch is batch, "another batch was to be committed first"
        now = self._clock()
        any_ended = bool(scoring) and self._commit_scores(batch.scored, scoring, result.scores)
        block_size, emit, finished = self.pool.block_size, self._roster.emit, RequestState.FINISHED
        token_ids, logprobs, failed = result.token_ids, result.logprobs, result.failed
        drawn: list[Request] = []
        position = -1
        for request, share in zip(planned, batch.scheduled, strict=True):
            if not share.samples:
                continue
            position += 1
            if request.state is finished:
                continue  # it ended while the step ran
            if failed and position in failed:
                self._roster.fail(request)
                any_ended = True
                continue
            if request.group.scores_only:
                self._roster.end_scored(request)
                continue
            # The step has computed what was known before it; the block of the token drawn is not full yet.
            known_len = len(request.token_ids)
            if known_len - request.table.named_len >= block_size and request.state is RequestState.RUNNING:
                request.table.name_computed(request.token_ids, known_len)
            token_id = token_ids[position]
            request.token_ids.append(token_id)
            drawn.append(request)
            if emit(request, token_id, logprobs.get(position), now):
                any_ended = True
        assert position + 1 == len(token_ids), "the runner drew for other rows than it was told to"
        self.queue.charge_decode(drawn)
        self.counters.completion_tokens += len(drawn)
        if any_ended:
            self._running.sweep()
        return self.collect()

    def _commit_scores(
        self, scored: list[Scored], scoring: list[Request], scores: list[list[TokenLogprob] | None]
    ) -> bool:
        """Tell of the scores of requests that go on. Whether any ended, for want of finite numbers."""
        any_ended = False
        for request, share, logprobs in zip(scoring, scored, scores, strict=True):
            if request.state is RequestState.FINISHED:
                continue
            if logprobs is None:
                self._roster.fail_scores(request)
                any_ended = True
            else:
                self._roster.tell_scores(request, share.first, logprobs)
        return any_ended

    def collect(self) -> StepOutputs:
        """What has happened since the last commit or collect."""
        return self._roster.take_outputs()

    # Looking in ------------------------------------------------------------------------------------------

    @property
    def counters(self) -> Counters:
        return self._roster.counters

    @property
    def num_running(self) -> int:
        return len(self._running.requests)

    @property
    def has_requests(self) -> bool:
        return bool(self._roster)

    @property
    def is_overdue(self) -> bool:
        """Whether a request may have waited for its adapter long enough."""
        return self._waits.any_over

    @property
    def has_outputs(self) -> bool:
        return self._roster.has_outputs

    def check_integrity(self) -> None:
        """Assert that nothing is lost or held twice. Linear in everything: for idle moments and tests."""
        self.pool.check_integrity()
        self.residency.check_integrity()
        self._running.check_integrity(self.pool.held_ids())
        for request in self.queue:
            request.check()
            assert request.state is RequestState.WAITING
            assert not request.table.block_ids
        alive = self._roster.unfinished()
        ending = [request for request in alive if request.state is RequestState.ENDING]
        assert len(alive) == self.num_running + len(self.queue) + len(ending)
        assert all(not request.table.block_ids and request.num_pending == 1 for request in ending)
        self._check_in_flight(alive)

    def _check_in_flight(self, alive: list[Request]) -> None:
        """Exactly the tokens that uncommitted batches draw are pending, one per batch at most."""
        pending: dict[Request, int] = {}
        for batch, planned, _ in self._uncommitted:
            for request, share in zip(planned, batch.scheduled, strict=True):
                pending[request] = pending.get(request, 0) + share.samples
        assert all(request.num_pending == pending.get(request, 0) for request in alive)

    # Planning --------------------------------------------------------------------------------------------

    def _retire(self) -> None:
        """Take back what requests hold whose last token is in flight: they need no further step."""
        if not self._at_limit:
            return
        for request in self._at_limit:
            if request.state is RequestState.RUNNING:
                self._take_back(request, RequestState.ENDING)
        self._at_limit.clear()
        self._running.sweep()

    def _serve_running(self, batch: Batch, prefill: _Shares) -> int:
        """Give every running request its share, preempting from the end. Returns the budget left."""
        running, planned, scheduled = self._running.requests, self._planned, batch.scheduled
        budget = self.limits.max_batch_tokens
        index = 0
        while index < len(running):
            request = running[index]
            index += 1
            computed_len, total_len = request.computed_len, request.total_len
            if total_len - computed_len == 1:
                if computed_len == request.table.capacity and not self._grow(request, batch):
                    break  # it was the last, and had to go itself
                planned.append(request)
                scheduled.append(request.decode_share)
                request.computed_len = total_len
                request.total_len = total_len = total_len + 1
                if total_len == request.limit:
                    self._at_limit.append(request)
                budget -= 1
            else:
                # Its blocks were all taken at admission. One token is kept for each row after it.
                budget -= self._plan(batch, prefill, request, budget - (len(running) - index))
        return budget

    def _flex_tokens(self) -> int:
        """Tokens of FLEX prompts that a step may compute: not all, where that would make others wait."""
        limits, running, queue = self.limits, self._running.requests, self.queue
        others = (running and running[0].priority is not FLEX) or len(queue) > queue.num_waiting(FLEX)
        if limits.max_flex_tokens is None or not others:
            return limits.max_batch_tokens
        # All at once and then not for a while: most steps of the others take no longer than without.
        return 0 if self._step % limits.flex_interval else limits.max_flex_tokens

    def _plan(self, batch: Batch, prefill: _Shares, request: Request, budget: int) -> int:
        """Compute as many of a request's known tokens as the budget allows. Returns how many."""
        begin = request.computed_len
        num_left = request.total_len - begin
        if request.priority is FLEX:
            budget = max(1, min(budget, self._flex_left))
        num_tokens = min(num_left, budget)
        if request.priority is FLEX:
            self._flex_left -= num_tokens
        share = Scheduled(request.row, num_tokens, num_tokens == num_left)
        prefill.append((request, share))
        request.computed_len += num_tokens
        request.total_len += share.samples
        scored = request.take_scored(begin)
        if scored is not None:
            batch.scored.append(scored)
            self._scoring.append(request)
        if num_tokens == 1:  # wider shares come last
            self._add(batch, request, share)
        return num_tokens

    def _add(self, batch: Batch, request: Request, share: Scheduled) -> None:
        self._planned.append(request)
        batch.scheduled.append(share)
        if request.total_len == request.limit:
            self._at_limit.append(request)

    def _grow(self, request: Request, batch: Batch) -> bool:
        """One more block for a running request. False when the request itself had to be preempted."""
        while not self.pool.num_free:
            victim = self._running.requests.pop()
            self._preempt(victim)
            if victim is request:
                return False
        batch.grown.append((request.row, [request.table.grow()]))
        return True

    def _preempt(self, request: Request) -> None:
        request.group.preemptions += 1
        self.counters.preemptions += 1
        if request.adapter is not None:
            self.residency.expect(request.adapter)
        self._take_back(request, RequestState.WAITING)
        self.queue.push_returning(request)

    def _take_back(self, request: Request, state: RequestState) -> None:
        """End a request's stay for reasons of planning: all it has computed is known, and stays findable."""
        request.table.name_computed(request.token_ids, request.computed_len)
        self._running.vacate(request, state)

    def _admit(self, batch: Batch, prefill: _Shares, budget: int) -> None:
        """Let waiting requests in while there are tokens, rows and blocks for them."""
        while budget > 0 and not self._running.is_full:
            closed = None if self._flex_left > 0 else FLEX
            request = self.queue.pick(self.residency.admits, closed)
            if request is None:
                break
            total_len = request.total_len
            matched = request.table.match(request.token_ids, request.num_reusable)
            num_needed = -(-total_len // self.pool.block_size) - len(matched)
            # One block is left for each running request to grow: else the next step would preempt.
            if self.pool.num_free_besides(matched) < num_needed + self.num_running:
                break
            self.queue.take(request)
            batch.new_rows.append(self._running.enter(request, matched))
            self._roster.note_admission(request)
            if total_len == len(request.group.submit.prompt_ids):
                self.queue.charge_prefill(request, total_len - request.cached_len)
            budget -= self._plan(batch, prefill, request, budget)
        self.queue.unpark()

    def _share_prefixes(self, prefill: _Shares) -> None:
        """Let requests of later steps find what this one computes of known tokens, siblings first of all."""
        for request, share in prefill:
            request.table.name_computed(request.token_ids, request.computed_len)
            if share.samples:
                self._roster.queue_siblings(request.group)
