"""The double of Stripe, the real SDK on it, and a tenant that is billed by the meter; time stands where the
double's clock was set.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
import redis.asyncio
from sqlalchemy import text

from billing.payments.customers import Customers
from billing.payments.documents import DocumentSending
from billing.payments.dunning import Dunning
from billing.payments.planning import MeterPlanning
from billing.payments.sending import Sending
from billing.payments.settings import StripeSettings
from billing.payments.webhooks import FollowUps, WebhookReceiver
from billing.stripe_gateway import StripeGateway
from db.session import EVERY_TENANT, Database
from examples.stripe_double import API_KEY, StripeDouble
from tests.billing.payments.usage import TENANT, make_tenant
from tests.support.text_base import write_base
from tokenization.codec import TextCodec

START = datetime(2027, 1, 10, 9, 30, tzinfo=UTC)
SECRET = "whsec_test"


@pytest.fixture(scope="session")
def codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    return TextCodec.load(write_base(tmp_path_factory.mktemp("base")))


@pytest.fixture
def double() -> Iterator[StripeDouble]:
    with StripeDouble().serving() as served:
        yield served


@pytest.fixture
def settings(double: StripeDouble) -> StripeSettings:
    return StripeSettings(api_key=API_KEY, api_base=double.url, timeout=2, webhook_secret=SECRET)


@pytest.fixture
async def gateway(settings: StripeSettings) -> AsyncIterator[StripeGateway]:
    made = StripeGateway(settings)
    yield made
    await made.close()


@dataclass
class Site:
    """A tenant with a subscription, and all that works for it, in one time."""

    database: Database
    double: StripeDouble
    gateway: StripeGateway
    customers: Customers
    planning: MeterPlanning
    sending: Sending
    documents: DocumentSending
    dunning: Dunning
    follow_ups: FollowUps
    receiver: WebhookReceiver
    customer: str = ""
    now: datetime = START

    def travel(self, to: datetime) -> None:
        self.double.travel_to(to)
        self.now = to

    def wait(self, **time: float) -> None:
        self.travel(self.now + timedelta(**time))

    async def meter(self) -> None:
        """A round of the worker's: plan and send."""
        await self.planning.plan(self.now)
        await self.sending.send()

    async def asked(self, cents: int, invoice_id: str = "inv_january") -> str:
        """An invoice that the customer is asked to pay now; the provider's id of it."""
        documents = self.gateway.documents
        made = await documents.create_invoice(self.customer, TENANT, invoice_id, invoice_id)
        await documents.add_lines(made.id, [("Usage", cents)], invoice_id)
        return (await documents.finalize(made.id, invoice_id)).id

    def metered(self) -> int:
        """All that the double has for the tenant."""
        return sum(one["value"] for one in self.double.meters.received if one["customer"] == self.customer)

    async def state(self) -> tuple[str, str]:
        """Of the account, and as keys are told."""
        query = """SELECT b.state, t.billing_state FROM billing_accounts b
                   JOIN tenants t ON t.id = b.tenant_id WHERE t.id = :tenant"""
        async with self.database.read(EVERY_TENANT) as session:
            row = (await session.execute(text(query), {"tenant": TENANT})).one()
        return row[0], row[1]


async def _at_once(seconds: float) -> None:
    """No pacing in tests."""


@pytest.fixture
async def site(
    database: Database,
    redis_client: redis.asyncio.Redis,
    gateway: StripeGateway,
    double: StripeDouble,
    settings: StripeSettings,
) -> Site:
    double.travel_to(START)
    await make_tenant(database)
    dunning = Dunning(database, redis_client, gateway, grace=timedelta(days=7))

    def clock() -> datetime:
        return made.now

    made = Site(
        database,
        double,
        gateway,
        Customers(database, gateway),
        MeterPlanning(database),
        Sending(database, gateway, clock=clock, sleep=_at_once),
        DocumentSending(database, gateway, dunning, clock=clock),
        dunning,
        FollowUps(database, redis_client, gateway, dunning, clock=clock),
        WebhookReceiver(database, None, settings),
    )
    subscription = await made.customers.subscribe(TENANT, START)
    made.customer = subscription.customer_id
    return made
