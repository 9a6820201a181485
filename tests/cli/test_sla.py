"""`rootstock sla`: hours and days of service levels are checked and mended."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime

from sqlalchemy import text

from cli import service_access
from db.session import EVERY_TENANT
from sla.measures import Counts
from sla.repository import SlaWriter
from tests.cli.commands import refusal, run

LAST = datetime(2025, 12, 31, 23, 59, tzinfo=UTC)


async def test_sums_are_checked_and_mended(environment: Mapping[str, str]) -> None:
    counts = Counts(5, 1)
    counts.first_token(0.1, 0.5)
    async with (
        service_access.open_services(environment) as services,
        services.database.write(EVERY_TENANT) as session,
    ):
        await SlaWriter(session).add({("tnt_a", "flex", LAST): counts})
        await session.execute(text("UPDATE sla_hours SET requests = 7, first_token_histogram[1] = 3"))
    check = ("sla", "rederive", "--month", "2025-12")
    shown = await asyncio.to_thread(run, *check, code=1)
    assert shown.splitlines()[1].split() == [
        *("hour", "tnt_a", "flex", "2025-12-31", "23:00", "requests", "first_token_histogram"),
        *("5", "1", "7", "4"),
    ]
    assert "every hour and day" in await asyncio.to_thread(run, "sla", "rederive", "--month", "2025-11")
    assert "1 sums corrected" in await asyncio.to_thread(run, *check, "--fix")
    assert "every hour" in await asyncio.to_thread(run, *check)
    assert "2027-01" in await asyncio.to_thread(refusal, "sla", "rederive", "--month", "December")
