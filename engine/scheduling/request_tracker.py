"""Tracks every request from submission to its last message: how it begins, how it ends, and what is
published.

The planner decides what runs when; requests are moved here only because they are new, finished or cancelled.
"""

from __future__ import annotations

from engine.environment import EngineEnvironment
from engine.grammar.constraint import CompiledGrammar
from engine.outputs import Counters, StepOutputs
from engine.protocol import (
    AdapterRef,
    Finished,
    FinishReason,
    PromptScores,
    Rejected,
    Submit,
    TokenChunk,
    TokenLogprob,
)
from engine.request import Request, RequestGroup, RequestState
from engine.scheduling.adapter_waits import AdapterWaits
from engine.scheduling.drafter import Drafter
from engine.scheduling.overload import LoadShedder
from engine.scheduling.request_builder import RequestBuilder
from engine.scheduling.state import SchedulerState

CHECKPOINT_TOKENS = 256
"""Completion tokens of a request between two usage events."""


class RequestTracker:
    """All groups that have not ended. Their requests are queued, running, or ending."""

    def __init__(
        self,
        state: SchedulerState,
        builder: RequestBuilder,
        waits: AdapterWaits,
        load_shedder: LoadShedder,
        token_bytes: list[bytes],
        environment: EngineEnvironment,
        drafter: Drafter,
    ) -> None:
        """`token_bytes` is the vocabulary's, for stop strings."""
        self.counters = Counters()
        self._builder = builder
        self._queue = state.queue
        self._running = state.running
        self._slot_allocator = state.slot_allocator
        self._timing = state.timing
        self._fetches = state.fetches
        self._token_bytes = token_bytes
        self._engine_id = environment.engine_id
        self._incarnation = environment.incarnation
        self._clock = environment.clock
        self._waits = waits
        self._load_shedder = load_shedder
        self._drafter = drafter
        self._groups: dict[str, RequestGroup] = {}
        self._owes_load: set[Request] = set()
        """Requests whose prompts are fetched, and whose tenants pay for a load once they are queued."""
        self._outputs = StepOutputs()

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def has_outputs(self) -> bool:
        return bool(self._outputs)

    def take_outputs(self) -> StepOutputs:
        """Returns what has happened since the last call."""
        outputs = self._outputs
        self._outputs = StepOutputs()
        return outputs

    def unfinished_requests(self) -> list[Request]:
        """Returns every choice that has not finished. For checks."""
        choices = (choice for group in self._groups.values() for choice in group.choices)
        return [choice for choice in choices if choice.state is not RequestState.FINISHED]

    # Start of a request -----------------------------------------------------------------------------------

    def submit(self, submit: Submit, grammar: CompiledGrammar | None = None) -> Rejected | None:
        """Queues a request, or returns why it is rejected. Never raises, whatever the request contains."""
        self._timing.read_clock()
        rejected = self.validate(submit)
        if rejected is not None:
            return rejected
        rejected = self._shed(submit)
        if rejected is not None:
            self.counters.rejected += 1
            return rejected
        group = self._groups[submit.request_id] = self._builder.group(submit, grammar)
        (leader,) = self._builder.add_choices(group, 1)
        self._enqueue(leader, may_fetch=True)
        if submit.adapter is not None:
            self._waits.begin(group)
        return None

    def validate(self, submit: Submit) -> Rejected | None:
        """Returns why a request can never run, and counts it as rejected; None when it can."""
        request_id = submit.request_id
        if request_id in self._groups:
            message = f"request_id {request_id} is in use by an open request; choose another"
            rejected: Rejected | None = Rejected(request_id, "duplicate", message)
        else:
            rejected = self._builder.rejection(submit, len(self._slot_allocator.slots.slots))
        self.counters.rejected += rejected is not None
        return rejected

    def publish_rejection(self, rejected: Rejected, *, counted: bool) -> None:
        """Publishes a rejection with the next outputs; `counted` says that it is in the counters already."""
        self.counters.rejected += not counted
        self._outputs.rejected.append(rejected)

    def _shed(self, submit: Submit) -> Rejected | None:
        """Rejects a request that the queue has no room for, or makes room by displacing others."""
        load_shedder = self._load_shedder
        rejected = load_shedder.rejection(submit)
        while rejected is None:
            full = load_shedder.rejection_if_full(submit)
            if full is None:
                return None
            last = load_shedder.request_to_displace(submit)
            if last is None:
                rejected = full
            else:
                self.counters.count_shed(last.priority.value)
                self._reject_group(last.group, load_shedder.displacement_rejection(last, submit))
        self.counters.count_shed(submit.priority.value)
        return rejected

    def queue_siblings(self, group: RequestGroup) -> None:
        """Queues the other choices once choice 0's prompt is computed: they will find it in the
        prefix cache."""
        num_missing = group.submit.n - len(group.choices)
        if num_missing and not group.scores_only:
            # Before later requests of the same tenant, in their own order.
            for request in reversed(self._builder.add_choices(group, num_missing)):
                self._enqueue(request, first=True)

    def note_preemption(self, request: Request) -> None:
        """Counts the preemption of a running request, which the caller queues again."""
        request.group.preemptions += 1
        self.counters.preemptions += 1
        self.counters.count_preemption(request.priority.value)
        if request.adapter is not None:
            self._slot_allocator.add_demand(request.adapter)

    def note_admission(self, request: Request) -> None:
        """Counts a request that has entered the batch, for the first time or again."""
        group = request.group
        if group.scheduled_at is None:
            group.scheduled_at = self._clock()
            cached_before = self._fetches.admitted(request)
            group.cached_tokens = request.cached_len
            if cached_before is not None:  # what was fetched was computed for this request
                group.cached_tokens = min(request.cached_len, cached_before)
            self.counters.prompt_tokens += len(group.submit.prompt_ids)
            self.counters.cached_tokens += group.cached_tokens
            # The clocks of two machines: a negative wait is their difference.
            waited = max(0.0, group.scheduled_at - group.submit.submitted_at)
            self.counters.count_admission(request.priority.value, waited)

    # Tokens ----------------------------------------------------------------------------------------------

    def record_token(self, request: Request, token_id: int, logprob: TokenLogprob | None, now: float) -> bool:
        """Publishes the token just appended. Returns True when it was the choice's last."""
        group = request.group
        group.completion_tokens += 1
        if request.thinking is not None:
            group.reasoning_tokens += request.thinking.num_gained
        if group.first_token_at is None:
            group.first_token_at = now
            self._outputs.started.append(group.event(self._engine_id, self._incarnation, now))
            self.queue_siblings(group)
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
            self._outputs.checkpoints.append(group.event(self._engine_id, self._incarnation, now))
        return False

    def record_tokens(self, request: Request, token_ids: list[int], now: float) -> None:
        """Publishes several tokens just appended, none of which is the first or ends the choice."""
        group = request.group
        before = group.completion_tokens
        group.completion_tokens = after = before + len(token_ids)
        self._outputs.chunks.append(TokenChunk(request.request_id, request.index, token_ids))
        if before // CHECKPOINT_TOKENS < after // CHECKPOINT_TOKENS:
            self._outputs.checkpoints.append(group.event(self._engine_id, self._incarnation, now))

    def record_scores(self, request: Request, start: int, logprobs: list[TokenLogprob]) -> None:
        """Publishes the scores of prompt tokens."""
        self._outputs.scores.append(PromptScores(request.request_id, start, logprobs))

    def finish_scored(self, request: Request) -> None:
        """Ends a request that only scores its prompt: all of it is scored."""
        self._end_group(request.group, "length")

    def _stop(self, request: Request, token_id: int) -> tuple[FinishReason | None, int | str | None]:
        """Returns the finish reason if the token just appended ends the choice, and the stop that
        it matched."""
        match = None
        thinking = request.thinking
        if request.matcher is not None:
            if thinking is not None:
                data = thinking.answer_bytes
            else:
                data = self._token_bytes[token_id] if token_id < len(self._token_bytes) else b""
            match = request.matcher.push(data)
        known_len = len(request.token_ids)
        if known_len >= request.min_len:
            stop = request.stop_ids.get(token_id)
            is_thought = thinking is not None and thinking.token_was_thought
            if token_id in request.stop_ids and not (is_thought and stop is not None):
                return "stop", stop
            if match is not None:
                return "stop", match.stop
        if known_len >= request.limit:
            return "length", None
        return None, None

    # End of a request -------------------------------------------------------------------------------------

    def fail(self, request: Request) -> None:
        """Ends a choice that cannot go on: its logits were not finite, or its grammar allowed nothing. Its
        blocks leave the prefix cache.
        """
        group = request.group
        if group.scores_only:
            return self.fail_scores(request)
        request.table.invalidate()
        self.counters.errors += 1
        self._outputs.chunks.append(TokenChunk(request.request_id, request.index, [], None, "error"))
        self.queue_siblings(group)
        self._end(request, "error")
        return None

    def fail_scores(self, request: Request) -> None:
        """Ends all choices of a request whose prompt's logits were not finite."""
        request.table.invalidate()
        self.counters.errors += 1
        self._end_group(request.group, "error")

    def abort(self, request_id: str) -> None:
        """Ends all choices of a request and frees what they hold. Unknown ids are ignored."""
        group = self._groups.get(request_id)
        if group is not None:
            self.counters.aborted += 1
            self._end_group(group, "abort")

    def reject_waiting_for(self, digest: str, error: str) -> None:
        """Ends the requests that wait for an adapter that could not be loaded."""
        message = f"adapter {digest} could not be loaded: {error}"
        waiting = {
            request.request_id: request.group
            for request in (*self._queue, *self._fetches.waiting())
            if request.adapter and request.adapter.digest == digest
        }
        for group in waiting.values():
            if group.scheduled_at is None:
                self._reject_group(group, Rejected(group.submit.request_id, "adapter_unavailable", message))
            else:
                self.counters.errors += 1
                self._end_group(group, "error")

    def reject_overdue(self) -> None:
        """Rejects requests that never ran and whose wait for an adapter has expired."""
        for wait in self._waits.pop_expired():
            group = self._groups.get(wait.request_id)
            if group is None or group.arrival != wait.arrival or group.scheduled_at is not None:
                continue
            if self._slot_allocator.admits(wait.adapter):
                self._waits.begin(group)  # it waits for something else; the adapter may be evicted meanwhile
                continue
            message = f"this model's adapter was not loaded within {self._waits.limit_s:g} s; retry shortly"
            self._reject_group(group, Rejected(wait.request_id, "adapter_loading", message))

    def _end(self, request: Request, reason: FinishReason) -> None:
        """Ends one choice, and the request with the last one. The caller removes it from the running list."""
        if request.state is RequestState.RUNNING:
            self._running.vacate(request, RequestState.FINISHED)
        elif request.state is RequestState.WAITING:
            self._unqueue(request)
        else:
            request.leave(RequestState.FINISHED)
        self._drafter.forget(request)
        group = request.group
        group.reasons[request.index] = reason
        group.num_unfinished -= 1
        if not group.num_unfinished:
            self._close(group)

    def _end_group(self, group: RequestGroup, reason: FinishReason) -> None:
        """Ends every choice that is running or has not begun."""
        for index in range(len(group.choices), group.submit.n):
            group.reasons[index] = reason
            group.num_unfinished -= 1
            self._outputs.chunks.append(TokenChunk(group.submit.request_id, index, [], None, reason))
        for request in group.choices:
            if request.state is not RequestState.FINISHED:
                self._outputs.chunks.append(TokenChunk(request.request_id, request.index, [], None, reason))
                self._end(request, reason)
        self._running.sweep()

    def _reject_group(self, group: RequestGroup, rejected: Rejected) -> None:
        """Rejects a request that never ran."""
        for request in group.choices:
            self._unqueue(request)
        del self._groups[group.submit.request_id]
        self.counters.rejected += 1
        self._outputs.rejected.append(rejected)

    def _close(self, group: RequestGroup) -> None:
        request_id = group.submit.request_id
        del self._groups[request_id]
        now = self._clock()
        group.finished_at = now
        event = group.event(self._engine_id, self._incarnation, now)
        self._outputs.finished.append((Finished(request_id, event.usage), event))

    # The queue --------------------------------------------------------------------------------------------

    def queue_fetched(self) -> None:
        """Queues the requests whose prompts are fetched, or will not be."""
        self._fetches.give_up_expired()
        for request in self._fetches.take_ready():
            self._queue.push(request, self._timing.now)
            if request in self._owes_load:
                assert request.adapter is not None
                self._owes_load.discard(request)
                self._queue.charge_load(request, request.adapter)

    def _enqueue(self, request: Request, first: bool = False, may_fetch: bool = False) -> None:
        """Queues a request; with `may_fetch` only once its prompt is fetched, if it is to be."""
        ref = request.adapter
        is_missed = ref is not None and self._is_first_demand(ref)
        if ref is not None:
            self._slot_allocator.add_demand(ref)
        if may_fetch and self._fetches.begin(request):
            if is_missed:
                self._owes_load.add(request)
            return
        self._queue.push(request, self._timing.now, first)
        if ref is not None and is_missed:
            self._queue.charge_load(request, ref)

    def _is_first_demand(self, ref: AdapterRef) -> bool:
        """Returns whether this is the first request for an adapter that has no slot: it pays for the load."""
        return ref.digest not in self._slot_allocator and self._slot_allocator.slots.find(ref.digest) is None

    def _unqueue(self, request: Request) -> None:
        self._owes_load.discard(request)
        if not self._fetches.forget(request):
            self._queue.discard(request)
        if request.adapter is not None:
            self._slot_allocator.remove_demand(request.adapter)
        request.leave(RequestState.FINISHED)
