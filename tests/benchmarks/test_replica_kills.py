"""What the kill trial counts as lost, double and off, and which processes it kills."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from benchmarks.replica_kills import Answer, chosen, compared, is_clean
from benchmarks.replica_kills_site import Victim

WHOLE = Answer("whole", 8, {"prompt_tokens": 5, "completion_tokens": 8})
BROKEN = Answer("broken", 3, is_broken=True)
LEDGER: dict[str, tuple[int, int, str | None]] = {"whole": (5, 8, "length"), "broken": (5, 4, "error")}
USED = 5 + 8 + 5 + 4


def test_a_token_that_was_generated_and_not_delivered_is_billed_and_counted() -> None:
    figures = compared([WHOLE, BROKEN], LEDGER, USED)
    assert is_clean(figures)
    assert (figures["broken"], figures["tokens_received"], figures["tokens_in_ledger"]) == (1, 11, 12)
    assert figures["tokens_not_delivered"] == 1


@pytest.mark.parametrize(
    ("ledger", "used", "wrong"),
    [
        (LEDGER | {"broken": (5, 2, "error")}, USED - 2, {"tokens_lost": 1}),
        (LEDGER | {"whole": (5, 9, "length")}, USED + 1, {"tokens_double": 1, "usage_differs": 1}),
        (LEDGER | {"whole": (6, 8, "length")}, USED + 1, {"usage_differs": 1}),
        (LEDGER | {"broken": (5, 121, "error")}, USED + 117, {"tokens_double": 1}),
        ({"whole": LEDGER["whole"]}, USED - 9, {"tokens_lost": 3}),
        (LEDGER | {"another": (1, 1, "stop")}, USED + 2, {"requests_not_asked_for": 1}),
        (LEDGER, USED + 2, {"limit_off": 2}),
        (LEDGER, USED - 2, {"limit_off": -2}),
    ],
)
def test_every_difference_is_seen(ledger: dict[str, Any], used: int, wrong: dict[str, int]) -> None:
    figures = compared([WHOLE, BROKEN], ledger, used)
    names = (
        "refused",
        "tokens_lost",
        "tokens_double",
        "usage_differs",
        "requests_not_asked_for",
        "limit_off",
    )
    assert {name: figures[name] for name in names if figures[name]} == wrong
    assert not is_clean(figures)


def test_a_stream_that_never_began_is_seen() -> None:
    assert compared([Answer(is_broken=True)], {}, 0)["refused"] == 1


def test_each_kind_is_killed_as_often_however_many_processes_it_has() -> None:
    engines = [Victim("engine", pid, (pid,)) for pid in range(8)]
    victims = [*engines, Victim("ray node", 8, (0,)), Victim("ray head", 9, tuple(range(8)))]
    random = Random(1)
    killed = [chosen(victims, random) for _ in range(300)]
    assert min(Counter(victim.kind for victim in killed).values()) > 70
    assert len({victim.pid for victim in killed}) == 10
