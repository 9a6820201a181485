"""`rootstock billing stripe`: what waits is listed, sent and left, against a real database and the double."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from cli import service_access
from db.session import EVERY_TENANT
from examples.stripe_double import API_KEY, StripeDouble
from tests.cli.commands import refusal, run

HOUR = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=5)


async def waiting(environment: Mapping[str, str]) -> None:
    """An event and an invoice that somebody has to look at."""
    async with (
        service_access.open_services(environment) as services,
        services.database.write(EVERY_TENANT) as session,
    ):
        for statement in (
            "INSERT INTO tenants (id, name) VALUES ('tnt_a', 'acme')",
            "INSERT INTO billing_accounts (tenant_id, stripe_customer_id) VALUES ('tnt_a', 'cus_a')",
            "INSERT INTO meter_events (tenant_id, hour, number, value, identifier, state, error) "
            "VALUES ('tnt_a', :hour, 0, 70, 'tnt_a:0', 'manual', 'too old')",
            "INSERT INTO stripe_documents (id, tenant_id, kind, invoice_id, cents, state, error) "
            "VALUES ('inv_a', 'tnt_a', 'invoice', 'inv_a', 500, 'manual', 'another amount')",
        ):
            values = {"hour": HOUR} if ":hour" in statement else {}
            await session.execute(text(statement), values)


async def states(environment: Mapping[str, str]) -> list[str]:
    query = "SELECT state FROM meter_events UNION ALL SELECT state FROM stripe_documents"
    async with (
        service_access.open_services(environment) as services,
        services.database.read(EVERY_TENANT) as session,
    ):
        return list((await session.execute(text(query))).scalars())


async def test_what_waits_is_listed_and_left(environment: Mapping[str, str]) -> None:
    await waiting(environment)
    shown = await asyncio.to_thread(run, "billing", "stripe", "manual")
    assert [line.split()[0] for line in shown.splitlines()[1:]] == ["tnt_a:0", "inv_a"]
    assert "5000000" in shown
    assert "too old" in shown
    counted = await asyncio.to_thread(run, "billing", "stripe", "status")
    assert [line.split()[-1] for line in counted.splitlines()[1:]] == ["0", "2", "0", "0"]
    for entry in ("tnt_a:0", "inv_a"):
        await asyncio.to_thread(run, "billing", "stripe", "waive", entry, "--reason", "paid by wire")
    assert await states(environment) == ["waived", "waived"]
    again = await asyncio.to_thread(refusal, "billing", "stripe", "waive", "inv_a", "--reason", "x")
    assert "'inv_a'" in again


async def test_what_waits_is_sent(environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    await waiting(environment)
    refused = await asyncio.to_thread(refusal, "billing", "stripe", "send", "tnt_a:0")
    assert "ROOTSTOCK_STRIPE_API_KEY" in refused
    with StripeDouble().serving() as double:
        monkeypatch.setenv("ROOTSTOCK_STRIPE_API_KEY", API_KEY)
        monkeypatch.setenv("ROOTSTOCK_STRIPE_API_BASE", double.url)
        gone = await asyncio.to_thread(refusal, "billing", "stripe", "send", "tnt_a:0")
        assert "No active meter" in gone
        double.meters.create_meter(
            {"event_name": "rootstock_micro_usd", "display_name": "", "default_aggregation": {}}
        )
        customer = double.books.make("cus", "customer", balance=0)
        double.books.objects["cus_a"] = customer | {"id": "cus_a"}
        for entry in ("tnt_a:0", "inv_a"):
            await asyncio.to_thread(run, "billing", "stripe", "send", entry)
        assert [one["value"] for one in double.meters.received] == [70]
    assert await states(environment) == ["sent", "pending"], "the next round sends the invoice"
