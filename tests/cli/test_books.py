"""`rootstock billing reconcile`: its forms and exit codes, against a real database and Redis."""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from billing.folding import measure
from billing.repository import LedgerWriter
from billing.request_ids import new_request_id
from cli import service_access
from cli.errors import UsageError
from cli.reconcile_command import span_of
from db.session import EVERY_TENANT
from tests.cli.commands import refusal, run
from tests.support.journal import usage_event

DAY = timedelta(days=1)


async def test_the_command_says_whether_the_books_balance(
    environment: Mapping[str, str], tmp_path: Path
) -> None:
    now = datetime.now(UTC)
    at = now.replace(hour=0, minute=0, second=0, microsecond=0).timestamp()
    async with service_access.open_services(environment) as services:
        tenant = await services.accounts.tenants.create_tenant("acme")
        request_id = new_request_id("chatcmpl", at)
        event = usage_event(request_id, tenant=tenant.id, submitted_at=at, finish_reason="stop")
        async with services.database.write(EVERY_TENANT) as session:
            await LedgerWriter(session).upsert([measure(event)])
    shown = await asyncio.to_thread(run, "billing", "reconcile")
    assert "The books balance." in shown
    assert "stripe           not compared: there is no payment provider" in shown
    async with (
        service_access.open_services(environment) as services,
        services.database.write(EVERY_TENANT) as session,
    ):
        await session.execute(text("UPDATE usage_rollup_hours SET prompt_tokens = 99"))
    shown = await asyncio.to_thread(run, "billing", "reconcile", code=1)
    assert "expected 10, found 99" in shown
    assert "The books do not balance." in shown
    document = json.loads(await asyncio.to_thread(run, "billing", "reconcile", "--format", "json", code=1))
    assert not document["balanced"]
    assert [one["found"] for one in document["differences"]] == [99]
    out = tmp_path / "differences.csv"
    month = ("--month", now.strftime("%Y-%m"))
    await asyncio.to_thread(run, "billing", "reconcile", *month, "--format", "csv", "--out", str(out), code=1)
    with out.open(newline="") as file:
        _, line = csv.reader(file)
    assert line[:2] == ["rollups", tenant.id]
    assert line[4:] == ["10", "99", "89"]
    assert "--out" in await asyncio.to_thread(
        refusal, "billing", "reconcile", "--out", str(tmp_path / "no" / "way")
    )


def test_days_are_whole_and_begin_when_they_should() -> None:
    now = datetime(2027, 3, 15, 13, 45, tzinfo=UTC)
    today = datetime(2027, 3, 15, tzinfo=UTC)
    assert span_of(None, 2, now) == (today - DAY, today + DAY)
    assert span_of("2027-03", 2, now) == (datetime(2027, 3, 1, tzinfo=UTC), today + DAY)
    assert span_of("2026-12", 2, now) == (datetime(2026, 12, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC))
    for wrong in ("March", "2027-04"):
        with pytest.raises(UsageError, match=wrong):
            span_of(wrong, 2, now)
