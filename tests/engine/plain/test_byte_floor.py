"""What steps read at least: counted by the scheduler, and again from what the runner was told."""

from __future__ import annotations

from typing import Any

import pytest

from engine.batch import NO_SLOT, Batch, StepResult
from engine.protocol import PriorityClass
from engine.scheduling.byte_floor import ByteFloor
from tests.engine.plain.harness import Engine, adapter, submission
from tests.engine.plain.memory import bounded_engine

WEIGHTS, HEAD, TOKEN = 10**9, 10**7, 1000


class Told:
    """Sums up what each batch reads, of the runner's own view of its rows."""

    def __init__(self, engine: Engine, slot_bytes: list[int]) -> None:
        self.num_bytes = 0
        self.most_adapters = 0
        self._engine = engine
        self._slot_bytes = slot_bytes
        self._draw = engine.runner.draw_step
        engine.runner.draw_step = self.draw_step  # type: ignore[method-assign]

    def draw_step(self, batch: Batch) -> StepResult:
        result = self._draw(batch)
        rows = [self._engine.runner.live[share.row] for share in batch.scheduled]
        used = {row.new.slot for row in rows} - {NO_SLOT}
        self.most_adapters = max(self.most_adapters, len(used))
        self.num_bytes += WEIGHTS + TOKEN * sum(row.computed_len for row in rows)
        self.num_bytes += sum(self._slot_bytes[slot] for slot in used)
        if result.token_ids or batch.scored:
            self.num_bytes += HEAD
        return result


@pytest.mark.parametrize("depth", [0, 1])
def test_each_step_counts_what_its_rows_attend_to_and_wear(depth: int) -> None:
    """Over prompts in pieces, cached prefixes, preemptions, adapters that come and go, and scores."""
    sizes = [10**5, 2 * 10**5, 3 * 10**5]
    engine = Engine(
        num_blocks=15, num_slots=3, depth=depth, floor=ByteFloor(WEIGHTS, HEAD, TOKEN, sizes), max_rows=6
    )
    told = Told(engine, sizes)
    shared = list(range(20))
    for number in range(14):
        options: dict[str, Any] = {"adapter": adapter(f"a{number % 4}") if number % 5 else None}
        if number % 6 == 5:
            options["prompt_logprobs"] = 1
        if number % 7 == 6:
            options["priority"] = PriorityClass.PRIORITY
        engine.submit(
            submission(f"r{number}", shared[: 3 + number], max_tokens=1 + 3 * number % 11, **options)
        )
        if number % 3 == 2:
            engine.step()
    engine.run()
    stats = engine.core.stats
    assert told.num_bytes == stats.step_bytes > 0
    assert stats.preemptions
    assert stats.cached_tokens
    assert told.most_adapters == 3


def test_a_step_that_draws_nothing_does_not_read_the_head() -> None:
    engine = Engine(floor=ByteFloor(WEIGHTS, HEAD, TOKEN), max_batch_tokens=16)
    engine.submit(submission("long", list(range(40)), max_tokens=1))
    engine.step()
    assert engine.core.stats.step_bytes == WEIGHTS + 16 * TOKEN
    engine.step()
    engine.step()
    assert engine.core.stats.step_bytes == 3 * WEIGHTS + (16 + 32 + 40) * TOKEN + HEAD


def test_where_the_slot_table_knows_what_adapters_take_it_is_asked() -> None:
    worn = adapter("a")
    engine = bounded_engine(100, {worn.digest: 70}, floor=ByteFloor(WEIGHTS, HEAD, TOKEN))
    for name in ("one", "two"):
        engine.submit(submission(name, [1, 2, 3], max_tokens=1, adapter=worn))
    engine.run()
    assert engine.core.stats.step_bytes == WEIGHTS + HEAD + 2 * 3 * TOKEN + 70, "once for both"


def test_an_engine_without_a_model_counts_nothing() -> None:
    engine = Engine()
    engine.submit(submission("r", [1, 2, 3]))
    engine.run()
    stats = engine.core.stats
    assert (stats.step_bytes, stats.memory_bandwidth) == (0, 0.0)
