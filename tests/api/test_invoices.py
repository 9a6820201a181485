"""Invoices over HTTP: shapes, pages, who may read them, and the document."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import httpx

from billing.invoices.credits import CreditService
from billing.rates import Rate
from engine.protocol import Usage
from tenants.actors import OPERATOR
from tenants.key_restrictions import KeyRestrictions
from tests.api.everything import Everything
from tests.support import booked

URL = "/v1/organization/invoices"


async def test_invoices_previews_and_documents(both: Everything) -> None:
    await _final(both)
    await _running(both)


async def test_the_balance_and_who_may_see_bills(both: Everything) -> None:
    await _balance(both)
    await _permissions(both)


async def _final(both: Everything) -> None:
    """An invoice, its preview and its document."""
    client = both.ours.admin
    listed = (await client.get(URL)).json()
    assert (listed["object"], listed["has_more"], len(listed["data"])) == ("list", False, 1)
    assert "lines" not in listed["data"][0]
    invoice = (await client.get(f"{URL}/{both.ours.ids['invoice_id']}")).json()
    assert {name: invoice[name] for name in ("object", "number", "status", "month", "currency")} == {
        "object": "organization.invoice",
        "number": "INV-000001",
        "status": "open",
        "month": "2026-10",
        "currency": "usd",
    }
    assert listed["data"][0]["id"] == listed["first_id"] == invoice["id"]
    assert sum(line["amount_micro_usd"] for line in invoice["lines"]) == invoice["total_micro_usd"] > 0
    assert (
        invoice["total_cents"] * 10_000 + invoice["carried_to_next_micro_usd"] == invoice["total_micro_usd"]
    )
    line = invoice["lines"][0]
    assert (line["kind"], line["item"], line["month"], line["late"]) == ("usage", "input", "2026-10", False)
    for path in (f"{URL}/{invoice['id']}/pdf", f"{URL}/preview/pdf?month=2026-10"):
        answer = await client.get(path)
        assert answer.headers["content-type"] == "application/pdf"
        assert "INV-000001.pdf" in answer.headers["content-disposition"]
        assert answer.content.startswith(b"%PDF")
    assert (await client.get(f"{URL}/preview?month=2026-10")).json() == invoice, "final is final"


async def _running(both: Everything) -> None:
    """The preview of this month has what was just used."""
    client, now = both.ours.admin, datetime.now(UTC)
    before = (await client.get(f"{URL}/preview")).json()
    assert (before["id"], before["number"], before["status"]) == (None, None, "draft")
    used = booked.request(
        both.ours.tenant_id, now.timestamp(), usage=Usage(7, 0, 0), rate=Rate("prc_1", 10**6, 0, 0)
    )
    await booked.write(both.place.database, [used])
    after = (await client.get(f"{URL}/preview?month={now:%Y-%m}")).json()
    assert after["total_micro_usd"] - before["total_micro_usd"] == 7
    for wrong in ("2026-13", "26-10", "2026-10-01", "2099-01", "november"):
        answer = await client.get(f"{URL}/preview?month={wrong}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "month"), wrong


async def _balance(both: Everything) -> None:
    credits, now = CreditService(both.place.database, both.place.redis), datetime.now(UTC)
    for number in (1, 2):
        await credits.add(
            both.ours.tenant_id, "grant", 1_000, f"g{number}", OPERATOR, now=now,
            reason="welcome", expires_at=now + timedelta(days=30),
        )  # fmt: skip
    balance = (await both.ours.admin.get("/v1/organization/balance")).json()
    assert (balance["amount_micro_usd"], balance["used_micro_usd"]) == (2_000, 0)
    first = (await both.ours.admin.get("/v1/organization/credits?limit=1&order=asc")).json()
    assert first["has_more"] is True
    rest = (await both.ours.admin.get(f"/v1/organization/credits?order=asc&after={first['last_id']}")).json()
    shown = [*first["data"], *rest["data"]]
    assert [one["amount_micro_usd"] for one in shown] == [1_000, 1_000]
    assert all(one["expires_at"] > now.timestamp() for one in shown)
    theirs = (await both.theirs.admin.get("/v1/organization/balance")).json()
    assert theirs["amount_micro_usd"] == 0


async def _permissions(both: Everything) -> None:
    paths = (URL, f"{URL}/preview", f"{URL}/{both.ours.ids['invoice_id']}", "/v1/organization/credits")
    made = await both.accounts.keys.create(
        both.ours.tenant_id,
        "narrow",
        OPERATOR,
        kind="admin",
        restrictions=KeyRestrictions(scopes=frozenset({"usage.read"})),
    )
    transport = httpx.ASGITransport(both.app)
    headers = {"authorization": f"Bearer {made.plaintext}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as narrow:
        for path in paths:
            assert (await narrow.get(path)).status_code == 403, path
            assert (await both.ours.inference.get(path)).status_code == 403, path
    answer = await both.theirs.admin.get(f"{URL}/{both.ours.ids['invoice_id']}")
    assert answer.status_code == 404
