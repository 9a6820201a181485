"""Giving way: what counts as others, how long a calibration rests for them, and that it ends all the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from adapters.calibration import pacing
from adapters.calibration.pacing import LOOK, REFERENCE_SHARE, SERVING_SHARE, OtherTraffic, Pace
from adapters.calibration.serving import AT_ONCE, EngineScorer, ScoringAccount
from engine.protocol import EngineStats
from tests.adapters.calibration.engines import FinishedGeneration
from tests.adapters.calibration.test_run import found, make_bench
from tests.adapters.calibration.test_serving import SAMPLES, CountingEngine, honest
from tokenization.codec import TextCodec


def stats(**numbers: object) -> EngineStats:
    return EngineStats("engine-0", "one", **numbers)  # type: ignore[arg-type]


class Heartbeats:
    """One at every look, as told; the last one again and again."""

    def __init__(self, *told: EngineStats | None) -> None:
        self._told = list(told)

    def __call__(self) -> EngineStats | None:
        return self._told.pop(0) if len(self._told) > 1 else self._told[0]


class Generating:
    """Of an engine that generates for others as long as it is told to."""

    def __init__(self, looks: float = float("inf")) -> None:
        self.looks = looks
        self.tokens = 0

    def __call__(self) -> EngineStats:
        self.looks -= 1
        self.tokens += 10 * (self.looks >= 0)
        return stats(running=2, completion_tokens=self.tokens)


@pytest.mark.parametrize(
    ("first", "second", "served"),
    [
        (None, None, False),
        (stats(), stats(), False),
        (stats(running=3), stats(running=3), False),  # all may be calibrations
        (stats(prompt_tokens=5), stats(prompt_tokens=900, running=4, waiting={"flex": 9}), False),
        (stats(completion_tokens=7), stats(completion_tokens=8), True),
        (stats(), stats(waiting={"default": 1}), True),
        (stats(admitted={"priority": 1}), stats(admitted={"priority": 2}), True),
        (stats(admitted={"flex": 1}), stats(admitted={"flex": 2}), False),
        (None, stats(running=1), True),  # nothing of ours is in it yet
        (stats(completion_tokens=7), EngineStats("engine-0", "two", completion_tokens=9), False),
    ],
)
def test_what_an_engine_does_for_others(first: EngineStats, second: EngineStats, served: bool) -> None:
    others = OtherTraffic(Heartbeats(first, second))
    assert others.are_served == (first is not None and first.running > 0)
    assert [others.are_served for _ in range(3)] == [served] * 3, "between two heartbeats nothing changes"


@dataclass
class Clock:
    """Stands in for the modules `time` and `asyncio`."""

    now: float = 0.0
    slept: list[float] = field(default_factory=list)

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(pacing, "time", clock)
    monkeypatch.setattr(pacing, "asyncio", clock)
    return clock


@pytest.mark.parametrize(("share", "worked", "rest"), [(0.25, 0.2, 0.6), (0.1, 0.2, 1.8), (0.25, 9.0, 2.0)])
async def test_beside_others_it_works_its_share_of_the_time(
    share: float, worked: float, rest: float, clock: Clock
) -> None:
    await Pace(OtherTraffic(Generating()), share, longest=2.0).rest(worked)
    assert clock.now == pytest.approx(rest)


async def test_a_rest_is_over_when_nobody_else_is_served(clock: Clock) -> None:
    await Pace(OtherTraffic(Generating(looks=3)), 0.1, longest=60.0).rest(10.0)
    assert clock.slept == [LOOK] * 3
    alone = Pace(OtherTraffic(Heartbeats(stats(), stats())), 0.1)
    await alone.rest(10.0)
    assert len(clock.slept) == 3
    whole = Pace(OtherTraffic(Generating()), 1.0)
    await whole.rest(10.0)
    assert len(clock.slept) == 3
    assert not whole.is_slow


@dataclass
class Rests:
    """What work was followed by a rest, instead of the rest."""

    seconds: dict[float, list[float]] = field(default_factory=dict)
    """By the share it is to have."""


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> Rests:
    rests = Rests()

    async def rest(pace: Pace, worked: float) -> None:
        if pace.is_slow:
            rests.seconds.setdefault(pace.share, []).append(worked)

    monkeypatch.setattr(Pace, "rest", rest)
    return rests


class BesideOthers(CountingEngine):
    """Generates for others until so many samples were asked for."""

    def __init__(self, until: float) -> None:
        super().__init__(lambda request: FinishedGeneration(honest(request)._found, None, delay=0.01))
        self._generating = Generating()
        self._until = until
        self.open_then: list[int] = []
        """At every sample, how many were in the engine with it."""

    @property
    def stats(self) -> EngineStats:  # type: ignore[override]
        if len(self.submits) >= self._until:
            self._generating.looks = 0
        return self._generating()

    def submit(self, request: object) -> object:
        generation = super().submit(request)  # type: ignore[arg-type]
        self.open_then.append(self.open)
        return generation


ASKER = ScoringAccount(tenant="ten_one", model="sapling:mine@2", adapter_id="adp_mine", version=2)


async def test_beside_others_one_sample_is_in_the_engine_and_then_none(rests: Rests) -> None:
    engine = BesideOthers(until=float("inf"))
    scores = await EngineScorer(engine, ASKER).scores(SAMPLES, None)
    assert [one.log_probs[0] for one in scores] == [-float(sample.token_ids[2]) for sample in SAMPLES]
    assert engine.open_then == [1] * len(SAMPLES)
    assert len(rests.seconds[SERVING_SHARE]) == len(SAMPLES)


async def test_when_others_are_done_it_goes_on_at_full_speed(rests: Rests) -> None:
    engine = BesideOthers(until=10)
    await EngineScorer(engine, ASKER).scores(SAMPLES * 3, None)
    assert engine.open_then[:10] == [1] * 10
    assert max(engine.open_then) == AT_ONCE


async def test_beside_an_engine_that_is_always_busy_a_calibration_ends_with_the_same_report(
    tmp_path: Path, sapling_codec: TextCodec, rests: Rests
) -> None:
    bench = make_bench(tmp_path, sapling_codec, num_samples=6)
    wanted = found(await bench.run())
    assert rests.seconds == {}
    busy = make_bench(tmp_path / "busy", sapling_codec, num_samples=6)
    busy.engine.heartbeat = Generating()
    assert found(await busy.run()) == wanted
    num_steps = busy.engine._model.config.num_layers + 2
    assert {share: len(found) for share, found in rests.seconds.items()} == {
        SERVING_SHARE: 3 * 6,
        REFERENCE_SHARE: num_steps,
    }


async def test_a_reference_on_other_cores_than_the_engine_does_not_rest(
    tmp_path: Path, sapling_codec: TextCodec, rests: Rests
) -> None:
    bench = make_bench(tmp_path, sapling_codec, num_samples=3, device="cuda")
    bench.engine.heartbeat = Generating()
    await bench.run()
    assert set(rests.seconds) == {SERVING_SHARE}
