"""The engine without its process: schedule, run, commit.

Owns the order of a step and the engine's counters. Refuses to know sockets, journals and tensors: those are
the server's and the runner's. One thread calls it, but for `adapter_loaded`, which any thread may call.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Protocol

from engine.admission import is_digest
from engine.batch import Batch, StepResult
from engine.outputs import StepOutputs
from engine.protocol import AdapterRef, EngineStats, PriorityClass, Rejected, Submit
from engine.scheduler import Scheduler


class Runner(Protocol):
    """Runs one batch on the device and draws tokens."""

    def execute(self, batch: Batch) -> StepResult: ...


class EngineCore:
    def __init__(self, scheduler: Scheduler, runner: Runner) -> None:
        self.scheduler = scheduler
        self._runner = runner
        # (slot, digest, error): filled by the loader's thread, emptied by the next step.
        self._load_reports: deque[tuple[int, str, str | None]] = deque()
        self._stuck = False  # the last step found nothing to run, and nothing has happened since
        self._num_steps = 0
        self._step_seconds = 0.0

    def submit(self, submit: Submit) -> Rejected | None:
        """Take on a request, or say why not. Never raises, whatever is in it."""
        self._stuck = False
        return self.scheduler.submit(submit)

    def abort(self, request_id: str) -> None:
        """End a request; its last chunks and usage come with the next step. Unknown ids are ignored."""
        self._stuck = False
        self.scheduler.abort(request_id)

    def prefetch(self, ref: AdapterRef) -> None:
        """Load an adapter before its first request, if a slot can be spared.

        Malformed digests are ignored.
        """
        if is_digest(ref.digest):
            self._stuck = False
            self.scheduler.prefetch(ref)

    def adapter_loaded(self, slot: int, digest: str, error: str | None = None) -> None:
        """The loader's report on a load it was told to start.

        From any thread; wake the stepping thread after.
        """
        self._load_reports.append((slot, digest, error))

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything. When not, sleep until a message or a load report comes."""
        if self._load_reports or self.scheduler.has_outputs:
            return True
        return self.scheduler.has_requests and not self._stuck

    def step(self) -> StepOutputs:
        """Schedule, run, commit. What the runner raises is not caught: then the process is to die."""
        self._settle_loads()
        batch = self.scheduler.schedule()
        self._stuck = batch is None
        if batch is None:
            return self.scheduler.collect()
        began = time.perf_counter()
        result = self._runner.execute(batch)
        outputs = self.scheduler.commit(batch, result)
        self._num_steps += 1
        self._step_seconds += time.perf_counter() - began
        return outputs

    @property
    def stats(self) -> EngineStats:
        """Gauges and counters as of now. The journal's gauge is the server's to fill in."""
        scheduler = self.scheduler
        counters, pool, slots = scheduler.counters, scheduler.pool, scheduler.residency.slots
        return EngineStats(
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
        )

    def check_integrity(self) -> None:
        """Assert that nothing is lost or held twice. For idle moments and tests."""
        self.scheduler.check_integrity()

    def _settle_loads(self) -> None:
        while self._load_reports:
            self.scheduler.adapter_loaded(*self._load_reports.popleft())
