"""`rootstock invoice` and `rootstock credit`, against a real database."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from billing.folding import measure
from billing.rates import RATE_LABEL, Rate
from billing.repository import LedgerWriter
from cli import service_access
from db.session import EVERY_TENANT, Database
from tests.cli.commands import refusal, run
from tests.support.journal import usage_event


@pytest.fixture
def environment(environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    seller = {"ROOTSTOCK_INVOICE_SELLER_NAME": "Acorn Serving Ltd"}
    for name, value in seller.items():
        monkeypatch.setenv(name, value)
    return {**environment, **seller}


async def spend(environment: Mapping[str, str], tenant: str, when: datetime, tokens: int) -> None:
    """Of a micro-USD each."""
    async with service_access.open_services(environment) as services:
        labels = {"key_id": "k", "model": "sapling", "service_tier": "default"}
        labels[RATE_LABEL] = Rate("prc_1", 10**6, 10**6, 10**6).label
        at = when.timestamp()
        event = usage_event(
            "req-1", tokens, 0, tenant=tenant, submitted_at=at, recorded_at=at + 1, labels=labels
        )
        async with services.database.write(EVERY_TENANT) as session:
            await LedgerWriter(session).upsert([measure(event)])


def test_a_month_is_closed_shown_paid_corrected_and_proved(
    environment: Mapping[str, str], owner_url: str, tmp_path: Path
) -> None:
    run("plan", "create", "team", "--monthly-fee", "0")
    tenant = run("tenant", "create", "acme").strip()
    now = datetime.now(UTC)
    earlier = now.replace(day=1) - timedelta(days=40)
    month = f"{earlier:%Y-%m}"
    asyncio.run(spend(environment, tenant, earlier, 12_345_678))
    assert run("credit", "add", "acme", "2.345678", "--reference", "welcome") == "2.345678\n"

    assert "Total for" in run("invoice", "preview", "acme", "--month", month)
    assert month in run("invoice", "close")
    assert run("invoice", "close") == "nothing is due\n"
    number, of_month, total, to_pay, status, *_, invoice = (
        run("invoice", "list", "acme").splitlines()[1].split()
    )
    assert (number, of_month, total, to_pay, status) == ("INV-000001", month, "10.00", "10.00", "open")
    shown = run("invoice", "show", invoice)
    assert "12,345,678 tokens" in shown
    assert "-2.345678" in shown
    document = tmp_path / "invoice.pdf"
    run("invoice", "show", invoice, "--pdf", str(document))
    assert document.read_bytes().startswith(b"%PDF")

    assert run("invoice", "credit-note", invoice, "1.50", "--reason", "slow") == "CN-000001\n"
    run("invoice", "paid", invoice, "8.50", "--reference", "bank-1")
    assert run("invoice", "list", "acme").splitlines()[1].split()[3:5] == ["0.00", "paid"]
    assert "at most 0 cents" in refusal("invoice", "credit-note", invoice, "0.01", "--reason", "more")
    assert "No invoice" in refusal("invoice", "show", "inv_nobodys")
    assert "12.345" in refusal("invoice", "paid", invoice, "12.345", "--reference", "x")

    assert run("invoice", "verify") == "every invoice matches the ledger\n"
    asyncio.run(_damage(owner_url))
    assert "usage input sapling default" in run("invoice", "verify", "acme", code=1)


async def _damage(owner_url: str) -> None:
    database = Database(owner_url)
    async with database.write(EVERY_TENANT) as session:
        await session.execute(text("SET LOCAL session_replication_role = replica"))
        await session.execute(text("DELETE FROM usage_records"))
    await database.close()


def test_a_tenant_pays_in_advance(environment: Mapping[str, str]) -> None:
    tenant = run("tenant", "create", "acme").strip()
    assert run("credit", "mode", "acme", "prepaid") == "acme is prepaid\n"
    for _ in range(2):
        run("credit", "add", "acme", "5", "--kind", "top_up", "--reference", "pi_1", "--reason", "a payment")
    asyncio.run(spend(environment, tenant, datetime.now(UTC) + timedelta(minutes=2), 1_000_000))
    rows = run("credit", "list", "acme").splitlines()
    assert [row.split()[-1] for row in rows[-2:]] == ["-1.000000", "4.000000"]
    assert "is not an amount in dollars" in refusal("credit", "add", "acme", "five", "--reference", "x")
    assert "amount" in refusal("credit", "add", "acme", "0", "--reference", "x")


def test_a_balance_is_paid_back(environment: Mapping[str, str]) -> None:
    run("tenant", "create", "acme")
    run("credit", "add", "acme", "5", "--reference", "earned")
    for _ in range(2):
        assert run("credit", "pay-back", "acme", "3.5", "--reference", "bank-7") == "1.500000\n"
    assert run("credit", "list", "acme").splitlines()[2].split()[2:] == [
        "refund",
        "-3.500000",
        "never",
        "bank-7",
    ]
    assert "'bank-7' was paid back before" in refusal(
        "credit", "pay-back", "acme", "1", "--reference", "bank-7"
    )
    for amount in ("1.500001", "0"):
        assert "amount" in refusal("credit", "pay-back", "acme", amount, "--reference", "bank-8")
    assert "reference" in refusal("credit", "pay-back", "acme", "1", "--reference", "")
    assert run("credit", "list", "acme").splitlines()[-1].split()[-1] == "1.500000"
