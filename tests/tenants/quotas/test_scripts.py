"""The scripts, step by step, over a real Redis whose clock the test sets: windows, lists, raised rates."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
import redis

from tests.tenants.quotas.model import Cost, Rule
from tests.tenants.quotas.scripted import TAG, Scripted

MIDNIGHT = int(datetime(2026, 12, 1, tzinfo=UTC).timestamp() * 1000)
"""Of a month, too."""
TOKENS_DAY = Rule("tpd", "day", "tokens", 1000)
TOKENS_MONTH = Rule("tpm", "month", "tokens", 1000)


@pytest.fixture(scope="module")
def client(redis_server: object) -> Iterator[redis.Redis]:
    made = redis.Redis.from_url(redis_server.url)  # type: ignore[attr-defined]
    yield made
    made.close()


def scripted(client: redis.Redis, *rules: Rule, now: int = MIDNIGHT) -> Scripted:
    client.flushall()
    made = Scripted(client, rules, {})
    made.set_clock(now)
    return made


def tokens(number: int) -> Cost:
    return Cost(1, number)


def reserve(quotas: Scripted, name: str, number: int, parts: int = 1) -> str:
    return quotas.reserve(name, tokens(number), tokens(number), parts)


def expire(quotas: Scripted, now: int) -> int:
    """Time passes, sweeps are heard, nobody renews. The time then."""
    for _ in range(8):
        now += 10_000
        quotas.set_clock(now)
        quotas.sweep()
    return now


# Midnight -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [TOKENS_DAY, TOKENS_MONTH])
def test_a_request_settled_after_midnight_counts_to_the_day_it_began_in(
    client: redis.Redis, rule: Rule
) -> None:
    quotas = scripted(client, rule, now=MIDNIGHT - 1000)
    assert reserve(quotas, "late", 600) == "taken"
    quotas.set_clock(MIDNIGHT + 1000)
    assert quotas.state() == [(0, 0)], "the new day has nothing of it"
    assert reserve(quotas, "early", 900) == "taken"
    assert quotas.settle("late", tokens(500)) == 1
    assert quotas.state() == [(0, 900)], "neither what it used, nor what it gives back"
    assert quotas.settle("early", tokens(700)) == 1
    assert quotas.state() == [(700, 0)]


def test_a_request_settled_after_midnight_before_anything_else_begins_no_new_day(
    client: redis.Redis,
) -> None:
    quotas = scripted(client, TOKENS_DAY, now=MIDNIGHT - 1000)
    assert reserve(quotas, "late", 600) == "taken"
    quotas.set_clock(MIDNIGHT + 1000)
    assert quotas.settle("late", tokens(500)) == 1
    assert quotas.state() == [(0, 0)]
    assert reserve(quotas, "early", 1000) == "taken"


def test_an_expired_request_charged_after_midnight_counts_to_the_day_it_began_in(
    client: redis.Redis,
) -> None:
    quotas = scripted(client, TOKENS_DAY, now=MIDNIGHT - 90_000)
    quotas.sweep()
    assert reserve(quotas, "late", 600) == "taken"
    now = expire(quotas, MIDNIGHT - 90_000)
    assert quotas.state() == [(0, 0)], "expired, a little before midnight"
    quotas.set_clock(max(now, MIDNIGHT) + 1000)
    assert reserve(quotas, "early", 100) == "taken"
    assert quotas.settle("late", tokens(500)) == 1
    assert quotas.state() == [(0, 100)]


def test_a_clock_set_back_over_midnight_goes_on_counting_to_the_day_that_has_begun(
    client: redis.Redis,
) -> None:
    quotas = scripted(client, TOKENS_DAY, now=MIDNIGHT + 10)
    assert reserve(quotas, "before", 400) == "taken"
    quotas.set_clock(MIDNIGHT - 10_000)
    assert reserve(quotas, "after", 500) == "taken"
    assert quotas.state() == [(0, 900)]
    assert reserve(quotas, "over", 200) == "limited", "the day is one, whatever the clock does"
    assert quotas.settle("after", tokens(300)) == 1
    assert quotas.settle("before", tokens(100)) == 1
    assert quotas.state() == [(400, 0)]
    quotas.set_clock(MIDNIGHT + 60_000)
    assert quotas.state() == [(400, 0)]


def test_a_window_ends_to_the_millisecond(client: redis.Redis) -> None:
    quotas = scripted(client, TOKENS_DAY, now=MIDNIGHT - 1)
    assert reserve(quotas, "a", 1000) == "taken"
    assert quotas.settle("a", tokens(1000)) == 1
    assert reserve(quotas, "b", 1) == "exhausted"
    assert quotas.wait == 1
    quotas.set_clock(MIDNIGHT)
    assert reserve(quotas, "c", 1) == "taken"


# Lists ----------------------------------------------------------------------------------------------------

RPD, TPD = Rule("rpd", "day", "requests", 5), Rule("tpd", "day", "tokens", 100)


def test_a_list_that_expired_is_charged_part_by_part_and_once(client: redis.Redis) -> None:
    """One of its three prompts ended before, two after."""
    quotas = scripted(client, RPD, TPD)
    quotas.sweep()
    assert reserve(quotas, "a", 60, parts=3) == "taken"
    assert quotas.settle_part("a", 0, tokens(10)) == 2
    expire(quotas, MIDNIGHT)
    assert quotas.state() == [(1, 0), (10, 0)], "what had been told of is charged, the rest returned"
    assert quotas.settle_part("a", 2, tokens(7)) == 2
    assert quotas.state() == [(1, 0), (17, 0)], "the request counts once"
    assert quotas.settle_part("a", 2, tokens(7)) == 0
    assert quotas.settle_part("a", 0, tokens(10)) == 0
    assert quotas.settle_part("a", 1, tokens(5)) == 1
    assert quotas.state() == [(1, 0), (22, 0)]
    assert quotas.settle("a", tokens(22)) == 0


def test_the_api_charges_of_an_expired_list_what_the_journal_has_not(client: redis.Redis) -> None:
    quotas = scripted(client, RPD, TPD)
    quotas.sweep()
    assert reserve(quotas, "a", 60, parts=3) == "taken"
    assert quotas.settle_part("a", 0, Cost(1, 10, 2)) == 2
    expire(quotas, MIDNIGHT)
    assert quotas.settle_part("a", 1, Cost(1, 7, 4)) == 2
    assert quotas.state() == [(1, 0), (23, 0)]
    assert quotas.settle("a", Cost(1, 30, 11)) == 1
    assert quotas.state() == [(1, 0), (41, 0)]


def test_the_first_part_told_of_an_expired_list_counts_its_request(client: redis.Redis) -> None:
    quotas = scripted(client, RPD, TPD)
    quotas.sweep()
    assert reserve(quotas, "a", 60, parts=2) == "taken"
    expire(quotas, MIDNIGHT)
    assert quotas.state() == [(0, 0), (0, 0)]
    assert quotas.settle_part("a", 1, tokens(7)) == 2
    assert quotas.state() == [(1, 0), (7, 0)]


def test_parts_with_like_numbers_are_told_apart(client: redis.Redis) -> None:
    quotas = scripted(client, TPD)
    assert reserve(quotas, "a", 60, parts=12) == "taken"
    for part in (11, 1, 0, 10, *range(2, 9)):
        assert quotas.settle_part("a", part, tokens(1)) == 2
    assert quotas.settle_part("a", 9, tokens(1)) == 1
    assert quotas.state() == [(12, 0)]


def test_an_open_list_of_which_the_api_tells_all_is_settled_with_that(client: redis.Redis) -> None:
    quotas = scripted(client, RPD, TPD)
    assert reserve(quotas, "a", 60, parts=2) == "taken"
    assert quotas.settle_part("a", 0, tokens(10)) == 2
    assert quotas.settle("a", Cost(1, 25)) == 1
    assert quotas.state() == [(1, 0), (25, 0)]
    assert quotas.settle_part("a", 1, tokens(15)) == 0


# Rates ----------------------------------------------------------------------------------------------------

RATE = Rule("rpm", "rate", "tokens", 60)


def raise_to(quotas: Scripted, units: float, limit: int = 60) -> int:
    return int(quotas.send(quotas.scripts.raise_levels(TAG, [("rpm", limit, round(units * 60_000))])))


def test_a_rate_is_raised_to_what_was_reached_and_never_lowered(client: redis.Redis) -> None:
    quotas = scripted(client, RATE)
    assert raise_to(quotas, 50) == 1
    assert quotas.state() == [(50, 0)]
    assert raise_to(quotas, 50) == 0
    assert raise_to(quotas, 20) == 0
    assert quotas.state() == [(50, 0)]
    quotas.set_clock(MIDNIGHT + 30_000)
    assert raise_to(quotas, 25) == 1, "20 are left of the 50"
    assert quotas.state() == [(25, 0)]
    assert reserve(quotas, "a", 36) == "limited"
    assert reserve(quotas, "b", 35) == "taken"


def test_a_raised_rate_drains(client: redis.Redis) -> None:
    quotas = scripted(client, RATE)
    raise_to(quotas, 90)
    assert reserve(quotas, "a", 1) == "limited"
    assert quotas.wait == 31_000
    quotas.set_clock(MIDNIGHT + 31_000)
    assert reserve(quotas, "a", 1) == "taken"


def test_an_answer_names_the_levels_of_rates_and_contracts(client: redis.Redis) -> None:
    rules = [Rule("places", "held", "requests", 9), RATE, Rule("contract:p", "contract", "tokens", 100)]
    quotas = scripted(client, rules[0], rules[1], rules[2])
    assert reserve(quotas, "a", 40) == "taken"
    assert quotas.levels == (40, 40)
    assert reserve(quotas, "b", 30) == "limited"
    assert quotas.levels == (40, 40), "what was refused is not counted"
    quotas.set_clock(MIDNIGHT + 40_000)
    assert reserve(quotas, "c", 60) == "taken"
    assert quotas.levels == (60, 60)
    quotas.set_clock(MIDNIGHT + 90_000)
    assert reserve(quotas, "d", 50) == "taken"
    assert quotas.levels == (60, 50)
    assert quotas.within


def test_a_contract_that_is_exceeded_keeps_its_level(client: redis.Redis) -> None:
    quotas = scripted(
        client, Rule("rpm", "rate", "tokens", 1000), Rule("contract:p", "contract", "tokens", 60)
    )
    assert reserve(quotas, "a", 40) == "taken"
    assert reserve(quotas, "b", 40) == "taken"
    assert not quotas.within
    assert quotas.levels == (80, 40)
    assert quotas.settle("b", tokens(0)) == 1
    assert quotas.state() == [(40, 0), (40, 0)]


def test_a_clock_set_back_by_minutes_stops_a_rate_for_a_minute_at_most(client: redis.Redis) -> None:
    quotas = scripted(client, RATE)
    assert reserve(quotas, "a", 60) == "taken"
    quotas.set_clock(MIDNIGHT - 120_000)
    assert reserve(quotas, "b", 1) == "limited"
    assert quotas.wait == 1000, "it drains from now on"
    quotas.set_clock(MIDNIGHT - 119_000)
    assert reserve(quotas, "c", 1) == "taken"


def test_a_rate_pays_for_what_an_expired_request_used(client: redis.Redis) -> None:
    quotas = scripted(client, RATE)
    quotas.sweep()
    assert reserve(quotas, "a", 40) == "taken"
    expire(quotas, MIDNIGHT)
    assert quotas.state() == [(0, 0)]
    assert quotas.settle("a", tokens(30)) == 1
    assert quotas.state() == [(30, 0)]


# Places, and whose they are -------------------------------------------------------------------------------

PLACES = Rule("places", "held", "requests", 3)


def test_places_are_given_back_one_by_one(client: redis.Redis) -> None:
    quotas = scripted(client, PLACES)
    for name in "abc":
        assert reserve(quotas, name, 1) == "taken"
    assert reserve(quotas, "d", 1) == "limited"
    for name, left in (("a", 2), ("b", 1), ("c", 0)):
        assert quotas.settle(name, tokens(1)) == 1
        assert quotas.state() == [(0, left)]


def test_after_a_silence_nothing_expires_until_its_holder_had_time_to_come_back(client: redis.Redis) -> None:
    """For more than 40 s nothing was heard: Redis may have been away, and nobody could renew."""
    quotas = scripted(client, Rule("places", "held", "requests", 1))
    quotas.sweep()
    assert reserve(quotas, "a", 1) == "taken"
    for seconds, verdict in ((70, "limited"), (89, "limited"), (91, "taken")):
        quotas.set_clock(MIDNIGHT + 1000 * seconds)
        assert reserve(quotas, f"b{seconds}", 1) == verdict


def test_more_than_a_balance_is_not_there_yet_and_may_be_paid_in(client: redis.Redis) -> None:
    """Of a budget, what is more than the limit is refused for ever."""
    quotas = scripted(client, Rule("balance", "ever", "spend", 5), Rule("spend", "month", "spend", 50))
    for spend, verdict in ((6, "exhausted"), (51, "too large"), (5, "taken"), (1, "limited")):
        cost = Cost(1, 0, 0, spend)
        assert quotas.reserve(f"r{spend}", cost, cost) == verdict
