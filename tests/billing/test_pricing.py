"""Prices: the arithmetic of a bill, and which version a request pays."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from math import ceil

import pytest
import redis.asyncio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from billing.errors import MalformedEvent, PriceTaken
from billing.folding import MAX_COUNT
from billing.pricing import PriceBook, PriceService
from billing.rates import MAX_PERCENT, MAX_PRICE, MAX_RATE, Rate
from db.session import EVERY_TENANT, Database
from engine.protocol import Usage
from tests.support.examples import examples
from tests.support.statements import Statements
from tests.support.waiting import eventually

amounts = st.integers(0, 10**12)
counts = st.integers(0, 2**40)
rates = st.builds(Rate, st.just("prc_1"), amounts, amounts, amounts, st.integers(0, 10_000))


@st.composite
def usages(draw: st.DrawFn) -> Usage:
    prompt = draw(counts)
    return Usage(prompt, draw(st.integers(0, prompt)), draw(counts))


extreme_rates = st.builds(
    Rate,
    st.just("prc_1"),
    *[st.sampled_from([0, 1, 99_999_999, 10**8, 10**8 + 1, MAX_PRICE, MAX_RATE])] * 3,
    st.sampled_from([0, 1, 99, 100, 101, MAX_PERCENT]),
)
extreme_usages = st.sampled_from(
    [Usage(p, c, o) for p, c in ((0, 0), (1, 0), (1, 1), (10**9, 10**9 - 1)) for o in (0, 1, 10**9)]
    + [Usage(MAX_COUNT, 0, 0), Usage(MAX_COUNT, MAX_COUNT, 0), Usage(MAX_COUNT, MAX_COUNT - 1, MAX_COUNT)]
)
_IN_SQL = text("""
    SELECT number, usage_cost(prompt, cached, completion, input, cached_input, output, percent),
           usage_cost_share(cached, cached_input, percent), usage_cost_share(completion, output, percent)
    FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS x(
        number integer, prompt bigint, cached bigint, completion bigint,
        input bigint, cached_input bigint, output bigint, percent integer)
""")


@given(rates, usages())
def test_a_request_costs_the_exact_sum_rounded_up_once(rate: Rate, usage: Usage) -> None:
    exact = (
        Fraction(usage.prompt_tokens - usage.cached_tokens) * rate.input
        + Fraction(usage.cached_tokens) * rate.cached_input
        + Fraction(usage.completion_tokens) * rate.output
    ) * Fraction(rate.percent, 100 * 1_000_000)
    assert rate.cost(usage) == ceil(exact)


@settings(
    max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    bills=st.lists(
        st.tuples(st.one_of(rates, extreme_rates), st.one_of(usages(), extreme_usages)),
        min_size=1,
        max_size=25,
    )
)
@example([(Rate("p", 1, 1, 1), Usage(1, 0, 0)), (Rate("p", 10**8, 0, 0), Usage(10**15 + 1, 0, 0))])
async def test_the_ledgers_own_arithmetic_is_the_same_to_the_micro_dollar(
    database: Database, bills: list[tuple[Rate, Usage]]
) -> None:
    """Where the cost fits a bigint: the ledger takes no row that costs more."""
    documents = [
        {"number": number, "prompt": usage.prompt_tokens, "cached": usage.cached_tokens,
         "completion": usage.completion_tokens, "input": rate.input, "cached_input": rate.cached_input,
         "output": rate.output, "percent": rate.percent}
        for number, (rate, usage) in enumerate(bills)
        if rate.cost(usage) < 2**63
    ]  # fmt: skip
    async with database.read(EVERY_TENANT) as session:
        found = (await session.execute(_IN_SQL, {"rows": json.dumps(documents)})).all()
    assert len(found) == len(documents)
    for number, cost, cached_cost, output_cost in found:
        rate, usage = bills[number]
        assert cost == rate.cost(usage)
        assert cached_cost == usage.cached_tokens * rate.cached_input * rate.percent // 10**8
        assert output_cost == usage.completion_tokens * rate.output * rate.percent // 10**8
        exact_input = Fraction((usage.prompt_tokens - usage.cached_tokens) * rate.input * rate.percent, 10**8)
        assert exact_input <= cost - cached_cost - output_cost < exact_input + 3, "what rounding adds"


def test_the_most_that_a_journal_can_say_is_the_most_that_the_ledger_takes() -> None:
    assert Rate("p", MAX_RATE, MAX_RATE, MAX_RATE, MAX_PERCENT).cost(Usage(MAX_COUNT, 0, MAX_COUNT)) >= 2**63


@given(rates, usages(), st.integers(0, 1000), st.integers(0, 1000))
def test_the_worst_case_is_never_exceeded(rate: Rate, usage: Usage, more: int, longer: int) -> None:
    worst = rate.worst(usage.prompt_tokens + more, usage.completion_tokens + longer)
    assert rate.cost(usage) <= worst


@given(rates)
def test_a_rate_survives_its_label(rate: Rate) -> None:
    assert Rate.of_label(rate.label) == rate


@pytest.mark.parametrize(
    "label", ["", "prc_1", "prc_1:1:2:3", "prc_1:1:2:3:4:5", "prc_1:1:2:3:x", "prc_1:1:2:3:-4", "p:1:2:3:²"]
)
def test_a_damaged_label_is_refused(label: str) -> None:
    with pytest.raises(MalformedEvent, match="rate is"):
        Rate.of_label(label)


def test_one_token_costs_at_least_one_micro_dollar_and_nothing_costs_nothing() -> None:
    rate = Rate("prc_1", 1, 1, 1)
    assert rate.cost(Usage(1, 0, 0)) == 1
    assert rate.cost(Usage(0, 0, 0)) == 0


async def test_a_request_pays_the_version_in_effect_when_it_was_submitted(
    database: Database, redis_client: redis.asyncio.Redis
) -> None:
    service, book = PriceService(database, redis_client), PriceBook(database, redis_client)
    await book.start()
    try:
        now = datetime.now(UTC)
        assert await book.rate(100, now.timestamp(), False) == Rate("", 0, 0, 0)
        assert await book.rate(175, now.timestamp(), False) == Rate("", 0, 0, 0, 175)
        today = await service.add(
            input=150_000, cached_input=75_000, output=600_000, adapter_surcharge=7, adapter_gb_day=8
        )
        later = await service.add(input=1, cached_input=1, output=2, effective_from=now + timedelta(days=1))

        async def hears(submitted_at: datetime, price_id: str) -> bool:
            return (await book.rate(175, submitted_at.timestamp(), False)).price_id == price_id

        assert await eventually(lambda: hears(now + timedelta(hours=1), today.id)) < 1
        assert await hears(now - timedelta(days=1), "")
        assert await hears(now + timedelta(days=1), later.id)
        assert await book.rate(175, now.timestamp() + 60, False) == Rate(
            today.id, 150_000, 75_000, 600_000, 175
        )
        assert await book.rate(50, now.timestamp() + 60, True) == Rate(today.id, 150_007, 75_007, 600_007, 50)
        with Statements(database) as statements:
            await book.rate(50, now.timestamp() + 60, True)
        assert not statements.seen
        assert await service.list() == [today, later]
        with pytest.raises(PriceTaken):
            await service.add(input=1, cached_input=1, output=1, effective_from=later.effective_from)
        for wrong, words in (
            ({"input": -1}, "input must be"),
            ({"output": 10**13}, "output must be"),
            ({"adapter_surcharge": -1}, "adapter_surcharge must be"),
            ({"adapter_gb_day": 10**13}, "adapter_gb_day must be"),
            ({"calibration_job": -1}, "calibration_job must be"),
        ):
            with pytest.raises(ValueError, match=words):
                await service.add(**({"input": 1, "cached_input": 1, "output": 1} | wrong))
        with pytest.raises(ValueError, match="effective_from"):
            await service.add(input=1, cached_input=1, output=1, effective_from=now - timedelta(days=1))
    finally:
        await book.close()


@pytest.mark.parametrize("change", ["UPDATE prices SET input = 0", "DELETE FROM prices", "TRUNCATE prices"])
async def test_a_price_is_never_changed(
    database: Database, owner_database: Database, redis_client: redis.asyncio.Redis, change: str
) -> None:
    service = PriceService(database, redis_client)
    made = await service.add(input=1, cached_input=1, output=1)
    with pytest.raises(DBAPIError, match="never changed"):
        async with owner_database.write(EVERY_TENANT) as session:
            await session.execute(text(change))
    assert await service.list() == [made]
