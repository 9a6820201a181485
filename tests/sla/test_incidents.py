"""What is told of incidents, and how fast the service as a whole burns its budgets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import redis.asyncio
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError

from db.session import EVERY_TENANT, Database
from sla.errors import IncidentEnded, IncidentNotFound
from sla.incidents.burning import ServiceBurn
from sla.incidents.service import Incidents
from sla.measures import Counts
from sla.repository import SlaWriter
from tenants.actors import OPERATOR
from tenants.service import TenantService

NOW = datetime(2026, 5, 17, 12, 0, 30, tzinfo=UTC)


async def test_every_tenants_failures_burn_one_budget(
    database: Database, redis_client: redis.asyncio.Redis
) -> None:
    tenants = [await TenantService(database, redis_client).create_tenant(name) for name in ("acme", "birch")]
    async with database.write(EVERY_TENANT) as session:
        places = {
            (tenant.id, "default", NOW.replace(second=0) - timedelta(minutes=minutes)): Counts(100, failed)
            for tenant, minutes, failed in (
                (tenants[0], 2, 16),
                (tenants[1], 3, 0),
                (tenants[1], 40, 50),
                (tenants[0], 7 * 24 * 60, 100),
            )
        }
        await SlaWriter(session).add(places)
    burns = {burn.service_tier: burn for burn in await ServiceBurn(database, clock=lambda: NOW).now()}
    rates = {minutes: rest for minutes, *rest in burns["default"].windows}
    # Half a per cent may fail: 8 % are 16 times that, 66 of 300 are 44 times.
    assert rates[5] == [200, 16, pytest.approx(16)]
    assert rates[60] == [300, 66, pytest.approx(44)]
    assert burns["default"].alert == "page"
    assert burns["priority"].alert is None
    assert [rate for *_, rate in burns["priority"].windows] == [None] * len(rates)


async def test_tenants_are_told_what_is_public_and_open(database: Database) -> None:
    incidents = Incidents(database)
    quiet = await incidents.open("A disk is full", "minor", OPERATOR)
    loud = await incidents.open("Answers are slow", "major", OPERATOR, is_public=True, note="We look.")
    elsewhere = Incidents(database)  # another process
    for each in (incidents, elsewhere):
        (told,) = await each.public()
        assert (told.title, told.note) == ("Answers are slow", "We look.")
    await incidents.note(loud.id, "ours alone", OPERATOR, is_public=False)
    await incidents.set_public(quiet.id, True, OPERATOR)
    assert [(one.title, one.note) for one in await incidents.public()] == [
        ("A disk is full", ""),
        ("Answers are slow", "We look."),
    ]
    for change in ("UPDATE incident_notes SET body = 'nothing'", "DELETE FROM incident_notes"):
        with pytest.raises(ProgrammingError, match="permission denied"):
            async with database.write(EVERY_TENANT) as session:
                await session.execute(text(change))
    await incidents.close(loud.id, OPERATOR)
    assert [one.title for one in await incidents.public()] == ["A disk is full"]
    with pytest.raises(IncidentEnded):
        await incidents.close(loud.id, OPERATOR)
    for missing in ("inc_none", "\x00"):
        with pytest.raises(IncidentNotFound):
            await incidents.find(missing)
    for wrong in ("", "a\tb", "x" * 121, "two\nlines"):
        with pytest.raises(ValueError, match="title"):
            await incidents.open(wrong, "minor", OPERATOR)
    with pytest.raises(ValueError, match="began_at"):
        await incidents.open("x", "minor", OPERATOR, began_at=datetime.now(UTC) + timedelta(minutes=1))
