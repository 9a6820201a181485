"""A year of a business, from the sign-up to books that balance: the ledger, its sums, what the API says, the
invoices and what Stripe has are compared with a witness that counted along, to the micro-USD.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from openai import AsyncOpenAI
from sqlalchemy import text

from billing.invoices.accounts import BillingAccounts
from billing.invoices.corrections import CreditNotes
from billing.invoices.views import InvoiceView
from billing.months import begin, following
from billing.reversals import ReversalService
from billing.rollups import TABLES
from db.session import EVERY_TENANT, Database
from examples.stripe_double import Fault
from tenants.actors import OPERATOR
from tenants.plans import PlanChanges
from tests.e2e.apart.year import Asked, Business, Prices, business
from tests.e2e.onboarding import send_files
from tests.support.onboarding import SAPLING
from tests.support.waiting import eventually

YEAR = 2027
MONTHS = [date(YEAR, month, 1) for month in range(1, 13)]
JANUARY, NEXT_YEAR = datetime(YEAR, 1, 1, tzinfo=UTC), datetime(YEAR + 1, 1, 1, tzinfo=UTC)
SPRING = Prices(3_000_000_000, 1_000_000_000, 9_000_000_000, 500_000_000, 0, 2_500_000)
AUTUMN = Prices(2_700_000_001, 900_000_000, 8_100_000_007, 450_000_000, 0, 2_000_000)
WINTER = replace(AUTUMN, gb_day=800_000_000_000)
"""High, so that a few requests are worth dollars; odd, so that roundings show. Storage costs in winter."""
FEE, INCLUDED = 20_000_000, 1_234_567
PASSWORD = "a long enough password"


def at(month: int, day: int, hour: int = 10, minute: int = 30) -> datetime:
    return datetime(YEAR, month, day, hour, minute, tzinfo=UTC)


class Customer:
    """Who signed up, and what its people do."""

    def __init__(self, shop: Business, tenant_id: str, admin: str, key: str) -> None:
        self.shop = shop
        self.tenant_id = tenant_id
        self.client = AsyncOpenAI(base_url=f"{shop.url}/v1", api_key=key, admin_api_key=admin, max_retries=0)
        self.organization = self.client.admin.organization
        self.headers, self.inference = ({"authorization": f"Bearer {one}"} for one in (admin, key))

    async def get(self, path: str, **query: Any) -> dict[str, Any]:
        answer = await self.shop.http.get(path, headers=self.headers, params=query)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def post(self, path: str, **body: Any) -> dict[str, Any]:
        answer = await self.shop.http.post(path, headers=self.headers, json=body)
        assert answer.status_code == 200, answer.text
        made: dict[str, Any] = answer.json()
        return made

    async def use(self, when: datetime, seed: int) -> list[Asked]:
        """Questions of one hour, of all classes and both models, each of another length."""
        await self.shop.travel(when)
        asked = []
        for number, tier in enumerate(("default", "flex", "priority", "default")):
            model = "sapling:pirate" if number % 2 else "sapling"
            words, tokens = 5 + (7 * seed + number) % 11, 8 + (5 * seed + 3 * number) % 29
            asked.append(await self.shop.ask(self.client, model, tier, words, tokens))
        return asked

    async def refused(self) -> bool:
        """Whether the key is refused for the account's sake."""
        answer = await self.shop.http.get("/v1/models", headers=self.inference)
        return answer.status_code == 429 and answer.json()["error"]["code"] == "insufficient_quota"

    @property
    def provider(self) -> str:
        """Its customer at Stripe."""
        [found] = self.shop.double.books.all("customer")
        return str(found["id"])

    def charged(self) -> list[dict[str, Any]]:
        """What Stripe asked it to pay, the first month first."""
        found = self.shop.double.books.all("invoice", customer=self.provider)[::-1]
        return [one for one in found if one["metadata"]]


@pytest.fixture
async def shop(
    database_url: str,
    redis_url: str,
    owner_database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Business]:
    (tmp_path / "objects").mkdir()
    async with business(
        at(1, 3, 9), database_url, redis_url, owner_database, tmp_path, monkeypatch
    ) as opened:
        yield opened


async def sign_up(shop: Business) -> Customer:
    """The operator makes the tenant and invites its owner, who makes the keys."""
    tenant = await shop.accounts.tenants.create_tenant("Acme")
    await shop.date_back(
        "UPDATE tenants SET created_at = :at WHERE id = :id", at=shop.clock.now, id=tenant.id
    )
    terms = {"priority": {"allowed": True}}
    await shop.accounts.plans.create("team", PlanChanges(terms=terms))
    await shop.accounts.plans.set_tenant_plan(tenant.id, "team")
    invite = await shop.accounts.invites.create(tenant.id, "ann@acme.example", "owner", OPERATOR)
    accepted = await shop.http.post(
        "/v1/organization/invites/accept", json={"token": invite.token, "password": PASSWORD}
    )
    assert accepted.status_code == 200, accepted.text
    admin = await shop.accounts.keys.create(tenant.id, "admin", OPERATOR, kind="admin")
    key = await shop.accounts.keys.create(tenant.id, "main", OPERATOR)
    return Customer(shop, tenant.id, admin.plaintext, key.plaintext)


async def upload(customer: Customer) -> None:
    """An adapter, by the stock client; the worker's part of its onboarding is told, not done."""
    shop = customer.shop
    files = await send_files(customer.client, SAPLING / "adapters" / "pirate")
    body = {"name": "pirate", "base_model": "sapling", "file_ids": files}
    made = await customer.client.post("/adapters", body=body, cast_to=dict[str, Any])
    await shop.scene.make_ready(SimpleNamespace(job_id=made["calibration_job"]), "a")  # type: ignore[arg-type]
    async with shop.owner.write(EVERY_TENANT) as session:
        done = "UPDATE jobs SET status = 'succeeded', finished_at = :at"
        await session.execute(text(done), {"at": shop.clock.now})
    await shop.date_back("UPDATE adapter_storage SET since = :at", at=shop.clock.now)

    async def served() -> bool:
        return any(one.id.startswith("sapling:pirate") for one in (await customer.client.models.list()).data)

    await eventually(served, seconds=10)


@pytest.mark.timeout(900)
async def test_a_year(shop: Business) -> None:
    await shop.set_prices(SPRING)
    customer = await sign_up(shop)
    await shop.travel(at(1, 4))
    await upload(customer)
    await customer.post(
        "/v1/webhook_endpoints",
        name="ours",
        url=shop.hooks.url("/204"),
        event_types=["spend.alert", "invoice.finalized", "payment.failed", "account.suspended"],
    )
    for month, story in enumerate(
        STORIES,
        start=1,
    ):
        await customer.use(at(month, 5), seed=2 * month)
        await story(customer, month)
        await customer.use(at(month, 25, 23, 59), seed=2 * month + 1)
        await shop.wait(hours=2)
        await shop.travel(begin(following(date(YEAR, month, 1))) + timedelta(days=1, hours=1, minutes=20))
    await shop.wait(days=3)
    await shop.wait(hours=1)  # what was metered is summed up, what was paid is noted
    await balance(customer)
    await found_if_not(customer)
    await customer.client.close()


# Months ---------------------------------------------------------------------------------------------------


async def quiet(customer: Customer, month: int) -> None:
    """Nothing but use."""


async def stored(customer: Customer, month: int) -> None:
    """Storage costs something from now on."""
    await customer.shop.travel(at(month, 10))
    await customer.shop.set_prices(WINTER)


async def alerted(customer: Customer, month: int) -> None:
    shop = customer.shop
    await customer.organization.spend_alerts.create(
        currency="USD",
        interval="month",
        threshold_amount=100,
        notification_channel={"type": "email", "recipients": ["money@acme.example"]},
    )
    for _ in range(2):
        await shop.wait(minutes=1)
    told = [json.loads(one.body) for one in shop.hooks.heard]
    assert [one["type"] for one in told].count("spend.alert") == 1
    mails = [mail for to, mail in shop.mailbox.mail if to == "money@acme.example"]
    assert len(mails) == 1
    await customer.organization.spend_alerts.delete(
        (await customer.organization.spend_alerts.list()).data[0].id
    )


async def declined(customer: Customer, month: int) -> None:
    """The card is good no more: the month's invoice will not be paid."""
    assert [one["status"] for one in customer.charged()] == ["paid"] * (month - 1)
    customer.shop.double.card(customer.provider, works=False)


async def suspended(customer: Customer, month: int) -> None:
    """A week of grace, in which all went on; then keys are refused, until somebody pays."""
    shop = customer.shop
    billing = "/v1/organization/billing"
    assert (await customer.get(billing))["state"] == "grace"
    assert not await customer.refused()
    await shop.travel(at(month, 9, 2))
    assert (await customer.get(billing))["state"] == "suspended"
    await eventually(customer.refused, seconds=10)
    told = [json.loads(one.body)["type"] for one in shop.hooks.heard]
    assert {"payment.failed", "account.suspended"} <= set(told)
    assert (await customer.post(f"{billing}/portal"))["url"].startswith("https://billing.")
    shop.double.card(customer.provider, works=True)
    shop.double.routes.invoicing.pay(customer.charged()[-1]["id"])
    await shop.wait(minutes=1)
    assert (await customer.get(billing))["state"] == "active"

    async def let_in() -> bool:
        return not await customer.refused()

    await eventually(let_in, seconds=10)


async def on_a_plan(customer: Customer, month: int) -> None:
    """With a fee, from this month on, and some usage included in it."""
    plans = customer.shop.accounts.plans
    await plans.set("team", PlanChanges(monthly_fee=FEE, included_usage=INCLUDED))


async def dearer(customer: Customer, month: int) -> None:
    """Other prices from the middle of the month on."""
    await customer.shop.travel(at(month, 15))
    await customer.shop.set_prices(AUTUMN)


async def outage(customer: Customer, month: int) -> None:
    """Stripe is away for a day and a half, and answers are lost before it goes."""
    shop = customer.shop
    await customer.use(at(month, 9), seed=70)
    shop.double.fail(Fault("lost", path="/v1/billing/meter_events"))
    await shop.wait(hours=2)
    shop.double.heal()
    shop.double.fail(Fault("unreachable", times=-1))
    for hour in range(3):
        await customer.use(at(month, 10, 8 * hour), seed=71 + hour)
    await shop.wait(hours=18)
    metered = await shop.rows("SELECT count(*) FROM meter_events WHERE state = 'pending'")
    assert metered[0][0] >= 3
    shop.double.heal()
    for _ in range(6):
        await shop.wait(hours=1)
    assert await shop.rows("SELECT count(*) FROM meter_events WHERE state = 'pending'") == [(0,)]


async def taken_back(customer: Customer, month: int) -> None:
    shop = customer.shop
    wrong = shop.asked[-1]
    await shop.wait(hours=3)
    await ReversalService(shop.database).reverse_request(
        customer.tenant_id, wrong.id, wrong.at, reason="ours", by=OPERATOR, now=shop.clock.now
    )
    customer.shop.asked.append(Asked(wrong.id, shop.clock.now, wrong.model, wrong.tier, 0, 0, 0, -wrong.cost))


async def refunded(customer: Customer, month: int) -> None:
    """Half of August's invoice, which was paid, goes back; and a dollar into the balance."""
    shop = customer.shop
    august = (await invoices(customer))[date(YEAR, 8, 1)]
    notes = CreditNotes(shop.database, shop.redis)
    half = august.total_cents // 2
    for cents, settlement in ((half, "refund"), (100, "credit")):
        await notes.issue(
            customer.tenant_id, str(august.id), cents, settlement, "slow", OPERATOR, now=shop.clock.now  # type: ignore[arg-type]
        )  # fmt: skip
    await shop.wait(minutes=1)
    assert [one["amount"] for one in shop.double.books.all("refund")] == [half]


async def prepaid(customer: Customer, month: int) -> None:
    """In advance for ten days, from a balance that is topped up at Stripe; then by invoice again."""
    shop = customer.shop
    made = await customer.post("/v1/organization/billing/top_ups", amount=5_000)
    shop.double.pay_checkout(made["id"])
    await shop.wait(minutes=1)
    assert (await customer.get("/v1/organization/balance"))["amount_micro_usd"] >= 50_000_000
    modes = BillingAccounts(shop.database, shop.redis)
    await modes.set_mode(customer.tenant_id, "prepaid", OPERATOR, now=shop.clock.now)
    await customer.use(at(month, 10), seed=90)
    await shop.travel(at(month, 15))
    await modes.set_mode(customer.tenant_id, "postpaid", OPERATOR, now=shop.clock.now)


async def renamed(customer: Customer, month: int) -> None:
    shop = customer.shop
    accounts = BillingAccounts(shop.database, shop.redis)
    await accounts.set_details(
        customer.tenant_id, OPERATOR, {"name": "Acme GmbH", "country": "DE", "tax_id": "DE1"}
    )
    await shop.wait(minutes=1)
    assert shop.double.books.get(customer.provider, "customer")["name"] == "Acme GmbH"


# Books ----------------------------------------------------------------------------------------------------


async def invoices(customer: Customer) -> dict[date, InvoiceView]:
    found = await customer.shop.invoices.list(customer.tenant_id)
    return {one.month: one for one in found}


@dataclass
class Witnessed:
    """What a month must come to, by what clients were told and what the operator knows."""

    requests: int = 0
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    used: int = 0
    """Micro-USD of requests, less what was taken back."""
    charged: int = 0
    """Of storage and calibrations."""
    covered: int = 0
    """What of both a balance paid."""

    @property
    def cost(self) -> int:
        return self.used + self.charged


async def witness(customer: Customer) -> dict[date, Witnessed]:
    shop = customer.shop
    months = {month: Witnessed() for month in MONTHS}
    moments = [(one.at, one.cost) for one in shop.asked]
    for one in shop.asked:
        month = months[one.at.date().replace(day=1)]
        month.requests += one.prompt > 0
        month.prompt += one.prompt
        month.cached += one.cached
        month.completion += one.completion
        month.used += one.cost
    [(size,)] = await shop.rows("SELECT size FROM adapter_storage")
    # A day pays the price in effect as it begins.
    winter_days = (NEXT_YEAR - at(12, 11, 0, 0)).days
    months[MONTHS[-1]].charged = winter_days * -(-size * WINTER.gb_day // 10**9)
    months[MONTHS[0]].charged += SPRING.calibration
    [(since, until)] = await shop.rows("SELECT since, until FROM prepaid_periods")
    for moment, cost in moments:
        if since <= moment < until:
            months[moment.date().replace(day=1)].covered += cost
    return months


async def balance(customer: Customer) -> None:
    """Every book there is says what the witness does."""
    shop, months = customer.shop, await witness(customer)
    rows = dict(await shop.rows("SELECT request_id, cost FROM usage_records"))
    assert rows == {one.id: one.cost for one in shop.asked if one.prompt}, "the ledger"
    for one in shop.asked[::17]:
        receipt = await customer.client.get(f"/generations/{one.id}", cast_to=dict[str, Any])
        assert receipt["cost_micro_usd"] == rows[one.id], "receipts"
    for month, expected in months.items():
        start, end = begin(month), begin(following(month))
        span = {"start": start, "end": end}
        for unit, table in TABLES.items():
            query = f"SELECT sum(cost) FROM {table} WHERE {unit} >= :start AND {unit} < :end"
            assert await shop.rows(query, **span) == [(expected.used,)], (table, month)
        charges = "SELECT coalesce(sum(cost), 0) FROM charges WHERE at >= :start AND at < :end"
        assert await shop.rows(charges, **span) == [(expected.charged,)], month
        await told(customer, month, expected)
    invoiced(await invoices(customer), months)
    await paid(customer, months)
    assert await shop.reconcile(JANUARY, NEXT_YEAR + timedelta(days=4)) == []


async def told(customer: Customer, month: date, expected: Witnessed) -> None:
    """What the customer is told of a month."""
    usage = customer.organization.usage
    span: dict[str, Any] = {
        "start_time": int(begin(month).timestamp()),
        "end_time": int(begin(following(month)).timestamp()),
        "bucket_width": "1d",
        "limit": 31,
    }
    results: list[Any] = [one for day in (await usage.completions(**span)).data for one in day.results]
    if month != date(YEAR, 8, 1):  # in which one was taken back
        assert sum(one.num_model_requests for one in results) == expected.requests
        assert sum(one.input_tokens for one in results) == expected.prompt
        assert sum(one.input_cached_tokens for one in results) == expected.cached
        assert sum(one.output_tokens for one in results) == expected.completion
    costs: list[Any] = [one for day in (await usage.costs(**span)).data for one in day.results]
    assert sum(one.amount_micro_usd for one in costs) == expected.cost, month


def invoiced(found: dict[date, InvoiceView], months: dict[date, Witnessed]) -> None:
    """Each month's invoice: what was used, the plan, the balance, and the rounding of the one before."""
    assert list(found)[::-1] == MONTHS
    carried = balance = 0
    for month, expected in months.items():
        invoice = found[month]
        balance += {9: 1_000_000, 10: 50_000_000}.get(month.month, 0) - expected.covered
        fee, included = (FEE, INCLUDED) if month.month >= 5 else (0, 0)
        own = expected.cost - expected.covered
        owed = carried + fee - min(included, own) + own
        taken = min(owed, balance)
        balance -= taken
        assert invoice.total == owed - taken, (month, invoice.lines)
        assert invoice.total_cents == (invoice.total + 5_000) // 10_000
        carried = invoice.total - invoice.total_cents * 10_000


async def paid(customer: Customer, months: dict[date, Witnessed]) -> None:
    """Stripe asked for what the invoices say, has their money, and was metered what was used."""
    shop, found = customer.shop, await invoices(customer)
    charged = customer.charged()
    asked_for = [found[month] for month in MONTHS if found[month].total_cents]
    assert [one["total"] for one in charged] == [invoice.total_cents for invoice in asked_for]
    assert [one["amount_paid"] for one in charged] == [invoice.total_cents for invoice in asked_for]
    assert all(invoice.status == "paid" for invoice in found.values())
    for one, invoice in zip(charged, asked_for, strict=True):
        assert sum(line["amount"] for line in one["lines"]["data"]) == invoice.total_cents
    taken = -sum(one.cost for one in shop.asked if not one.prompt)
    owed = sum(month.cost - month.covered for month in months.values())
    metered = [one for one in shop.double.meters.received if f":{YEAR}-" in one["identifier"]]
    assert sum(one["value"] for one in metered) == owed + taken


async def found_if_not(customer: Customer) -> None:
    """One micro-USD, one cent, one request that is wrong anywhere is found, and named."""
    shop = customer.shop
    start, end = datetime(YEAR, 3, 1, tzinfo=UTC), datetime(YEAR, 4, 3, tzinfo=UTC)
    metered = [one for one in shop.double.meters.received if one["timestamp"] >= start.timestamp()]
    metered[0]["value"] += 1
    customer.charged()[2]["amount_paid"] -= 1
    await shop.date_back("UPDATE usage_rollup_days SET cost = cost + 1 WHERE day = :day", day=at(3, 5, 0, 0))
    await shop.date_back(
        "UPDATE invoice_lines SET amount = amount + 1 WHERE kind = 'usage' AND number = 2 AND month = :month",
        month=date(YEAR, 3, 1),
    )
    found = await shop.reconcile(start, end)
    assert {one.check for one in found} >= {"rollups", "invoices", "stripe", "stripe_invoices"}
    assert {(one.expected, one.found) for one in found if one.check == "stripe_invoices"} == {
        (customer.charged()[2]["total"], customer.charged()[2]["total"] - 1)
    }


STORIES = (
    *(quiet, alerted, declined, suspended, on_a_plan, dearer),
    *(outage, taken_back, refunded, prepaid, renamed, stored),
)
