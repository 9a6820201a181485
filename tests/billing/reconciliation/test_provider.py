"""The payment provider's sums beside what was sent to it, on the double."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import text

from billing.reconciliation.provider import compare_planning, compare_provider
from db.session import EVERY_TENANT
from examples.stripe_double import Fault
from tests.billing.payments.conftest import START, Site, double, gateway, settings, site
from tests.billing.payments.usage import TENANT, use

__all__ = ["double", "gateway", "settings", "site"]

NINE = START.replace(minute=0)
HOUR = timedelta(hours=1)
DAY = NINE.replace(hour=0)


async def metered(site: Site) -> None:
    """Two hours of usage, sent and summed up."""
    await use(site.database, NINE + HOUR, 70)
    await use(site.database, NINE + 2 * HOUR, 30)
    site.travel(NINE + 8 * HOUR)
    await site.meter()


async def test_what_was_sent_is_what_was_metered(site: Site) -> None:
    await metered(site)
    span = DAY, DAY + timedelta(days=1), site.now
    assert not await compare_planning(site.database, site.now)
    assert not await compare_provider(site.database, site.gateway, *span)


async def test_an_event_the_provider_has_twice_or_not_is_named(site: Site) -> None:
    await metered(site)
    await site.gateway.meter(site.customer, 30, NINE + 2 * HOUR, "by hand")
    span = DAY, DAY + timedelta(days=1), site.now
    [twice] = await compare_provider(site.database, site.gateway, *span)
    assert (twice.tenant_id, twice.at, twice.expected, twice.found) == (TENANT, NINE + 2 * HOUR, 30, 60)
    async with site.database.write(EVERY_TENANT) as session:
        changed = "UPDATE meter_events SET value = 75 WHERE hour = :hour"
        await session.execute(text(changed), {"hour": NINE + HOUR})
    found = await compare_provider(site.database, site.gateway, *span)
    assert [(one.at, one.expected, one.found) for one in found] == [
        (NINE + HOUR, 75, 70),
        (NINE + 2 * HOUR, 30, 60),
    ]


async def test_hours_that_nobody_planned_are_named(site: Site) -> None:
    await metered(site)
    await use(site.database, NINE + HOUR, 5)
    [late] = await compare_planning(site.database, site.now)
    assert (late.at, late.expected, late.what) == (NINE + HOUR, 5, "micro-USD not planned, of the hour")
    await site.meter()
    assert not await compare_planning(site.database, site.now)


async def test_an_event_that_waits_for_a_person_is_named(site: Site) -> None:
    await use(site.database, NINE + HOUR, 70)
    site.travel(NINE + 3 * HOUR)
    await site.planning.plan(site.now)
    site.double.fail(Fault("unreachable", times=-1))
    await site.sending.send()
    site.wait(days=36)
    site.double.heal()
    await site.sending.send()
    found = await compare_planning(site.database, site.now)
    [one] = [difference for difference in found if "waits for a person" in difference.what]
    assert (one.tenant_id, one.expected) == (TENANT, 70)
