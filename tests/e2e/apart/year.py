"""A business in one process, and a clock that travels: the API's own composition behind a real server, the
worker's rounds, Stripe's double, a mail server and an endpoint of webhooks. Only the engine is a stand-in: it
writes what it makes to the journal, dated as the clock says.

Owns what a day of the business is made of, and a witness that keeps its own account of what was asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import openai
import pytest
import redis.asyncio
from sqlalchemy import text

import api.openai.validation
import billing.pricing
from adapters.storage import LocalStore, StorageSettings
from api.app import create_app
from api.main import open_services
from api.pools import BasePool, Pools
from api.settings import ApiSettings
from billing.charges import ChargeService
from billing.invoices.announcing import announce
from billing.invoices.closing import JournalAge, MonthClose
from billing.invoices.service import InvoiceService
from billing.invoices.settings import InvoiceSettings
from billing.metering import JournalMeter
from billing.notifications.delivering import Deliveries
from billing.notifications.mailing import Mailer
from billing.notifications.sending import WebhookSender
from billing.partitions import make_partitions_ahead
from billing.payments.documents import queue_invoice
from billing.payments.rounds import PaymentRounds
from billing.payments.settings import StripeSettings
from billing.pricing import PriceService
from billing.reconciliation.differences import Difference
from billing.reconciliation.service import ReconciliationService
from billing.spend.adjusting import SpendAdjusting
from billing.spend.alerts import SpendWatch
from billing.stripe_gateway import StripeGateway
from billing.window_usage import WindowUsage
from db.session import EVERY_TENANT, Database
from db.settings import DatabaseSettings
from engine.client import Generation
from engine.protocol import JOURNAL_STREAM, Submit, UsageEvent
from examples.stripe_double import API_KEY, StripeDouble
from tenants.quotas.unreserved_spend import UnreservedSpend
from tenants.service import AccountServices, account_services
from tenants.settings import TenantSettings
from tests.api.fakes import FakeEngine, Script
from tests.billing.notifications.test_mailing import Mailbox, mail_server
from tests.support.hook_server import HookServer, hook_server
from tests.support.onboarding import SAPLING, Scene
from tests.support.serving import served
from tests.support.waiting import eventually
from tokenization.codec import TextCodec

SECRET = "a server's secret of enough length"
WEBHOOK_SECRET = "whsec_test"
SENDER = "Rootstock <billing@rootstock.example>"
PERCENT = {"default": 100, "flex": 50, "priority": 175}
"""What each class pays, as the plan has it."""


@dataclass(frozen=True)
class Prices:
    """A version of the price list, as the witness knows it: micro-USD per million tokens."""

    input: int
    cached: int
    output: int
    surcharge: int
    gb_day: int
    calibration: int

    def cost(self, prompt: int, cached: int, completion: int, tier: str, on_adapter: bool) -> int:
        more = self.surcharge if on_adapter else 0
        exact = (
            (prompt - cached) * (self.input + more)
            + cached * (self.cached + more)
            + completion * (self.output + more)
        )
        return -(-exact * PERCENT[tier] // 10**8)


@dataclass
class Asked:
    """What a client was answered, and what that costs by the price list it knows."""

    id: str
    at: datetime
    model: str
    tier: str
    prompt: int
    cached: int
    completion: int
    cost: int


class Clock:
    def __init__(self, now: datetime) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def time(self) -> float:
        return self.now.timestamp()


class JournallingEngine(FakeEngine):
    """Says as many tokens as it may, a quarter of the prompt being cached, and bills that in the journal."""

    def __init__(self, codec: TextCodec, client: redis.asyncio.Redis, clock: Clock) -> None:
        super().__init__(codec)
        self._client = client
        self._clock = clock
        self.num_billed = 0
        self.script = self._script

    def _script(self, submit: Submit) -> Script:
        tokens = [20] * submit.sampling.max_tokens
        cached = len(submit.prompt_ids) // 4
        return self.emits(submit, tokens, "length", per_step=64, cached_tokens=cached)

    async def _play(self, request: Submit, generation: Generation) -> None:
        await super()._play(request, generation)
        at = request.submitted_at
        event = UsageEvent(
            request_id=request.request_id,
            engine_id="engine-0",
            incarnation="i1",
            tenant=request.tenant,
            submitted_at=at,
            recorded_at=at + 2,
            priority=request.priority,
            usage=self.billed[request.request_id],
            adapter_digest=request.adapter.digest if request.adapter is not None else None,
            labels=request.labels,
            scheduled_at=at + 0.1,
            first_token_at=at + 0.2,
            finished_at=at + 1,
            finish_reason="length",
        )
        await self._client.xadd(JOURNAL_STREAM, {b"e": msgspec.msgpack.encode(event)})
        self.num_billed += 1


@dataclass
class Business:
    """The operator's whole business, as it is at `clock`."""

    url: str
    clock: Clock
    database: Database
    owner: Database
    redis: redis.asyncio.Redis
    accounts: AccountServices
    engine: JournallingEngine
    double: StripeDouble
    gateway: StripeGateway
    rounds: PaymentRounds
    invoices: InvoiceService
    prices: PriceService
    deliveries: Deliveries
    hooks: HookServer
    mailbox: Mailbox
    scene: Scene
    http: httpx.AsyncClient
    usage: WindowUsage
    price: Prices | None = None
    asked: list[Asked] = field(default_factory=list)

    # Time ---------------------------------------------------------------------------------------------------

    async def travel(self, to: datetime) -> None:
        """It is `to`, and a worker has done what is due."""
        self.clock.now = to
        self.double.travel_to(to)
        await self.work()

    async def wait(self, **time: float) -> None:
        await self.travel(self.clock.now + timedelta(**time))

    async def work(self) -> None:
        """A round of all that the worker does."""
        now = self.clock.now
        await eventually(lambda: self.engine.num_billed == len(self.engine.submitted), seconds=20)
        meter = JournalMeter(self.database, self.redis, "year")
        while await meter.backlog():
            await meter.drain()
        await make_partitions_ahead(self.database, now)
        charges = ChargeService(self.database)
        await charges.charge_storage(now)
        await charges.charge_calibrations()
        await SpendAdjusting(self.database, UnreservedSpend(self.redis, self.usage)).report(now)
        await SpendWatch(self.database, self.usage).raise_due(now)
        await MonthClose(self.database, self.invoices, JournalAge(self.redis)).close_due(now)
        await self.rounds.meter(now)
        await self.double.deliveries.deliver(self.http)
        await self.rounds.follow_up()
        await self.rounds.check_payments(now)
        while await self.deliveries.deliver():
            pass

    # What happens -------------------------------------------------------------------------------------------

    async def set_prices(self, price: Prices) -> None:
        await self.prices.add(
            input=price.input,
            cached_input=price.cached,
            output=price.output,
            adapter_surcharge=price.surcharge,
            adapter_gb_day=price.gb_day,
            calibration_job=price.calibration,
        )
        await asyncio.sleep(0.2)  # heard by those who serve
        self.price = price

    async def ask(
        self, client: openai.AsyncOpenAI, model: str, tier: str, words: int, max_tokens: int
    ) -> Asked:
        """A question and its answer, by the stock client."""
        assert self.price is not None
        tiers: Any = tier
        answer = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "again " * words}],
            max_tokens=max_tokens,
            service_tier=tiers,
        )
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        cached = answer.usage.prompt_tokens_details.cached_tokens or 0
        counts = answer.usage.prompt_tokens, cached, answer.usage.completion_tokens
        cost = self.price.cost(*counts, tier, ":" in model)
        made = Asked(answer.id, self.clock.now, answer.model, tier, *counts, cost)
        self.asked.append(made)
        return made

    async def date_back(self, statement: str, **values: object) -> None:
        """Give what the database has dated by its own clock the business's time, past every trigger."""
        async with self.owner.write(EVERY_TENANT) as session:
            await session.execute(text("SET LOCAL session_replication_role = replica"))
            await session.execute(text(statement), values)

    async def rows(self, query: str, **values: object) -> list[tuple[Any, ...]]:
        async with self.database.read(EVERY_TENANT) as session:
            return [tuple(row) for row in await session.execute(text(query), values)]

    async def reconcile(self, start: datetime, end: datetime) -> list[Difference]:
        service = ReconciliationService(self.database, self.redis, self.gateway, clock=self.clock)
        report = await service.reconcile(start, end)
        why_not = {check for check, outcome in report.outcomes.items() if outcome.why_not}
        assert why_not == {"spools"}, report.outcomes  # its engine writes to the journal, and to no disk
        return list(report.differences)


@asynccontextmanager
async def business(
    start: datetime,
    database_url: str,
    redis_url: str,
    owner: Database,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Business]:
    clock = Clock(start)
    # Requests and prices are dated by these two; all else is told the time.
    for module in (api.openai.validation, billing.pricing):
        monkeypatch.setattr(module, "time", SimpleNamespace(time=clock.time))
    async with AsyncExitStack() as opened:
        double = opened.enter_context(StripeDouble().serving())
        hooks = await opened.enter_async_context(hook_server())
        mailbox = Mailbox()
        mail_port = await opened.enter_async_context(mail_server(mailbox))
        stripe = {"API_KEY": API_KEY, "API_BASE": double.url, "WEBHOOK_SECRET": WEBHOOK_SECRET}
        for name, value in stripe.items():
            monkeypatch.setenv(f"ROOTSTOCK_STRIPE_{name}", value)
        for name in ("HTTP", "PRIVATE"):
            monkeypatch.setenv(f"ROOTSTOCK_NOTIFY_WEBHOOKS_{name}", "true")
        payments = StripeSettings(events_per_second=1000)
        cache = await opened.enter_async_context(redis.asyncio.Redis.from_url(redis_url))
        database = Database(database_url)
        opened.push_async_callback(database.close)
        services, console = await opened.enter_async_context(
            open_services(
                ApiSettings(
                    engine_endpoint=f"ipc://{folder}/nobody.sock",
                    base_path=SAPLING / "base",
                    base_name="sapling",
                    redis_url=redis_url,
                ),
                DatabaseSettings(url=database_url),
                TenantSettings(key_secret=SECRET),  # type: ignore[arg-type]
                StorageSettings(url=f"file://{folder}/objects"),
            )
        )
        text = services.pools.default.text
        engine = JournallingEngine(text, cache, clock)
        app = create_app(replace(services, pools=Pools(BasePool("sapling", engine, text))), console)  # type: ignore[arg-type]
        url = await opened.enter_async_context(served(app))
        double.endpoint(f"{url}/webhooks/stripe", WEBHOOK_SECRET)
        gateway = StripeGateway(payments)
        opened.push_async_callback(gateway.close)
        assert services.onboarding is not None
        scene = Scene(
            *(database, cache, LocalStore(folder / "objects"), folder / "artifacts"),
            *(services.files, services.uploads, None, None),  # type: ignore[arg-type]
            onboarding=services.onboarding,
            tenants=("", ""),
        )
        double.travel_to(start)
        yield Business(
            url,
            clock,
            database,
            owner,
            cache,
            account_services(database, cache, SECRET),
            engine,
            double,
            gateway,
            PaymentRounds(database, cache, gateway, payments, clock=clock),
            InvoiceService(database, cache, InvoiceSettings(), on_final=[announce, queue_invoice]),
            PriceService(database, cache),
            Deliveries(
                database,
                WebhookSender(http_allowed=True, private_allowed=True, timeout=5),
                Mailer("127.0.0.1", mail_port, sender=SENDER, security="none"),
                clock=clock,
            ),
            hooks,
            mailbox,
            scene,
            await opened.enter_async_context(httpx.AsyncClient(base_url=url, timeout=30)),
            WindowUsage(database, clock=clock),
        )
