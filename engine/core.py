"""Runs the engine's step loop without its process: schedule, launch, commit.

Sockets and journals are the server's, tensors the runner's. One thread calls the core, except for
`adapter_loaded` and `prompt_event`, which any thread may call.

With a runner of depth 1 the next step is planned and launched before the tokens of this one are read, so that
the device works while the host publishes results and prepares what follows:

    step()  schedule(n+1), launch(n+1), wait for step n, fill_masks(n+1), commit(n)

Rows that are held to a grammar cannot be drawn at the launch: their masks depend on the tokens of step n.
They are filled in other threads, while the device computes step n+1 and the host commits step n and plans
step n+2; the draws are queued at the next launch.

A step with drafts is committed before the next one is planned: only then are the lengths of its rows known.
The scheduler plans nothing until then, and neither does it where the tokens in flight are worth waiting for.
The next step is launched right behind such a commit, before the caller has its results.

With depth 0 a launch returns when its step is over, and the step is committed at once.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog

from engine.batch import Batch, LaunchedStep
from engine.grammar.admission import GrammarAdmission
from engine.inspection import build_view, create_history, resident_adapters
from engine.outputs import DeviceGauges, DeviceMemory, RunnerCounters, StepOutputs
from engine.prefill.exporting import ExportEvent, PromptExporter
from engine.protocol import AdapterRef, EngineStats, EngineView, PriorityClass, Rejected, Submit
from engine.scheduling.prompt_fetches import ArrivedBlocks, FetchEnded
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.validation import is_digest

log = structlog.get_logger(__name__)

MAX_WRITES_PER_STEP = 2
"""Messages with blocks of other engines that are written before a step: many come at once, and each would
delay the launch by what it takes to queue it."""

CAPTURE_EVERY_S = 1.0
"""Between two graphs that are captured while requests run. Each takes as long as several steps."""

PromptEvent = ArrivedBlocks | FetchEnded | ExportEvent
"""What is reported of prompts that move between engines."""


class Runner(Protocol):
    """Runs batches on the device, in order, and draws tokens."""

    @property
    def depth(self) -> int:
        """0: a step is over when its launch returns. 1: a step is launched before the last one is over."""
        ...

    @property
    def counters(self) -> RunnerCounters: ...

    def launch(self, batch: Batch) -> LaunchedStep: ...


class Captures(Protocol):
    """Sizes of step that a runner has not captured yet. Their steps take a little longer until then."""

    @property
    def num_postponed(self) -> int: ...

    def capture_next(self) -> None:
        """Captures one, once the results of all steps that were launched are read."""
        ...


@dataclass(frozen=True, slots=True)
class _InFlightStep:
    """A step that has been launched and not yet committed."""

    batch: Batch
    launched: LaunchedStep
    began: float


class EngineCore:
    """Schedules, launches and commits steps, and counts what they do."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        gauges: Callable[[], DeviceGauges] = DeviceGauges,
        memory: DeviceMemory | None = None,
        grammars: GrammarAdmission | None = None,
        captures: Captures | None = None,
    ) -> None:
        """`gauges` is called whenever `stats` is read. Without `grammars`, requests with one are rejected.

        `captures` are made between steps: one after the other while there are no requests, now and then
        while there are.
        """
        assert runner.depth in (0, 1), f"depth {runner.depth} is not supported"
        self.scheduler = scheduler
        self.runner = runner
        self._gauges = gauges
        self._memory = DeviceMemory() if memory is None else memory
        self.grammars = grammars
        self._captures = captures
        self._last_capture_at = time.monotonic()
        self._history = create_history(scheduler)
        self._started_at = time.time()
        # (slot, digest, error): filled by the loader's thread, emptied by the next step.
        self._load_reports: deque[tuple[int, str, str | None]] = deque()
        self._prompt_events: deque[PromptEvent] = deque()  # filled by the threads that move prompts
        self.exporter: PromptExporter | None = None
        """Computes prompts for other engines; None: not on this engine."""
        self._in_flight: deque[_InFlightStep] = deque()
        self._is_blocked = False  # the last step found nothing to run, and nothing has changed since
        self._num_steps = 0
        self._step_seconds = 0.0
        self._gap_seconds = 0.0
        self._last_commit_at = 0.0  # when the last commit ended
        self._last_result_at = 0.0  # when the last step was known to be over
        self._was_running = False  # rows had more to compute then

    def submit(self, submit: Submit) -> Rejected | None:
        """Queues a request, or returns why it is rejected. Never raises, whatever the request contains.

        A request whose grammar must be compiled first is queued by a later step, which may still reject it.
        """
        self._is_blocked = False
        if submit.grammar is None:
            return self.scheduler.submit(submit)
        if self.grammars is None:
            self.scheduler.counters.rejected += 1
            return Rejected(submit.request_id, "invalid", "this engine does not support grammars")
        grammar = self.grammars.compiled(submit)
        if grammar is not None:
            return self.scheduler.submit(submit, grammar)
        rejected = self.scheduler.validate(submit)
        if rejected is None:
            self.grammars.wait(submit)
        return rejected

    def abort(self, request_id: str) -> None:
        """Ends a request; its last chunks and usage come with the next step. Unknown ids are ignored."""
        self._is_blocked = False
        if self.grammars is not None:
            self.grammars.abort(request_id)
        self.scheduler.abort(request_id)

    def prefetch(self, ref: AdapterRef, pinned: bool | None = None) -> None:
        """Loads an adapter before its first request, if a slot is free or can be freed.

        `pinned`: True keeps the adapter in its slot from now on, False ends that, None changes nothing.
        Malformed digests are ignored.
        """
        if is_digest(ref.digest):
            self._is_blocked = False
            self.scheduler.prefetch(ref, pinned)

    def adapter_loaded(self, slot: int, digest: str, error: str | None = None) -> None:
        """Records that a load has ended. The loader calls it, from any thread, and wakes the stepping thread
        afterwards.
        """
        self._load_reports.append((slot, digest, error))

    def prompt_event(self, event: PromptEvent) -> None:
        """Records what has happened to a prompt that moves between engines. Called from any thread, which
        wakes the stepping thread afterwards.
        """
        self._prompt_events.append(event)

    @property
    def has_work(self) -> bool:
        """Returns whether a step would do anything.

        If not, sleep until a message or a load report arrives, but not for long: waits for an adapter expire.
        """
        if self._in_flight or self._load_reports or self._prompt_events or self.scheduler.has_outputs:
            return True
        if self.grammars is not None and self.grammars.has_compiled:
            return True
        return self.scheduler.has_requests and (not self._is_blocked or self.scheduler.has_expired_waits)

    @property
    def has_captures(self) -> bool:
        """Returns whether steps can be captured while there is no work: `step` does it."""
        return self._captures is not None

    def step(self) -> StepOutputs:
        """Launches the next step, if any, and commits the oldest one once `depth` steps are in flight behind
        it. Captures a step where nothing is in flight and it is time to.

        Exceptions of the runner are not caught: the process must end then.
        """
        may_schedule = self._captures is None or self._made_way_for(self._captures)
        self._apply_load_reports()
        self._apply_prompt_events()
        if self.grammars is not None:
            self._queue_compiled(self.grammars)
        has_launched = may_schedule and self._launch_next()
        num_behind = self.runner.depth if has_launched else 0
        self._is_blocked = not has_launched and not self._in_flight
        if len(self._in_flight) > num_behind:
            outputs = self._commit(self._in_flight.popleft())
            if may_schedule and not has_launched and self._launch_next():
                self._fill_masks()
        else:
            outputs = self.scheduler.collect()
            self._fill_masks()
        if self.exporter is not None:
            self.exporter.take_outputs(outputs)
        return outputs

    @property
    def stats(self) -> EngineStats:
        """Gauges and counters as of now. The server fills in the journal's gauges."""
        scheduler = self.scheduler
        counters, pool, slots = scheduler.counters, scheduler.pool, scheduler.slot_allocator.slots
        run, gauges, fetches = self.runner.counters, self._gauges(), slots.fetch_counters
        return EngineStats(
            started_at=self._started_at,
            engine_id=scheduler.engine_id,
            incarnation=scheduler.incarnation,
            running=scheduler.num_running,
            waiting={str(priority): scheduler.queue.num_waiting(priority) for priority in PriorityClass},
            blocks_total=pool.num_blocks,
            blocks_used=pool.num_held,
            slots_total=len(slots.slots),
            slots_resident=slots.num_ready,
            slots_loading=slots.num_loading,
            adapter_loads=slots.num_loads,
            adapter_evictions=slots.num_evictions,
            steps=self._num_steps,
            step_seconds=self._step_seconds,
            prompt_tokens=counters.prompt_tokens,
            cached_tokens=counters.cached_tokens,
            completion_tokens=counters.completion_tokens,
            preemptions=counters.preemptions,
            aborted=counters.aborted,
            rejected=counters.rejected,
            errors=counters.errors,
            admitted=counters.admitted.copy(),
            queue_seconds=counters.queue_seconds.copy(),
            device=gauges.device,
            quantization=gauges.quantization,
            kv_dtype=gauges.kv_dtype,
            adapter_bytes_total=gauges.adapter_bytes_total,
            adapter_bytes_used=gauges.adapter_bytes_used,
            adapter_load_seconds=gauges.adapter_load_seconds,
            graph_replays=run.graph_replays,
            eager_steps=run.eager_steps,
            step_gap_seconds=self._gap_seconds + run.gap_seconds,
            rows_total=scheduler.limits.max_rows,
            running_by_class=scheduler.running_by_class,
            predicted_wait=scheduler.predicted_waits,
            preempted=counters.preempted.copy(),
            shed=counters.shed.copy(),
            prefill_tokens=counters.prefill_tokens,
            decode_tokens=counters.decode_tokens,
            step_bytes=counters.step_bytes,
            memory_bandwidth=self._memory.bandwidth,
            prompt_rate=scheduler.prompt_rate,
            resident=resident_adapters(slots),
            served=scheduler.shared_service.rates(),
            prefill_sources=scheduler.fetches.num_sources,
            prefill_refusals=scheduler.fetches.refusals,
            prompts_fetching=scheduler.fetches.num_fetching,
            prompts_fetched=scheduler.fetches.counters.fetched,
            fetched_tokens=scheduler.fetches.counters.fetched_tokens,
            fetch_fallbacks=scheduler.fetches.counters.fallbacks.copy(),
            prompts_exported=0 if self.exporter is None else self.exporter.num_exported,
            exported_tokens=0 if self.exporter is None else self.exporter.num_tokens,
            drafted_tokens=counters.drafted_tokens,
            accepted_tokens=counters.accepted_tokens,
            drafted_by_kind=counters.drafted_by_kind.copy(),
            accepted_by_kind=counters.accepted_by_kind.copy(),
            placeholder_tokens=counters.placeholder_tokens,
            adapters_fetching=fetches.fetching,
            adapter_fetches=fetches.fetched,
            adapter_fetch_bytes=fetches.num_bytes,
            adapter_fetch_seconds=fetches.seconds,
            adapter_fetch_failures=fetches.failures.copy(),
            adapters_verified=gauges.signatures.verified,
            adapters_unsigned=gauges.signatures.unsigned,
            adapter_refusals=gauges.signatures.refused.copy(),
            draft_steps=counters.draft_steps,
        )

    def view(self, stats: EngineStats) -> EngineView:
        """Returns the state that operators see, with `stats` as the server completed them."""
        memory = dict(self._memory.shares)
        if stats.adapter_bytes_total or stats.adapter_bytes_used:
            memory["adapters"] = stats.adapter_bytes_total or stats.adapter_bytes_used
        return build_view(
            self.scheduler,
            self._history,
            stats,
            memory,
            self._memory.slot_bytes,
            taken_at=time.time(),
            started_at=self._started_at,
            refused_adapters=self._gauges().refused_adapters,
        )

    def check_integrity(self) -> None:
        """Asserts that nothing is lost or held twice. For idle moments and tests."""
        assert len(self._in_flight) <= self.runner.depth
        self.scheduler.check_integrity(None if self.exporter is None else self.exporter.held_ids())

    def _made_way_for(self, captures: Captures) -> bool:
        """Captures a step if it is time to. Returns False where the step in flight must be committed before
        that: nothing may be launched then.
        """
        is_due = time.monotonic() - self._last_capture_at > CAPTURE_EVERY_S
        if self.has_work and not is_due:
            return True
        if self._in_flight:
            return False
        captures.capture_next()
        self._last_capture_at = time.monotonic()
        if not captures.num_postponed:
            self._captures = None
            log.info("all graphs captured", seconds=round(time.time() - self._started_at, 2))
        return True

    def _launch_next(self) -> bool:
        """Plans and launches the next step. Returns whether there is one."""
        batch = self.scheduler.schedule()
        if batch is not None:
            self._launch(batch)
        return batch is not None

    def _launch(self, batch: Batch) -> None:
        began = time.perf_counter()
        if self._was_running and not self._in_flight:
            self._gap_seconds += began - self._last_result_at
        self._history.planned(*self.scheduler.composition)
        self._in_flight.append(_InFlightStep(batch, self.runner.launch(batch), began))
        if self.exporter is not None:
            self.exporter.launched()

    def _commit(self, in_flight: _InFlightStep) -> StepOutputs:
        constrained = self.scheduler.constrained(in_flight.batch)
        result = in_flight.launched.result()
        self._last_result_at = time.perf_counter()
        self.scheduler.advance_grammars(constrained, result)
        self._fill_masks()
        self._history.ending()
        outputs = self.scheduler.commit(in_flight.batch, result)
        now = time.perf_counter()
        self._num_steps += 1
        seconds = now - max(in_flight.began, self._last_commit_at)
        self._step_seconds += seconds
        self._history.ended(seconds)
        self._last_commit_at = now
        self._was_running = self.scheduler.num_running > 0
        return outputs

    def _fill_masks(self) -> None:
        """Has the masks of the step that is left in flight filled: the step before it is known."""
        if self._in_flight:
            self._in_flight[-1].launched.fill_masks()

    def _queue_compiled(self, grammars: GrammarAdmission) -> None:
        """Queues the requests whose grammars have been compiled."""
        for admitted in grammars.take():
            submit = admitted.submit
            self._is_blocked = False
            if admitted.grammar is None and not admitted.is_aborted:
                problem = f"grammar: {admitted.problem}"
                self.scheduler.reject(Rejected(submit.request_id, "invalid", problem))
                continue
            rejected = self.scheduler.submit(submit, admitted.grammar)
            if rejected is not None:
                self.scheduler.reject(rejected, counted=True)
            elif admitted.is_aborted:
                self.scheduler.abort(submit.request_id)

    def _apply_prompt_events(self) -> None:
        events, num_writes = self._prompt_events, 0
        while events and num_writes < MAX_WRITES_PER_STEP:
            event = events.popleft()
            if isinstance(event, ArrivedBlocks | FetchEnded):
                num_writes += isinstance(event, ArrivedBlocks)
                self.scheduler.fetches.take(event)
            elif self.exporter is not None:
                self.exporter.take(event)

    def _apply_load_reports(self) -> None:
        while self._load_reports:
            self.scheduler.adapter_loaded(*self._load_reports.popleft())
