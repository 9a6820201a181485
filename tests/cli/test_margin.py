"""`rootstock billing margin`, over a ledger that is there."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner

from billing.rates import Rate
from cli import service_access
from cli.errors import CliError
from cli.main import app
from engine.protocol import Usage
from tests.support.booked import request, write

AT = datetime(2026, 10, 1, 12, tzinfo=UTC).timestamp()


async def _sold() -> str:
    async with service_access.open_services(service_access.environment_of(None)) as services:
        tenant = await services.accounts.tenants.create_tenant("acme")
        used, rate = Usage(600_000, 0, 400_000), Rate("prc_1", 4_000_000, 4_000_000, 4_000_000)
        await write(services.database, [request(tenant.id, AT, usage=used, rate=rate, took=3600.25)])
        return tenant.id


def test_it_shows_what_a_month_brought_in(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROOTSTOCK_DB_URL", database_url)
    monkeypatch.setenv("ROOTSTOCK_REDIS_URL", redis_url)
    monkeypatch.setenv("ROOTSTOCK_TENANTS_KEY_SECRET", "a secret of at least thirty-two characters")
    monkeypatch.delenv("ROOTSTOCK_DATA", raising=False)
    tenant = asyncio.run(_sold())
    asked = ["billing", "margin", "--month", "2026-10", "--gpus", "0"]
    missing = CliRunner().invoke(app, asked)
    assert missing.exit_code == 2
    assert "gpu-hour-price" in missing.output
    monkeypatch.setenv("ROOTSTOCK_BILLING_GPU_HOUR_PRICE", "2500000")
    shown = CliRunner().invoke(app, asked)
    assert shown.exit_code == 0, shown.output
    header, *rows = (line.split() for line in shown.output.split("\n\n")[0].splitlines())
    assert header[0] == "TENANT"
    assert rows == [
        ["acme", "default", "1", "600000", "400000", "1.000", "4.000000", "2.500000", "1.500000"],
        ["(idle)", "0.000", "0.000000", "0.000000", "0.000000"],
        ["(all)", "1", "600000", "400000", "1.000", "4.000000", "2.500000", "1.500000"],
    ]
    assert "cost per million tokens  " in shown.output
    as_json = json.loads(CliRunner().invoke(app, [*asked, "--json"]).output)
    assert (as_json["margin"], as_json["cost_per_million_tokens"]) == (1_500_000, 2_500_000)
    assert as_json["tokens_per_busy_second"] == 1_000_000 // 3600
    assert [line["tenant_id"] for line in as_json["lines"]] == [tenant]
    refused = CliRunner().invoke(app, [*asked[:2], "--month", "2099-12"])
    assert isinstance(refused.exception, CliError)
    assert "month: 2099-12 has not begun" in str(refused.exception)
