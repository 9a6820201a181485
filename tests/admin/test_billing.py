"""Billing and invoices in the console: what a month costs, what is owed, how it is paid, and who sees it."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta

import httpx
import msgspec
import pytest
from pydantic import SecretStr
from sqlalchemy import text

from admin.billing.page import rest_of_month
from admin.invoices.lines import OTHERS, groups_of, rounded
from billing.invoices.documents import invoice_object
from billing.invoices.lines import Line
from billing.invoices.models import Invoice
from billing.invoices.service import record_payment
from billing.invoices.settings import InvoiceSettings
from billing.months import begin, month_of
from billing.payments.settings import StripeSettings
from billing.stripe_gateway import StripeGateway
from db.session import EVERY_TENANT, Database
from examples.stripe_double import API_KEY, Fault, StripeDouble
from tenants.actors import OPERATOR
from tenants.plans import PlanChanges
from tests.admin.conftest import Site, csrf_token, sign_in
from tests.admin.test_keys import XSS, act, as_role
from tests.billing.invoices.conftest import Business

NOW = datetime.now(UTC)
THIS_MONTH = month_of(NOW)
LAST_MONTH = month_of(begin(THIS_MONTH) - timedelta(days=1))


def business(site: Site) -> Business:
    return Business(site.place.database, site.redis, InvoiceSettings(seller_name="Acorn Serving Ltd"))


async def invoiced(site: Site, month: date = LAST_MONTH, prompt: int = 12_345_678) -> Invoice:
    """A month of usage, where a token costs a micro-USD, and its invoice."""
    middle = begin(month) + timedelta(days=14)
    await business(site).use(site.tenant_id, middle, prompt, completion=55, model="sapling:pirate@1")
    made = await site.billing.invoices.finalize(site.tenant_id, month, now=NOW)
    assert made is not None
    return made


async def stand(database: Database, tenant_id: str, state: str) -> None:
    """As the payment provider's webhooks leave an account."""
    async with database.write(EVERY_TENANT) as session:
        values = {"tenant": tenant_id, "state": state}
        await session.execute(text("UPDATE tenants SET billing_state = :state WHERE id = :tenant"), values)
        await session.execute(
            text(
                "INSERT INTO billing_accounts (tenant_id, state, grace_until) VALUES (:tenant, :state,"
                " CASE WHEN :state = 'grace' THEN timestamptz '2031-05-06 07:08:00Z' END)"
                " ON CONFLICT (tenant_id) DO UPDATE SET state = :state, grace_until = excluded.grace_until"
            ),
            values,
        )


@pytest.fixture
async def stripe(site: Site, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StripeDouble]:
    """The payment provider of the same console."""
    with StripeDouble().serving() as double:
        gateway = StripeGateway(StripeSettings(api_key=SecretStr(API_KEY), api_base=double.url, timeout=5))
        monkeypatch.setattr(site.billing.payments, "_gateway", gateway)
        yield double
        await gateway.close()


async def test_a_month_so_far_is_the_apis_preview(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    empty = await visitor.get("/billing")
    assert empty.status_code == 200
    for words in (
        "No usage in",
        "No line items yet",
        "Card payments aren't available",
        "Available after a full day of usage",
    ):
        assert words in empty.text
    await site.account.plans.create("team", PlanChanges(monthly_fee=49_000_000, included_usage=1_000_000))
    await site.account.plans.set_tenant_plan(site.tenant_id, "team")
    await business(site).use(site.tenant_id, NOW - timedelta(minutes=1), 1_500_001, completion=7)
    page = (await visitor.get("/billing")).text
    preview = await site.billing.invoices.preview(
        site.tenant_id, month_of(datetime.now(UTC)), now=datetime.now(UTC)
    )
    assert preview.total == 49_000_000 + 500_008
    for words in (
        "$49.500008",
        "$49.00 ",
        'title="$1.500001">$1.50<',
        'title="−$1.000000">−$1.00<',
        'title="$0.000007">&lt;$0.01<',
        "team",
        "<code>sapling</code>",
        "Input tokens, default",
    ):
        assert words in page, words
    assert f"from={THIS_MONTH.isoformat()}&amp;to={THIS_MONTH.isoformat()}&amp;show=cost" in page
    shown = (await visitor.get("/invoices/preview")).text
    assert "$49.500008" in shown
    assert "Preview" in shown
    document = await visitor.get("/invoices/preview.json")
    assert document.json()["total_micro_usd"] == preview.total


def test_lines_are_grouped_by_model_the_most_expensive_first() -> None:
    def used(model: str, item: str, amount: int) -> Line:
        details = {"item": item, "model": model, "service_tier": "default", "quantity": 1}
        return Line("usage", THIS_MONTH, f"{model}, default, {item}", amount, details)

    lines = [
        Line("fee", THIS_MONTH, "Plan team, monthly fee", 49_000_000),
        used("base:a@1", "input", 4_999),
        used("base:a@2", "output", 20_000),
        used("base:b@7", "input", 1_234_500),
        Line("credit", THIS_MONTH, "Taken from your balance", -15_000),
    ]
    groups = groups_of(lines)
    assert [one.title for one in groups] == ["base:b", "base:a", OTHERS]
    assert [(one.amount, one.exact) for one in groups] == [
        ("$1.23", "$1.234500"),
        ("$0.02", "$0.024999"),
        ("$48.99", "$48.985000"),
    ]
    assert [row.text for row in groups[0].rows] == ["Input tokens, default"]
    assert [row.text for row in groups[1].rows] == [
        "Input tokens, default, version 1",
        "Output tokens, default, version 2",
    ]
    assert [row.amount for row in groups[1].rows] == ["<$0.01", "$0.02"]
    assert [row.amount for row in groups[2].rows] == ["$49.00", "−$0.02"]
    assert rounded(0) == "$0.00"
    assert groups_of([]) == []


def test_the_forecast_is_the_pace_of_the_last_days() -> None:
    noon = datetime(2026, 6, 10, 12, tzinfo=UTC)
    days = [(date(2026, 6, number), 0 if number < 7 else 1_000_000) for number in range(1, 11)]
    assert rest_of_month(days, noon) == 20_500_000  # three whole days of use, 20.5 days to come
    assert rest_of_month(days[-1:], noon) is None
    assert rest_of_month([(day, 0) for day, _ in days], noon) is None


async def test_an_invoice_is_shown_whole_and_handed_out(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    assert "No invoices yet" in (await visitor.get("/invoices")).text
    await site.billing.accounts.set_details(
        site.tenant_id, OPERATOR, {"name": f"Acme {XSS}", "country": "FR"}
    )
    invoice = await invoiced(site)
    listed = (await visitor.get("/invoices")).text
    for words in (f"{LAST_MONTH:%B %Y}", "INV-000001", "$12.35", "/invoices/preview"):
        assert words in listed, words
    page = (await visitor.get(f"/invoices/{invoice.id}")).text
    behind = re.search(r'href="/console(/usage\?[^"]+)">Input tokens, default<', page)
    assert behind is not None
    usage = await visitor.get(html.unescape(behind[1]))
    assert usage.status_code == 200
    assert "$12.345733" in usage.text
    assert f"{LAST_MONTH:%B %Y}" in usage.text
    for words in ("12,345,678", "$12.345733", "−$0.004267", "Acorn Serving Ltd", "Acme &lt;img", "Open"):
        assert words in page, words
    assert "<img src=x" not in page
    pdf = await visitor.get(f"/invoices/{invoice.id}/invoice.pdf")
    assert pdf.headers["content-type"] == "application/pdf"
    assert pdf.headers["content-disposition"] == 'attachment; filename="INV-000001.pdf"'
    assert pdf.content.startswith(b"%PDF-")
    told = await visitor.get(f"/invoices/{invoice.id}/invoice.json")
    view = await site.billing.invoices.find(site.tenant_id, invoice.id)
    assert told.json() == msgspec.json.decode(msgspec.json.encode(invoice_object(view)))
    async with site.place.database.write(site.tenant_id) as session:
        await record_payment(session, site.tenant_id, invoice.id, "payment", 1235, "pi_1", at=NOW)
    paid = (await visitor.get(f"/invoices/{invoice.id}")).text
    assert "Paid" in paid
    assert "Payment" in paid


async def test_usage_that_came_late_stands_apart(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    before = month_of(begin(LAST_MONTH) - timedelta(days=1))
    await invoiced(site, before)
    await business(site).use(site.tenant_id, begin(before) + timedelta(days=20), 70_000)
    invoice = await invoiced(site)
    page = (await visitor.get(f"/invoices/{invoice.id}")).text
    earlier, late = page.split("Late usage from earlier months")
    assert f"{before:%B %Y}, recorded late: Input tokens, default" in late
    assert "70,000" not in earlier
    assert f"/usage?month={before:%Y-%m}&amp;show=cost" in late


async def test_an_invoice_is_checked_from_the_rows(
    site: Site, visitor: httpx.AsyncClient, owner_database: Database
) -> None:
    await sign_in(visitor)
    invoice = await invoiced(site)
    assert "Verified" in (await visitor.get(f"/invoices/{invoice.id}/check")).text
    async with owner_database.write(EVERY_TENANT) as session:
        await session.execute(text("SET LOCAL session_replication_role = replica"))
        await session.execute(text("DELETE FROM usage_records"))
    broken = await visitor.get(f"/invoices/{invoice.id}/check")
    assert broken.status_code == 200
    assert "Mismatch" in broken.text
    assert "12,345,678" in broken.text


async def test_lists_have_pages(
    site: Site, visitor: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("admin.invoices.page.PAGE", 1)
    monkeypatch.setattr("admin.billing.page.PAGE", 1)
    await sign_in(visitor)
    before = month_of(begin(LAST_MONTH) - timedelta(days=1))
    for month in (before, LAST_MONTH):
        await invoiced(site, month)
    for month in (before, LAST_MONTH):
        await site.billing.credits.add(
            site.tenant_id, "grant", 10_000, f"for {month}", OPERATOR, now=NOW, reason=f"{month:%B}"
        )
    for path, newer, older in (
        ("/invoices", f"{LAST_MONTH:%B %Y}", f"{before:%B %Y}"),
        ("/billing/credits", f"{LAST_MONTH:%B}", f"{before:%B}"),
    ):
        first = (await visitor.get(path)).text
        assert newer in first
        assert older not in first
        found = re.search(rf'href="/console({path}\?after=[^"]+)">Older', first)
        assert found is not None
        second = (await visitor.get(html.unescape(found[1]))).text
        assert older in second
        assert newer not in second
        assert (await visitor.get(f"{path}?after=nonsense")).status_code == 404


async def test_a_balance_can_pay_from_now_on(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    await site.billing.credits.add(site.tenant_id, "grant", 9_000_000, "welcome", OPERATOR, now=NOW)
    done = await act(visitor, "/billing", "/billing/prepaid")
    assert done.headers["location"] == "/console/billing"
    await business(site).use(site.tenant_id, datetime.now(UTC), 2_500_000)
    page = (await visitor.get("/billing")).text
    for words in ("Paid from your balance", "$2.50", "$6.50", "Switch to invoicing"):
        assert words in page, words
    assert "/billing/prepaid" not in page
    ledger = (await visitor.get("/billing/credits")).text
    for words in ("$9.00", "$2.50", "$6.50", "Granted"):
        assert words in ledger, words
    await act(visitor, "/billing", "/billing/postpaid")
    assert (await site.billing.accounts.find(site.tenant_id)).mode == "postpaid"


async def test_an_empty_balance_pays_nothing(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    assert "/billing/prepaid" not in (await visitor.get("/billing")).text
    refused = await act(visitor, "/billing", "/billing/prepaid")
    assert refused.status_code == 409
    assert "Your balance is empty. Top it up first" in refused.text
    now = datetime.now(UTC)
    await site.billing.accounts.set_mode(site.tenant_id, "prepaid", OPERATOR, now=now)
    refused = await act(visitor, "/billing", "/billing/postpaid")
    assert refused.status_code == 409
    assert "ask the operator" in refused.text
    assert (await site.billing.accounts.find(site.tenant_id)).mode == "prepaid"


async def test_details_are_checked_and_kept(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    fields = {
        "name": "Acme SA",
        "address": "1 Rue A\r\n75001 Paris",
        "country": "fr",
        "tax_id": "FR1",
        "email": "x",
    }
    wrong = await act(visitor, "/billing/details", "/billing/details", **fields)
    assert wrong.status_code == 422
    assert 'id="problem-email">This must be an address.' in wrong.text
    assert 'value="Acme SA"' in wrong.text
    done = await act(
        visitor, "/billing/details", "/billing/details", **fields | {"email": "bills@acme.example"}
    )
    assert done.headers["location"] == "/console/billing"
    account = await site.billing.accounts.find(site.tenant_id)
    assert (account.name, account.country, account.address) == ("Acme SA", "FR", "1 Rue A\n75001 Paris")
    page = (await visitor.get("/billing")).text
    assert "bills@acme.example" in page
    assert "/billing/portal" not in page, "there is no provider"
    forced = await act(visitor, "/billing/details", "/billing/portal")
    assert forced.status_code == 409
    assert "payments are not set up here" in forced.text


async def test_a_provider_has_a_portal_and_takes_money(
    visitor: httpx.AsyncClient, stripe: StripeDouble
) -> None:
    await sign_in(visitor)
    assert "Sandbox: no real payments" in (await visitor.get("/billing")).text
    portal = await act(visitor, "/billing", "/billing/portal")
    assert portal.status_code == 200
    leads = re.search(r'http-equiv="refresh" content="0; url=([^"]+)"', portal.text)
    assert leads is not None
    assert ("POST", "/v1/billing_portal/sessions") in stripe.requests
    wrong = await act(visitor, "/billing", "/billing/top-up", amount="4.99")
    assert wrong.status_code == 422
    assert 'id="problem-amount">Enter an amount from $5.00 to $10,000.00.' in wrong.text
    for nonsense in ("", "ten", "1.234", "-5", "1e3", "٥٠"):
        assert (await act(visitor, "/billing", "/billing/top-up", amount=nonsense)).status_code == 422
    paying = await act(visitor, "/billing", "/billing/top-up", amount="$49.90")
    assert paying.status_code == 200
    assert "http-equiv" in paying.text
    stripe.fail(Fault("unreachable", times=-1))
    away = await act(visitor, "/billing", "/billing/portal")
    assert away.status_code == 503
    assert "Billing" in away.text


async def test_every_page_tells_that_a_payment_is_overdue(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    assert 'class="overdue' not in (await visitor.get("/keys")).text
    for state, *words, badge in (
        ("grace", "A payment is overdue.", "2031-05-06 07:08", "Payment overdue"),
        ("suspended", "Your account is suspended.", "status 429", "Suspended"),
    ):
        await stand(site.place.database, site.tenant_id, state)
        for path in ("/", "/keys", "/limits", "/billing"):
            page = (await visitor.get(path)).text
            assert all(one in page for one in words), path
            assert 'href="/console/billing#standing"' in page
        assert badge in (await visitor.get("/billing")).text
    async with site.visitor() as other:
        await as_role(site, other, "viewer")
        told = (await other.get("/keys")).text
    assert words[0] in told
    assert "#standing" not in told


async def test_only_some_see_billing_and_only_others_change_it(
    site: Site, visitor: httpx.AsyncClient
) -> None:
    invoice = await invoiced(site)
    await as_role(site, visitor, "developer")
    for path in ("/billing", "/billing/credits", "/invoices", f"/invoices/{invoice.id}"):
        assert (await visitor.get(path)).status_code == 403, path
    assert "/console/billing" not in (await visitor.get("/keys")).text
    async with site.visitor() as other:
        await as_role(site, other, "admin")
        page = await other.get("/billing")
        assert page.status_code == 200
        assert "/billing/details" not in page.text
        token = csrf_token(page)
        refused = await other.post("/billing/details", data={"csrf_token": token, "name": "Mine"})
    assert refused.status_code == 403
    assert (await site.billing.accounts.find(site.tenant_id)).name == ""


async def test_nobody_sees_anothers_invoices(site: Site, visitor: httpx.AsyncClient) -> None:
    invoice = await invoiced(site)
    other = site.place.tenants[1]
    await site.accounts.create(other, "eve@birch.example", "correct horse battery")
    await sign_in(visitor, "eve@birch.example")
    for tail in ("", "/invoice.pdf", "/invoice.json", "/check"):
        assert (await visitor.get(f"/invoices/{invoice.id}{tail}")).status_code == 404
    assert "No invoices yet" in (await visitor.get("/invoices")).text
    assert (await visitor.get("/invoices/preview?month=2999-01")).status_code == 404
