"""Measures what the engine costs besides the model: schedule, commit and a null runner's batch state, per
step.

Keeps all rows running: requests that end are replaced, so that admissions, ends, block growth and prefix
hashes are included. The budget is 1 ms for schedule and commit at 256 rows. With depth 1 a step is planned
before the one ahead of it is committed: the same work in another order, all of it while a device would be
busy. Besides wall time, the thread's CPU time is measured: on a machine with other load the two differ. Also
measured is the cost of inspection (`engine.history`, `engine.inspection`), per step and per view, with as
many requests waiting as running.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections import deque
from itertools import pairwise, product
from pathlib import Path
from typing import Any

from benchmarks.report import write_report
from engine.batch import Batch, LaunchedStep
from engine.core import EngineCore
from engine.environment import EngineEnvironment
from engine.inspection import create_history
from engine.kv_cache import BlockPool
from engine.lora.slots import SlotTable
from engine.null_runner import NullRunner
from engine.protocol import AdapterRef, SamplingParams, Submit
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.validation import EngineLimits

VOCAB_SIZE = 32_000
PROMPT_LEN = 128
MAX_TOKENS = 512
NUM_TENANTS = 40

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "stop strings and logprobs": {"logprobs": 5, "stop": ("\n\nUser:", "###", "</answer>")},
}


class Load:
    """A scheduler kept full: as many requests in it as there are rows."""

    def __init__(self, num_rows: int, num_adapters: int, sampling: dict[str, Any], depth: int = 0) -> None:
        self._sampling = sampling
        self._num_adapters = num_adapters
        self._num_submitted = 0
        self.num_rows = num_rows
        self.runner = NullRunner(range(VOCAB_SIZE), num_rows, depth=depth)
        slots = SlotTable(num_adapters, self.runner.load)
        self.scheduler = Scheduler(
            limits=EngineLimits(context_length=8192, vocab_size=VOCAB_SIZE, max_rows=num_rows),
            pool=BlockPool(num_rows * ((PROMPT_LEN + MAX_TOKENS) // 16 + 2)),
            slots=slots,
            eos_ids=(0,),
            token_bytes=[f" {token_id:x}".encode() for token_id in range(VOCAB_SIZE)],
            environment=EngineEnvironment("bench", "bench"),
        )
        for number in range(num_adapters):
            ref = self._adapter(number)
            self.scheduler.prefetch(ref)
            slot = slots.find(ref.digest)
            assert slot is not None
            self.scheduler.adapter_loaded(slot.index, ref.digest, None)

    def fill(self) -> None:
        """Submit until every row has a request; the first are of all lengths, so that ends are spread."""
        while self.scheduler.num_running + len(self.scheduler.queue) < self.num_rows:
            number = self._num_submitted
            self._num_submitted += 1
            max_tokens = MAX_TOKENS if number >= self.num_rows else 1 + number * MAX_TOKENS // self.num_rows
            rejected = self.scheduler.submit(self.request(f"r{number}", number, max_tokens))
            assert rejected is None, rejected

    def request(self, request_id: str, number: int, max_tokens: int) -> Submit:
        return Submit(
            request_id=request_id,
            tenant=f"t{number % NUM_TENANTS}",
            prompt_ids=[(number * 31 + place) % VOCAB_SIZE for place in range(PROMPT_LEN)],
            sampling=SamplingParams(max_tokens=max_tokens, ignore_eos=True, **self._sampling),
            adapter=self._adapter(number) if self._num_adapters else None,
        )

    def _adapter(self, number: int) -> AdapterRef:
        return AdapterRef(f"{number % self._num_adapters:064x}", 16)


def measure(load: Load, num_steps: int) -> dict[str, dict[str, float]]:
    """Milliseconds per step of each part, over `num_steps` steps with all rows running."""
    scheduler, runner = load.scheduler, load.runner
    seconds: dict[str, list[float]] = {
        "schedule_commit_ms": [],
        "schedule_commit_cpu_ms": [],
        "runner_ms": [],
    }
    in_flight: deque[tuple[Batch, LaunchedStep]] = deque()
    for step in range(-MAX_TOKENS, num_steps):  # as long as a request lives: by then ends are spread
        load.fill()
        times = [(time.perf_counter(), time.thread_time())]
        batch = scheduler.schedule()
        times.append((time.perf_counter(), time.thread_time()))
        assert batch is not None
        in_flight.append((batch, runner.launch(batch)))
        times.append((time.perf_counter(), time.thread_time()))
        if len(in_flight) > runner.depth:
            oldest, launched = in_flight.popleft()
            scheduler.commit(oldest, launched.result())
        times.append((time.perf_counter(), time.thread_time()))
        if step >= 0:
            clock, cpu = (
                [after - before for before, after in pairwise(of)] for of in zip(*times, strict=True)
            )
            seconds["schedule_commit_ms"].append(clock[0] + clock[2])
            seconds["schedule_commit_cpu_ms"].append(cpu[0] + cpu[2])
            seconds["runner_ms"].append(clock[1])
    return {part: percentiles(values) for part, values in seconds.items()}


def measure_looking(load: Load, num_views: int = 50) -> dict[str, float]:
    """What a step pays for being kept, and one view of the engine, by the thread's own time: the median."""
    history, scheduler = create_history(load.scheduler), load.scheduler
    load.fill()
    for number in range(load.num_rows):
        scheduler.submit(load.request(f"waiting-{number}", number, MAX_TOKENS))
    core = EngineCore(scheduler, load.runner)
    for _ in range(20):
        core.step()
    steps, views = [], []
    for _ in range(num_views):
        began = time.thread_time()
        for _ in range(100):
            history.planned([0, 8, 0], [0, 255, 0])
            history.ending()
            history.ended(0.012)
        steps.append((time.thread_time() - began) / 100)
        began = time.thread_time()
        core.view(core.stats)
        views.append(time.thread_time() - began)
    return {
        "kept_step_us": round(1e6 * statistics.median(steps), 2),
        "view_ms": round(1e3 * statistics.median(views), 3),
    }


def percentiles(seconds: list[float]) -> dict[str, float]:
    """p50 and p99, milliseconds."""
    ordered = sorted(seconds)
    return {
        name: round(1e3 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 4)
        for name, share in (("p50", 0.5), ("p99", 0.99))
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--steps", type=int, default=2000)
    arguments = parser.parse_args()
    rows = []
    for case, sampling in CASES.items():
        for num_adapters, depth in product((0, 64), (0, 1)):
            load = Load(arguments.rows, num_adapters, sampling, depth)
            gc.collect()
            figures = measure(load, arguments.steps)
            setting = {"case": case, "running": arguments.rows, "adapters": num_adapters, "depth": depth}
            rows.append({**setting, **figures})
            print(rows[-1])
    looking = measure_looking(Load(arguments.rows, 64, {}))
    print(looking)
    write_report(arguments.out, {"rows": rows, "looking": looking})


if __name__ == "__main__":
    main()
