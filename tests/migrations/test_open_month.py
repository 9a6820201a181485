"""A release that comes between the end of a month and its invoices: they are what they would have been."""

from __future__ import annotations

import pytest
import redis.asyncio

from billing.invoices.settings import InvoiceSettings
from billing.invoices.verification import InvoiceVerification
from db import schema
from db.session import Database
from tenants.actors import OPERATOR
from tests.billing.invoices.conftest import NOVEMBER, OCTOBER, SEPTEMBER, Business, at

SETTINGS = InvoiceSettings(seller_name="Acorn Serving Ltd")


@pytest.mark.parametrize("before", ["0008", "0014"])
async def test_a_month_that_is_over_and_not_invoiced_is_invoiced_after_the_upgrade_as_before_it(
    before: str, database_url: str, owner_url: str, redis_client: redis.asyncio.Redis
) -> None:
    """0008 was the first with invoices, 0014 the last under which Stripe asked for what the meter had."""
    old = Database(database_url)
    business = Business(old, redis_client, SETTINGS)
    acme = await business.tenant()
    await business.set_plan(acme.id, 2_000_000, 300_000)
    await business.use(acme.id, at(SEPTEMBER), 1_234_567)
    await business.close(at(OCTOBER, 2))
    await business.use(acme.id, at(OCTOBER, 30), 777_777, cached=70_000, completion=9)
    await business.use(acme.id, at(SEPTEMBER, 30), 4_321)  # recorded late
    await business.credits.add(acme.id, "grant", 123_456, "welcome", OPERATOR, now=at(OCTOBER, 3))
    expected = await business.invoices.preview(acme.id, OCTOBER, now=at(NOVEMBER, 1))
    await old.close()

    schema.downgrade(owner_url, before)
    schema.upgrade(owner_url, database_url)

    new = Database(database_url)
    business = Business(new, redis_client, SETTINGS)
    business.charge_at_least(50)
    assert (await business.close(at(NOVEMBER, 1, 12))).months == (), "it is not the second yet"
    assert (await business.close(at(NOVEMBER, 2))).months == (OCTOBER,)
    made = await business.invoice(acme.id, OCTOBER)
    assert (made.lines, made.total, made.total_cents) == (
        expected.lines,
        expected.total,
        expected.total_cents,
    )
    assert made.lines[0].kind == "carried", "of an invoice of the release before"
    assert made.number == 2
    assert await InvoiceVerification(new).verify() == []
    await new.close()
