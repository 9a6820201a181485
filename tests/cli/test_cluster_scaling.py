"""The number of engines: what makes it grow and shrink, and what does not."""

from __future__ import annotations

import itertools

import pytest

from cli.cluster.loads import LoadReader
from cli.cluster.scaling import Autoscaler, ClusterLoad, ScalingRules
from engine.gauges import EngineStats

RULES = ScalingRules(1, 4)
ROWS = 8


def load(
    engines: int, *, running: int = 0, waiting: int = 0, wait_s: float = 0.0, late: float = 0.0
) -> ClusterLoad:
    return ClusterLoad(engines, ROWS * engines, running, waiting, wait_s, late)


def after(scaler: Autoscaler, seconds: int, seen: ClusterLoad, begin: int = 1000) -> int:
    """Decides once a second; the last decision."""
    return [scaler.decide(seen, begin + second) for second in range(seconds + 1)][-1]


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (load(1, running=8, wait_s=2.5), "a request waits 2.5 s"),
        (load(1, running=8, waiting=1), "9 requests, more than 8 rows"),
        (load(1, late=0.02), "2.0% of requests miss their target"),
    ],
)
def test_it_grows_once_the_load_has_lasted(seen: ClusterLoad, reason: str) -> None:
    scaler = Autoscaler(RULES, 1)
    assert after(scaler, 9, seen) == 1
    assert after(scaler, 1, seen, begin=1010) == 2
    assert scaler.reason.startswith(reason)


def test_a_peak_that_passes_changes_nothing() -> None:
    scaler = Autoscaler(RULES, 1)
    for second in range(60):
        assert scaler.decide(load(1, wait_s=9.0 if second % 9 else 0.0), 1000 + second) == 1


def test_an_engine_that_still_loads_is_not_asked_for_twice() -> None:
    scaler = Autoscaler(RULES, 1)
    late = load(1, wait_s=9.0)
    assert after(scaler, 10, late) == 2
    assert after(scaler, 600, late, begin=1011) == 2, "one serves of two"
    assert after(scaler, 20, load(2, wait_s=9.0), begin=1700) == 3


def test_it_stays_between_its_bounds() -> None:
    scaler = Autoscaler(ScalingRules(2, 3), 9)
    assert scaler.wanted == 3
    assert after(scaler, 600, load(3, wait_s=9.0)) == 3
    assert after(scaler, 2000, load(3), begin=5000) == 2
    assert after(scaler, 2000, load(2), begin=9000) == 2


def test_it_shrinks_only_if_the_others_have_room() -> None:
    scaler = Autoscaler(RULES, 2)
    assert after(scaler, 1000, load(2, running=4)) == 2, "half of one engine's rows"
    assert after(scaler, 299, load(2, running=3), begin=3000) == 2
    assert after(scaler, 1, load(2, running=3), begin=3300) == 1


@pytest.mark.parametrize("requests", range(0, 33, 2))
def test_a_steady_load_never_alternates(requests: int) -> None:
    scaler = Autoscaler(RULES, 1)
    decided = []
    for second in range(0, 7200, 5):
        engines = scaler.wanted
        rows = engines * ROWS
        waiting = max(0, requests - rows)
        seen = load(engines, running=min(requests, rows), waiting=waiting, wait_s=1.0 * waiting)
        decided.append(scaler.decide(seen, second))
    changes = [b - a for a, b in itertools.pairwise(decided) if a != b]
    assert len(set(changes)) <= 1, "only in one direction"


def stats(incarnation: str, admitted: int, shed: int, **more: object) -> EngineStats:
    known = {"rows_total": 8, "predicted_wait": {"default": 1.5, "flex": 4.0}, "waiting": {"default": 2}}
    return EngineStats(
        "e", incarnation, 3, admitted={"default": admitted}, shed={"default": shed}, **known | more
    )  # type: ignore[arg-type]


def test_heartbeats_are_summed_and_counters_compared_with_the_last_look() -> None:
    reader = LoadReader()
    first = reader.read([stats("a", 100, 50), stats("b", 10, 0, predicted_wait={"default": 0.5})])
    assert first == ClusterLoad(2, 16, 6, 4, 0.5, 0.0), "what was before the first look does not count"
    assert reader.read([stats("a", 109, 51), stats("b", 20, 0)]).late_share == pytest.approx(1 / 20)
    assert reader.read([stats("a", 109, 51)]).late_share == 0.0
    assert reader.read([stats("a2", 5, 5)]).late_share == 0.0, "another incarnation counts from zero"


def test_draining_engines_and_none_at_all() -> None:
    reader = LoadReader()
    assert reader.read([stats("a", 1, 0, draining=True)]) == ClusterLoad(0, 0, 0, 0, 0.0)
    assert reader.read([]) == ClusterLoad(0, 0, 0, 0, 0.0)
