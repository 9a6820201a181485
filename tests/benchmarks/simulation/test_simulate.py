"""A small simulated cluster, by counts: every policy gets the same requests, and none is forgotten."""

from __future__ import annotations

from functools import cache
from typing import Any

from benchmarks.simulate import parse, simulate

SMALL = (
    "--replicas 8 --per-host 2 --adapters 2000 --tenants 200 --seconds 50 --warm-up 0 --rate 20 "
    "--host-adapters 64 --slots 64 --rows 64 --fail-host-at 10"
)


@cache
def runs() -> dict[str, dict[str, Any]]:
    return {row["policy"]: row for row in simulate(parse(SMALL.split()))["rows"]}


def test_all_policies_get_the_same_requests() -> None:
    assert len({row["requests"] for row in runs().values()}) == 1
    assert 7000 < runs()["random"]["requests"] < 9000


def test_requests_are_completed_lost_or_still_open() -> None:
    for row in runs().values():
        still_open = row["requests"] - row["completed"] - row["lost"]
        assert 0 <= still_open <= 8 * 64 * 4
        assert row["lost"] > 0  # of the host that failed


def test_the_services_router_loads_fewer_adapters() -> None:
    loads = {name: row["adapter_loads"] for name, row in runs().items()}
    assert loads["service"] < 0.7 * min(loads["random"], loads["least-open"])


def test_conversations_find_their_prefix_more_often() -> None:
    shares = {name: row["cached_prompt_share"] for name, row in runs().items()}
    assert shares["service"] > 2 * shares["random"]


def test_runs_repeat() -> None:
    again = simulate(parse([*SMALL.split(), "--policies", "service"]))["rows"][0]
    assert {**again, "cpu_s": 0} == {**runs()["service"], "cpu_s": 0}
