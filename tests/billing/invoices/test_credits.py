"""Balances: what goes in, what is drawn, what an invoice takes, what ends."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from billing.invoices.credits import record_credit
from billing.invoices.errors import CreditNotAllowed
from billing.months import begin
from billing.reversals import ReversalService
from tenants.actors import OPERATOR
from tests.billing.invoices.conftest import DECEMBER, NOVEMBER, OCTOBER, Business, at

MINUTE = timedelta(minutes=1)


async def test_a_payment_that_is_recorded_twice_counts_once(business: Business) -> None:
    acme = await business.tenant()

    async def pay() -> str:
        entry = await business.credits.add(acme.id, "top_up", 5_000, "pi_1", OPERATOR, now=at(OCTOBER))
        return entry.id

    ids = await asyncio.gather(*(pay() for _ in range(5)))
    assert len(set(ids)) == 1
    assert (await business.credits.balance(acme.id)).amount == 5_000
    await business.credits.add(acme.id, "grant", 1, "pi_1", OPERATOR, now=at(OCTOBER))
    assert (await business.credits.balance(acme.id)).amount == 5_001, "of another kind"


async def test_what_is_rolled_back_was_never_paid(business: Business) -> None:
    acme = await business.tenant()

    async def fail_after_it() -> None:
        async with business.database.write(acme.id) as session:
            await record_credit(
                session, business.redis, acme.id, "top_up", 5_000, "pi_1", OPERATOR, at=at(OCTOBER)
            )
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fail_after_it()
    assert (await business.credits.balance(acme.id)).amount == 0


async def test_credit_is_taken_by_invoices_until_there_is_none(business: Business) -> None:
    acme = await business.tenant()
    await business.credits.add(acme.id, "grant", 25_000, "welcome", OPERATOR, now=at(OCTOBER))
    for month in (OCTOBER, NOVEMBER):
        await business.use(acme.id, at(month), 20_000)
    await business.close(at(DECEMBER, 2))
    october, november = [await business.invoice(acme.id, month) for month in (OCTOBER, NOVEMBER)]
    assert (october.total, november.total) == (0, 15_000)
    balance = await business.credits.balance(acme.id)
    assert (balance.credits, balance.used, balance.amount) == (0, 0, 0)
    assert [entry.kind for entry in await business.credits.list(acme.id)] == ["applied", "applied", "grant"]


async def test_prepaid_usage_draws_as_it_happens_and_is_not_asked_for_again(business: Business) -> None:
    acme = await business.tenant()
    await business.credits.add(acme.id, "top_up", 100_000, "pi_1", OPERATOR, now=at(OCTOBER))
    await business.use(acme.id, at(OCTOBER, 9), 30_000)
    began = at(OCTOBER, 10).replace(second=30)
    assert (await business.accounts.set_mode(acme.id, "prepaid", OPERATOR, now=began)).mode == "prepaid"
    await business.use(acme.id, at(OCTOBER, 10), 1_000)  # the minute counts from its beginning
    await business.use(acme.id, at(OCTOBER, 10) - MINUTE, 500)
    await business.use(acme.id, at(OCTOBER, 20), 40_000)
    assert (await business.credits.balance(acme.id)).amount == 100_000 - 41_000
    await business.close(at(NOVEMBER, 2))
    invoice = await business.invoice(acme.id, OCTOBER)
    assert [(line.kind, line.amount) for line in invoice.lines] == [
        ("usage", 71_500),
        ("prepaid", -41_000),
        ("credit", -30_500),
    ]
    assert (await business.credits.balance(acme.id)).amount == 100_000 - 71_500


async def test_late_prepaid_usage_is_drawn_and_shown_and_not_asked_for(business: Business) -> None:
    acme = await business.tenant()
    await business.credits.add(acme.id, "top_up", 100_000, "pi_1", OPERATOR, now=at(OCTOBER))
    await business.accounts.set_mode(acme.id, "prepaid", OPERATOR, now=begin(OCTOBER))
    await business.use(acme.id, at(OCTOBER), 20_000)
    await business.close(at(NOVEMBER, 2))
    await business.use(acme.id, at(OCTOBER, 30), 3_000)
    await business.close(at(DECEMBER, 2))
    november = await business.invoice(acme.id, NOVEMBER)
    assert [(line.kind, line.month, line.amount) for line in november.lines] == [
        ("usage", OCTOBER, 3_000),
        ("prepaid", OCTOBER, -3_000),
    ]
    assert november.total == 0
    assert (await business.credits.balance(acme.id)).amount == 77_000


async def test_what_is_left_when_paying_in_advance_ends_pays_invoices(business: Business) -> None:
    acme = await business.tenant()
    await business.credits.add(acme.id, "top_up", 50_000, "pi_1", OPERATOR, now=at(OCTOBER))
    await business.accounts.set_mode(acme.id, "prepaid", OPERATOR, now=at(OCTOBER, 1))
    await business.use(acme.id, at(OCTOBER, 5), 20_000)
    await business.accounts.set_mode(acme.id, "postpaid", OPERATOR, now=at(OCTOBER, 10))
    await business.use(acme.id, at(OCTOBER, 15), 40_000)
    assert (await business.credits.balance(acme.id)).amount == 30_000
    await business.close(at(NOVEMBER, 2))
    invoice = await business.invoice(acme.id, OCTOBER)
    assert (invoice.total, (await business.credits.balance(acme.id)).amount) == (10_000, 0)
    await business.accounts.set_mode(acme.id, "prepaid", OPERATOR, now=at(NOVEMBER, 3))
    await business.use(acme.id, at(NOVEMBER, 4), 1_000)
    assert (await business.credits.balance(acme.id)).amount == -1_000, (
        "the second period draws like the first"
    )


async def test_periods_that_follow_at_once_do_not_overlap(business: Business) -> None:
    acme, now = await business.tenant(), at(OCTOBER)
    for mode in ("prepaid", "postpaid", "prepaid", "postpaid", "prepaid"):
        await business.accounts.set_mode(acme.id, mode, OPERATOR, now=now)  # type: ignore[arg-type]
    await business.use(acme.id, now + 5 * MINUTE, 1_000)
    assert (await business.credits.balance(acme.id)).used == 1_000


async def test_a_month_below_zero_is_put_into_the_balance(business: Business) -> None:
    acme = await business.tenant()
    request = await business.use(acme.id, at(OCTOBER), 50_000)
    await business.close(at(NOVEMBER, 2))
    await ReversalService(business.database).reverse_request(
        acme.id, request, at(OCTOBER), reason="billed in error", by=OPERATOR, now=at(NOVEMBER, 5)
    )
    await business.use(acme.id, at(NOVEMBER, 6), 20_000)
    await business.close(at(DECEMBER, 2))
    assert (await business.invoice(acme.id, OCTOBER)).total == 50_000, "the closed month stays as it was"
    november = await business.invoice(acme.id, NOVEMBER)
    assert (november.total, november.lines[-1].kind, november.lines[-1].amount) == (0, "kept", 30_000)
    assert (await business.credits.balance(acme.id)).amount == 30_000


async def test_only_what_is_there_is_paid_back(business: Business) -> None:
    acme = await business.tenant()
    await business.credits.add(acme.id, "top_up", 5_000, "pi_1", OPERATOR, now=at(OCTOBER))
    with pytest.raises(CreditNotAllowed, match="at most 5000"):
        await business.credits.pay_back(acme.id, 5_001, "re_1", OPERATOR, now=at(OCTOBER))
    for _ in range(2):
        await business.credits.pay_back(acme.id, 5_000, "re_1", OPERATOR, now=at(OCTOBER))
    assert (await business.credits.balance(acme.id)).amount == 0


async def test_what_is_left_of_a_credit_ends_with_it(business: Business) -> None:
    acme, birch = await business.tenant(), await business.tenant("birch")
    for tenant in (acme, birch):
        await business.credits.add(tenant.id, "top_up", 10_000, "pi_1", OPERATOR, now=at(OCTOBER, 1))
        await business.credits.add(
            tenant.id, "grant", 5_000, "promo", OPERATOR, now=at(OCTOBER, 2), expires_at=at(NOVEMBER, 5)
        )
    await business.use(acme.id, at(OCTOBER), 2_000)
    await business.close(at(NOVEMBER, 2))
    assert await business.credits.expire(at(NOVEMBER, 4)) == 0
    assert await business.credits.expire(at(NOVEMBER, 5)) == 2
    assert await business.credits.expire(at(NOVEMBER, 6)) == 0
    assert (await business.credits.balance(acme.id)).amount == 10_000, "2 000 were drawn from the grant"
    assert (await business.credits.balance(birch.id)).amount == 10_000


async def test_a_credit_that_was_used_up_does_not_end_twice(business: Business) -> None:
    acme = await business.tenant()
    await business.credits.add(
        acme.id, "grant", 5_000, "promo", OPERATOR, now=at(OCTOBER, 2), expires_at=at(NOVEMBER, 5)
    )
    await business.accounts.set_mode(acme.id, "prepaid", OPERATOR, now=at(OCTOBER, 2))
    await business.use(acme.id, at(OCTOBER), 6_000)
    await business.credits.add(acme.id, "top_up", 3_000, "pi_1", OPERATOR, now=at(OCTOBER, 20))
    assert await business.credits.expire(at(NOVEMBER, 5)) == 0
    assert (await business.credits.balance(acme.id)).amount == 2_000


async def test_usage_before_a_credit_was_given_is_not_taken_from_it(business: Business) -> None:
    acme = await business.tenant()
    await business.accounts.set_mode(acme.id, "prepaid", OPERATOR, now=at(OCTOBER, 1))
    await business.credits.add(acme.id, "top_up", 4_000, "pi_1", OPERATOR, now=at(OCTOBER, 1))
    await business.use(acme.id, at(OCTOBER, 2), 4_000)
    await business.credits.add(
        acme.id, "grant", 5_000, "promo", OPERATOR, now=at(OCTOBER, 20), expires_at=at(NOVEMBER, 5)
    )
    assert await business.credits.expire(at(NOVEMBER, 5)) == 1
    assert (await business.credits.balance(acme.id)).amount == 0, "all of the grant was left"


async def test_no_more_of_a_credit_ends_than_the_balance_has(business: Business) -> None:
    acme = await business.tenant()
    await business.accounts.set_mode(acme.id, "prepaid", OPERATOR, now=at(OCTOBER, 1))
    await business.use(acme.id, at(OCTOBER, 2), 2_000)
    await business.credits.add(
        acme.id, "grant", 5_000, "promo", OPERATOR, now=at(OCTOBER, 20), expires_at=at(NOVEMBER, 5)
    )
    assert (await business.credits.balance(acme.id)).amount == 3_000
    assert await business.credits.expire(at(NOVEMBER, 5)) == 1
    assert (await business.credits.balance(acme.id)).amount == 0


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"email": "nobody"}, "email"), ({"country": "France"}, "country"), ({"name": "a\x00"}, "name"),
     ({"colour": "red"}, "colour"), ({"tax_id": "1" * 41}, "tax_id")],
)  # fmt: skip
async def test_a_wrong_detail_is_named(business: Business, changes: dict[str, str], field: str) -> None:
    with pytest.raises(ValueError, match=f"^{field}"):
        await business.accounts.set_details("tnt_a", OPERATOR, changes)
