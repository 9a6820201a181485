"""The made-up tokens are those the strict runner derives from its simulated cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from engine.batch import Batch, NewRow, Scheduled
from engine.core import EngineCore
from engine.environment import EngineEnvironment
from engine.kv_cache import BlockPool
from engine.lora.slots import SlotTable
from engine.null_runner import NullRunner, build_null_engine
from engine.protocol import AdapterRef, TokenChunk
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.validation import EngineLimits
from engine.settings import DeviceSettings, EngineSettings
from tests.engine.plain.harness import TOKEN_BYTES, VOCAB_SIZE, adapter, alone, submission

if TYPE_CHECKING:
    from engine.server import EngineServer


def build_core(runner: NullRunner, num_blocks: int = 40) -> EngineCore:
    def start_load(slot: int, ref: AdapterRef) -> None:
        runner.load(slot, ref)
        core.adapter_loaded(slot, ref.digest)

    limits = EngineLimits(context_length=64, vocab_size=VOCAB_SIZE, max_rows=8)
    pool, slots = BlockPool(num_blocks, 4), SlotTable(2, start_load)
    environment = EngineEnvironment("engine-0", "first")
    core = EngineCore(Scheduler(limits, pool, slots, (), TOKEN_BYTES, environment), runner)
    return core


def test_tokens_depend_on_history_adapter_and_seed_alone() -> None:
    """Few blocks: some are preempted."""
    core = build_core(NullRunner(range(VOCAB_SIZE), 8), num_blocks=24)
    submits = [
        submission(
            f"r{number}",
            [number % 2] * 6,
            25,
            temperature=float(number % 3),
            seed=number,
            adapter=[None, adapter("a"), adapter("b")][number % 3],
            logprobs=[None, 3][number % 2],
        )
        for number in range(9)
    ]
    for submit in submits:
        assert core.submit(submit) is None
    chunks: list[TokenChunk] = []
    while core.has_work:
        chunks += core.step().chunks
    assert core.stats.preemptions > 0
    for submit in submits:
        mine = [chunk for chunk in chunks if chunk.request_id == submit.request_id]
        assert [token_id for chunk in mine for token_id in chunk.token_ids] == alone(submit)[0]
        for chunk in mine:
            assert (chunk.logprobs is None) == (submit.sampling.logprobs is None)
            if chunk.logprobs is not None:
                assert chunk.logprobs[0].token_id == chunk.token_ids[0] == chunk.logprobs[0].top[0].token_id
                assert len(chunk.logprobs[0].top) == 3


class Clock:
    """Stands in for the module `time`: sleeping is all that takes time."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("engine.null_runner.time", made)
    return made


def test_a_step_takes_the_time_it_is_told(clock: Clock) -> None:
    core = build_core(NullRunner([1], 8, step_seconds=0.02))
    core.submit(submission("r", [1], 3))
    while core.has_work:
        core.step()
    assert clock.now == pytest.approx(100.06)


def test_overlapped_steps_take_no_longer_and_the_first_token_is_told_when_it_is_there(clock: Clock) -> None:
    """The host's own time, here 10 ms a step, passes while the device works."""
    step_seconds = 0.03
    core = build_core(NullRunner([1], 8, step_seconds, depth=1))
    core.submit(submission("r", [1], 10))
    told_at = []
    while core.has_work:
        told_at += [clock.now - 100.0 for _ in core.step().chunks]
        clock.sleep(0.01)
    assert told_at == pytest.approx([(step + 1) * step_seconds for step in range(10)])
    stats = core.stats
    assert stats.eager_steps == stats.steps == 10
    assert stats.step_gap_seconds == 0.0


def test_a_result_is_not_to_be_had_before_its_time(clock: Clock) -> None:
    runner = NullRunner([7], 1, 0.05, depth=1)
    new = NewRow(0, "r", [1, 2], 2, 0, [1], submission("r", [1, 2]).sampling, 7)
    first = runner.launch(Batch(0, new_rows=[new], scheduled=[Scheduled(0, 2, True)]))
    second = runner.launch(Batch(1, scheduled=[Scheduled(0, 1, True)]))
    assert first.result().token_ids == [7]
    assert clock.now == pytest.approx(100.05)
    assert second.result().token_ids == [7]
    assert clock.now == pytest.approx(100.1), "one step after the other"
    assert runner.counters.gap_seconds == 0.0


def test_a_step_launched_late_is_a_gap(clock: Clock) -> None:
    runner = NullRunner([7], 1, 0.01, depth=1)
    new = NewRow(0, "r", [1, 2], 2, 0, [1], submission("r", [1, 2]).sampling, 7)
    first = runner.launch(Batch(0, new_rows=[new], scheduled=[Scheduled(0, 2, True)]))
    clock.sleep(0.05)
    runner.launch(Batch(1, scheduled=[Scheduled(0, 1, True)]))
    assert runner.counters.gap_seconds == pytest.approx(0.04)
    first.result()


class Server:
    """As much of the server as a null engine is built with."""

    incarnation = "third"

    def __init__(self) -> None:
        self.loaded: list[tuple[int, str, str | None]] = []

    def adapter_loaded(self, slot: int, digest: str, error: str | None) -> None:
        self.loaded.append((slot, digest, error))


def test_a_null_engine_is_built_from_settings_and_serves_adapters() -> None:
    server = Server()
    settings = EngineSettings(null=True, max_rows=4, context_length=128, base_name="nothing")
    core, info = build_null_engine(settings, DeviceSettings(), cast("EngineServer", server), "1.0")
    assert (info.base, info.context_length, info.incarnation, info.build) == ("nothing", 128, "third", "1.0")
    core.submit(submission("r", [1, 2, 3], 5, adapter=adapter("a"), ignore_eos=False))
    core.adapter_loaded(*server.loaded.pop())
    chunks: list[TokenChunk] = []
    while core.has_work:
        chunks += core.step().chunks
    assert len(chunks) == 5
    assert chunks[-1].finish_reason == "length"
    assert all(0 <= token_id < info.vocab_size for chunk in chunks for token_id in chunk.token_ids)


def test_a_null_engine_speaks_the_bases_readable_tokens(tmp_path: Path) -> None:
    vocab = {"a": 0, "Ġb": 1, "Ã": 2, "</s>": 3}
    document = {
        "model": {"type": "BPE", "vocab": vocab},
        "decoder": {"type": "ByteLevel"},
        "added_tokens": [{"id": 3, "content": "</s>", "special": True}],
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    core, info = build_null_engine(
        EngineSettings(null=True, base=tmp_path), DeviceSettings(), cast("EngineServer", Server()), "1.0"
    )
    assert info.vocab_size == 4
    core.submit(submission("r", [3], 30))
    tokens: set[int] = set()
    while core.has_work:
        tokens.update(token_id for chunk in core.step().chunks for token_id in chunk.token_ids)
    assert tokens == {0, 1}


def test_a_runner_needs_something_to_say() -> None:
    with pytest.raises(ValueError, match="choices"):
        NullRunner([], 1)
