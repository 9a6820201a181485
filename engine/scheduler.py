"""What runs in the next step, and what becomes of what the step drew.

Owns the requests, from submission to the last chunk, and with them rows, blocks and slot references. There
are no prefill and decode phases: each request has computed tokens chasing its total tokens, all under one
token budget. Refuses to know how a batch is run, messages are sent and adapters are loaded.

Order: running requests are served first, by rank (class, then arrival), each at least one token. When
blocks run out, the last in rank is preempted: its blocks go, its tokens stay, and it returns before others
of its class. The first in rank can take every other request's blocks, and the door turns away what does not
fit alone, so something always progresses. Only then new requests are admitted, in the order of `FairQueue`;
one that lacks blocks holds up the rest, one whose adapter has no slot does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from secrets import randbits

from engine.admission import Limits
from engine.batch import Batch, Scheduled, StepResult
from engine.fairness import FairQueue
from engine.intake import Intake
from engine.kv_cache import BlockPool
from engine.lora.residency import Residency
from engine.lora.slots import SlotTable
from engine.outputs import Counters, StepOutputs
from engine.protocol import (
    AdapterRef,
    Finished,
    FinishReason,
    RejectCode,
    Rejected,
    Submit,
    TokenChunk,
    TokenLogprob,
)
from engine.request import Request, RequestGroup, RequestState
from engine.running import Running

CHECKPOINT_TOKENS = 256
"""Completion tokens of a request between two usage events."""

_WideShares = list[tuple[Request, Scheduled]]
"""Shares of several tokens: they come last in a batch."""


class Scheduler:
    """Call from one thread, in turns: any number of submit, abort and so on, then schedule, then commit."""

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
        self.counters = Counters()
        self._intake = Intake(limits, pool, eos_ids, draw_seed)
        self._token_bytes = token_bytes
        self.engine_id = engine_id
        self.incarnation = incarnation
        self._clock = clock
        self._groups: dict[str, RequestGroup] = {}
        self._running = Running(limits.max_rows, self.residency)
        self._planned: list[Request] = []  # parallel to the last batch's shares, until committed
        self._step = 0
        self._outputs = StepOutputs()

    # Requests come and go --------------------------------------------------------------------------------

    def submit(self, submit: Submit) -> Rejected | None:
        """Queue a request, or say why not. Never raises, whatever is in it."""
        request_id = submit.request_id
        if request_id in self._groups:
            rejected: Rejected | None = Rejected(
                request_id, "duplicate", f"request_id {request_id} is in use by a request that goes on"
            )
        else:
            num_slots = len(self.residency.slots.slots)
            rejected = self._intake.refusal(submit, len(self.queue), num_slots)
        if rejected is not None:
            self.counters.rejected += 1
            return rejected
        group = self._groups[request_id] = self._intake.group(submit)
        (leader,) = self._intake.add_choices(group, 1)
        self._enqueue(leader)
        return None

    def abort(self, request_id: str) -> None:
        """End all choices of a request and free what they hold. Unknown ids are ignored."""
        group = self._groups.get(request_id)
        if group is not None:
            self.counters.aborted += 1
            self._end_group(group, "abort")

    def prefetch(self, ref: AdapterRef) -> None:
        """Load an adapter nobody waits for yet, if a slot can be spared."""
        self.residency.prefetch(ref)

    def adapter_loaded(self, slot: int, digest: str, error: str | None) -> None:
        """A load has ended.

        On an error, requests waiting for the adapter end too: no one knows it will ever load.
        """
        if error is None:
            self.residency.loaded(slot, digest)
            return
        self.residency.failed(slot, digest)
        message = f"adapter {digest} could not be loaded: {error}"
        waiting = {r.request_id: r.group for r in self.queue if r.adapter and r.adapter.digest == digest}
        for group in waiting.values():
            if group.scheduled_at is None:
                self._reject_group(group, "adapter_unavailable", message)
            else:
                self.counters.errors += 1
                self._end_group(group, "error")

    # A step ----------------------------------------------------------------------------------------------

    def schedule(self) -> Batch | None:
        """Plan the next step, or None when nothing can run. Commit every batch before the next is planned."""
        assert not self._planned, "the last batch is not committed"
        batch = Batch(self._step)
        wide: _WideShares = []
        num_running = self.num_running
        self.residency.take_turns()
        budget = self._serve_running(batch, wide)
        if budget > 0 and self.num_running == num_running and self.queue:
            self._admit(batch, wide, budget)
        for request, share in wide:
            self._planned.append(request)
            batch.scheduled.append(share)
        if not batch.scheduled:
            assert not self.num_running, "running requests must progress"
            return None
        self._step += 1
        batch.freed_rows = self._running.take_freed_rows()
        return batch

    def commit(self, batch: Batch, result: StepResult) -> StepOutputs:
        """Take in what the batch drew. Returns all there is to tell since the last commit."""
        planned = self._planned
        self._planned = []
        now = self._clock()
        block_size = self.pool.block_size
        token_ids, logprobs, failed = result.token_ids, result.logprobs, result.failed
        drawn: list[Request] = []
        any_ended = False
        position = -1
        for request, share in zip(planned, batch.scheduled, strict=True):
            position += share.samples
            if request.state is not RequestState.RUNNING:
                continue  # aborted while the step ran
            request.computed_len += share.num_tokens
            if share.samples:
                if position in failed:
                    self._fail(request)
                    any_ended = True
                    continue
                token_id = token_ids[position]
                request.token_ids.append(token_id)
                drawn.append(request)
            if request.computed_len - request.table.named_len >= block_size:
                request.table.name_computed(request.token_ids, request.computed_len)
            if share.samples and self._emit(request, token_id, logprobs.get(position), now):
                any_ended = True
        assert position + 1 == len(token_ids), "the runner drew for other rows than it was told to"
        self.queue.charge_decode(drawn)
        self.counters.completion_tokens += len(drawn)
        if any_ended:
            self._running.sweep()
        return self.collect()

    def collect(self) -> StepOutputs:
        """What has happened since the last commit or collect."""
        outputs = self._outputs
        self._outputs = StepOutputs()
        return outputs

    # Looking in ------------------------------------------------------------------------------------------

    @property
    def num_running(self) -> int:
        return len(self._running.requests)

    @property
    def has_requests(self) -> bool:
        return bool(self._groups)

    @property
    def has_outputs(self) -> bool:
        return bool(self._outputs)

    def check_integrity(self) -> None:
        """Assert that nothing is lost or held twice. Linear in everything: for idle moments and tests."""
        self.pool.check_integrity()
        self.residency.check_integrity()
        self._running.check_integrity(self.pool.held_ids())
        for request in self.queue:
            request.check()
            assert request.state is RequestState.WAITING
            assert not request.table.block_ids
        choices = [choice for group in self._groups.values() for choice in group.choices]
        num_alive = sum(choice.state is not RequestState.FINISHED for choice in choices)
        assert num_alive == self.num_running + len(self.queue)

    # Planning --------------------------------------------------------------------------------------------

    def _serve_running(self, batch: Batch, wide: _WideShares) -> int:
        """Give every running request its share, preempting from the end. Returns the budget left."""
        running, planned, scheduled = self._running.requests, self._planned, batch.scheduled
        budget = self.limits.max_batch_tokens
        index = 0
        while index < len(running):
            request = running[index]
            index += 1
            computed_len = request.computed_len
            num_left = len(request.token_ids) - computed_len
            if num_left == 1:
                if computed_len == request.table.capacity and not self._grow(request, batch):
                    break  # it was the last, and had to go itself
                planned.append(request)
                scheduled.append(request.decode_share)
                budget -= 1
            else:
                # Its blocks were all taken at admission. One token is kept for each row after it.
                num_tokens = min(num_left, budget - (len(running) - index))
                self._plan(batch, wide, request, num_tokens, num_left)
                budget -= num_tokens
        return budget

    def _plan(
        self, batch: Batch, wide: _WideShares, request: Request, num_tokens: int, num_left: int
    ) -> None:
        share = Scheduled(request.row, num_tokens, num_tokens == num_left)
        if num_tokens > 1:
            wide.append((request, share))
        else:
            self._planned.append(request)
            batch.scheduled.append(share)

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
        self._running.vacate(request, RequestState.WAITING)
        self.queue.push_returning(request)

    def _admit(self, batch: Batch, wide: _WideShares, budget: int) -> None:
        """Let waiting requests in while there are tokens, rows and blocks for them."""
        while budget > 0 and not self._running.is_full:
            request = self.queue.pick(self.residency.admits)
            if request is None:
                break
            total_len = request.total_len
            matched = request.table.match(request.token_ids)
            num_needed = -(-total_len // self.pool.block_size) - len(matched)
            # One block is left for each running request to grow: else the next step would preempt.
            if self.pool.num_free_besides(matched) < num_needed + self.num_running:
                break
            self.queue.take(request)
            batch.new_rows.append(self._running.enter(request, matched))
            self._note_admission(request)
            num_left = total_len - request.cached_len
            num_tokens = min(num_left, budget)
            self._plan(batch, wide, request, num_tokens, num_left)
            budget -= num_tokens
        self.queue.unpark()

    def _note_admission(self, request: Request) -> None:
        group = request.group
        if group.scheduled_at is None:
            group.scheduled_at = self._clock()
            group.cached_tokens = request.cached_len
            self.counters.prompt_tokens += len(group.submit.prompt_ids)
            self.counters.cached_tokens += request.cached_len
            # Two machines' clocks: a wait below zero is their difference, not a wait.
            waited = max(0.0, group.scheduled_at - group.submit.submitted_at)
            self.counters.admit(request.priority.value, waited)
        if request.total_len == len(group.submit.prompt_ids):
            self.queue.charge_prefill(request, request.total_len - request.cached_len)

    # Tokens and ends -------------------------------------------------------------------------------------

    def _emit(self, request: Request, token_id: int, logprob: TokenLogprob | None, now: float) -> bool:
        """Tell of the token just appended. True when it was the choice's last."""
        group = request.group
        group.completion_tokens += 1
        if group.first_token_at is None:
            group.first_token_at = now
            self._outputs.started.append(group.event(self.engine_id, self.incarnation, now))
            self._queue_siblings(group)
        reason: FinishReason | None = None
        stop: int | str | None = None
        if (
            request.matcher is not None
            or token_id in request.stop_ids
            or len(request.token_ids) >= request.limit
        ):
            reason, stop = self._stop(request, token_id)
        chunk_logprobs = None if logprob is None else [logprob]
        self._outputs.chunks.append(
            TokenChunk(request.request_id, request.index, [token_id], chunk_logprobs, reason, stop)
        )
        if reason is not None:
            self._end(request, reason)
            return True
        if not group.completion_tokens % CHECKPOINT_TOKENS:
            self._outputs.checkpoints.append(group.event(self.engine_id, self.incarnation, now))
        return False

    def _stop(self, request: Request, token_id: int) -> tuple[FinishReason | None, int | str | None]:
        """Whether the token just appended ends the choice, and what it matched."""
        match = None
        if request.matcher is not None:
            data = self._token_bytes[token_id] if token_id < len(self._token_bytes) else b""
            match = request.matcher.push(data)
        total_len = len(request.token_ids)
        if total_len >= request.min_len:
            if token_id in request.stop_ids:
                return "stop", request.stop_ids[token_id]
            if match is not None:
                return "stop", match.stop
        if total_len >= request.limit:
            return "length", None
        return None, None

    def _fail(self, request: Request) -> None:
        """A choice whose logits were not finite ends alone, and leaves nothing in the prefix cache."""
        request.table.forget()
        self.counters.errors += 1
        group = request.group
        self._outputs.chunks.append(TokenChunk(request.request_id, request.index, [], None, "error"))
        self._queue_siblings(group)
        self._end(request, "error")

    def _end(self, request: Request, reason: FinishReason) -> None:
        """One choice is over; with the last one, the request. The caller takes it off the running list."""
        if request.state is RequestState.RUNNING:
            self._running.vacate(request, RequestState.FINISHED)
        else:
            self._unqueue(request)
        group = request.group
        group.reasons[request.index] = reason
        group.num_unfinished -= 1
        if not group.num_unfinished:
            self._close(group)

    def _end_group(self, group: RequestGroup, reason: FinishReason) -> None:
        """Every choice that goes on is over now, and those that have not begun never will."""
        for index in range(len(group.choices), group.submit.n):
            group.reasons[index] = reason
            group.num_unfinished -= 1
            self._outputs.chunks.append(TokenChunk(group.submit.request_id, index, [], None, reason))
        for request in group.choices:
            if request.state is not RequestState.FINISHED:
                self._outputs.chunks.append(TokenChunk(request.request_id, request.index, [], None, reason))
                self._end(request, reason)
        self._running.sweep()

    def _reject_group(self, group: RequestGroup, code: RejectCode, message: str) -> None:
        """The request never ran, and never will."""
        for request in group.choices:
            self._unqueue(request)
        del self._groups[group.submit.request_id]
        self.counters.rejected += 1
        self._outputs.rejected.append(Rejected(group.submit.request_id, code, message))

    def _close(self, group: RequestGroup) -> None:
        request_id = group.submit.request_id
        del self._groups[request_id]
        now = self._clock()
        group.finished_at = now
        event = group.event(self.engine_id, self.incarnation, now)
        self._outputs.finished.append((Finished(request_id, event.usage), event))

    def _unqueue(self, request: Request) -> None:
        self.queue.discard(request)
        if request.adapter is not None:
            self.residency.dismiss(request.adapter)
        request.leave(RequestState.FINISHED)

    # Beginnings ------------------------------------------------------------------------------------------

    def _queue_siblings(self, group: RequestGroup) -> None:
        """The first choice's prompt is computed: the other choices will find it in the prefix cache."""
        num_missing = group.submit.n - len(group.choices)
        if num_missing:
            # Before later requests of the same tenant, in their own order.
            for request in reversed(self._intake.add_choices(group, num_missing)):
                self._enqueue(request, first=True)

    def _enqueue(self, request: Request, first: bool = False) -> None:
        if request.adapter is not None:
            self.residency.expect(request.adapter)
        self.queue.push(request, first)
