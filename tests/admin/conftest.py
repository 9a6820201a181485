"""A console over real services, mounted as the API mounts it, and a tenant with a user who may sign in."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
import redis.asyncio
from playwright.async_api import Browser
from starlette.applications import Starlette
from starlette.routing import Mount

from adapters.bases import Bases
from adapters.service import AdapterService, ModelResolver
from admin.app import BillingServices, ConsoleServices, create_console
from admin.operator.services import OperatorServices
from admin.sign_in.services import SignInServices
from api.assembly.console import ERROR_MAPPING
from api.assembly.operators import operator_services
from api.batches.endpoints import ENDPOINTS
from api.edge import BodyLimit, BodyLimits, Edge
from api.organization.scopes import SCOPES
from api.playground import Playground
from api.pools import BasePool, Pools
from api.services import Services
from batches.service import BatchService
from billing.invoices.accounts import BillingAccounts
from billing.invoices.credits import CreditService
from billing.invoices.service import InvoiceService
from billing.invoices.settings import InvoiceSettings
from billing.invoices.verification import InvoiceVerification
from billing.notifications.sending import WebhookSender
from billing.notifications.service import WebhookService
from billing.payments.gateway import PaymentGateway
from billing.payments.service import PaymentService
from billing.request_metadata.content import MetadataSealer
from billing.service import UsageReports
from billing.spend.alerts import SpendAlertService
from billing.statements import Statements
from billing.window_usage import WindowUsage
from db.session import Database
from retention.service import RetentionService
from sla.recorder import SlaRecorder
from sla.service import SlaReports
from telemetry.metrics import ServingMetrics
from tenants.accounts import UserAccounts
from tenants.key_service import KeyService
from tenants.object_names import NameService
from tenants.quotas import Quotas
from tenants.refusals.service import RefusedRequests
from tenants.service import AccountServices, TenantService, account_services
from tenants.user_contexts import UserContexts
from tests.admin.browsing import Visit, chromium, visit
from tests.admin.engines import PlayedEngines
from tests.api.fakes import FakeEngine, FakePrices
from tests.support.databases import SharedDatabase
from tests.support.onboarding import BASE_DIGEST, Scene, create_tenants, reopened
from tests.support.passwords import cheap_passwords
from tests.support.serving import served
from tests.support.text_base import write_base
from tokenization.codec import TextCodec

METADATA = MetadataSealer("a secret of at least thirty-two characters")
EMAIL = "ada@acme.example"
PASSWORD = "correct horse battery"
SECRET = "s" * 32


@dataclass
class Site:
    """The console, and what a test needs to look behind it."""

    app: Starlette
    tenants: TenantService
    keys: KeyService
    accounts: UserAccounts
    account: AccountServices
    adapters: AdapterService
    redis: redis.asyncio.Redis
    tenant_id: str
    place: Scene
    """What the console's adapters stand on."""
    engine: FakeEngine
    """Answers the playground."""
    quotas: Quotas
    billing: BillingServices
    operation: OperatorServices
    """What operators' pages call."""
    engines: PlayedEngines = field(default_factory=PlayedEngines)
    """What operators are shown."""

    @property
    def whole(self) -> Edge:
        """As the API process serves it."""
        return Edge(self.app, ServingMetrics(), BodyLimits(BodyLimit(1 << 26, 30)))

    def visitor(self, origin: str = "http://127.0.0.1:8000") -> httpx.AsyncClient:
        """A browser without cookies."""
        transport = httpx.ASGITransport(self.whole, client=("127.0.0.1", 5000))
        return httpx.AsyncClient(transport=transport, base_url=f"{origin}/console")


def csrf_token(page: httpx.Response) -> str:
    found = re.search(r'name="csrf_token" value="([^"]+)"', page.text)
    assert found is not None
    return found[1]


async def sign_in(visitor: httpx.AsyncClient, email: str = EMAIL, password: str = PASSWORD) -> httpx.Response:
    form = await visitor.get("/sign-in")
    fields = {"csrf_token": csrf_token(form), "email": email, "password": password}
    return await visitor.post("/sign-in", data=fields)


@pytest.fixture(scope="package", autouse=True)
def cheap_to_sign_in() -> Iterator[None]:
    """What passwords cost is tested where they are made; here people sign in all the time."""
    with cheap_passwords():
        yield


@pytest.fixture(scope="session")
def codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    return TextCodec.load(write_base(tmp_path_factory.mktemp("base")))


@asynccontextmanager
async def playground(
    database: Database, redis_client: redis.asyncio.Redis, redis_url: str, codec: TextCodec
) -> AsyncIterator[tuple[Playground, FakeEngine, Quotas]]:
    """The true one, over an engine that plays a script."""
    engine = FakeEngine(codec)
    quotas = Quotas(redis_url, "test", read_usage=WindowUsage(database))
    await quotas.start()
    services = Services(
        pools=Pools(BasePool("sapling", engine, codec)),  # type: ignore[arg-type]
        models=ModelResolver(database, redis_client, Bases("sapling")),
        quotas=quotas,
        prices=FakePrices(),  # type: ignore[arg-type]
        sla=SlaRecorder(redis_client),
        sla_reports=SlaReports(database),
        **dict.fromkeys(("keys", "usage", "files", "uploads")),  # type: ignore[arg-type]
    )
    try:
        yield Playground(services, UserContexts(database)), engine, quotas
    finally:
        await quotas.close()


SENDER = WebhookSender(http_allowed=True, private_allowed=True, timeout=5.0)
"""Takes servers of the test's own for the internet."""


def billing_services(
    database: Database,
    redis_client: redis.asyncio.Redis,
    quotas: Quotas,
    gateway: PaymentGateway | None = None,
) -> BillingServices:
    """Without a payment provider, unless one is given."""
    invoices = InvoiceService(database, redis_client, InvoiceSettings(seller_name="Acorn Serving Ltd"))
    return BillingServices(
        accounts=BillingAccounts(database, redis_client),
        invoices=invoices,
        verification=InvoiceVerification(database),
        credits=CreditService(database, redis_client),
        statements=Statements(database, invoices),
        payments=PaymentService(database, gateway, return_url="http://127.0.0.1/console/billing"),
        alerts=SpendAlertService(database),
        webhooks=WebhookService(database, SENDER),
        quotas=quotas,
        is_mailing=True,
    )


@pytest.fixture
def sign_in_services() -> SignInServices:
    """Passwords alone, of operators too, and no mail."""
    return SignInServices(operators_second_factor=False)


@pytest.fixture
async def tenants(
    shared_database: SharedDatabase, database: Database, redis_client: redis.asyncio.Redis
) -> tuple[str, str]:
    """Two, the first with a user who may sign in."""
    return await shared_database.once(create_tenants_and_user, database, redis_client)


async def create_tenants_and_user(database: Database, redis_client: redis.asyncio.Redis) -> tuple[str, str]:
    ours, theirs = await create_tenants(database, redis_client)
    await UserAccounts(database).create(ours, EMAIL, PASSWORD)
    return ours, theirs


@pytest.fixture
async def site(
    tenants: tuple[str, str],
    database: Database,
    redis_client: redis.asyncio.Redis,
    redis_url: str,
    tmp_path: Path,
    codec: TextCodec,
    sign_in_services: SignInServices,
) -> AsyncIterator[Site]:
    account = account_services(database, redis_client, SECRET)
    async with (
        reopened(database, redis_client, redis_url, tmp_path, tenants) as place,
        playground(database, redis_client, redis_url, codec) as (talking, engine, quotas),
    ):
        models = ModelResolver(database, redis_client, Bases("sapling"))
        billing = billing_services(database, redis_client, quotas)
        engines = PlayedEngines()
        operation = operator_services(database, redis_client, place.onboarding.outbox, engines)
        console = create_console(
            ConsoleServices(
                redis=redis_client,
                accounts=account.users,
                account=account,
                scopes=SCOPES,
                names=NameService(database),
                usage=UsageReports(database, METADATA),
                files=place.files,
                uploads=place.uploads,
                batches=BatchService(database, place.store),
                retention=RetentionService(database),
                batch_endpoints=tuple(ENDPOINTS),
                adapters=place.onboarding,
                models=models,
                playground=talking,
                sla=SlaReports(database),
                refused=RefusedRequests(database),
                billing=billing,
                operation=operation,
                base_digest=lambda base: BASE_DIGEST,
                error_mapping=ERROR_MAPPING,
                sign_in=sign_in_services,
            )
        )
        app = Starlette(routes=[Mount("/console", console)])
        yield Site(
            app,
            account.tenants,
            account.keys,
            account.users,
            account,
            place.onboarding.adapters,
            redis_client,
            tenants[0],
            place,
            engine,
            quotas,
            billing,
            operation,
            engines,
        )


@pytest.fixture
async def visitor(site: Site) -> AsyncIterator[httpx.AsyncClient]:
    async with site.visitor() as visitor:
        yield visitor


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as opened:
        yield opened


@pytest.fixture
async def seen(site: Site, browser: Browser) -> AsyncIterator[Visit]:
    """Signed in as an owner, on a wide screen."""
    async with served(site.whole) as origin:
        context = await browser.new_context(viewport={"width": 1280, "height": 900})
        opened = await visit(context, origin)
        await opened.sign_in(EMAIL, PASSWORD)
        yield opened
        assert not opened.complaints
        await context.close()
