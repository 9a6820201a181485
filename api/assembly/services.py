"""Builds an API process's services from settings, in the order in which they depend on each other.

What starts later closes earlier: the engine's connection before the quotas that settle its last requests.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import TYPE_CHECKING

import redis.asyncio
import structlog

from adapters.bases import Bases
from adapters.files.service import FileService, UploadService
from adapters.imports.admission import ImportAdmission
from adapters.imports.settings import ImportSettings
from adapters.inspection import SandboxUnavailable
from adapters.inspection.sandbox import Sandbox
from adapters.resolver import ModelResolver
from adapters.served_bases import FurtherBases
from adapters.sharing.settings import SharingSettings
from adapters.storage import ObjectStore, StorageSettings, open_store
from admin.app import BillingServices
from admin.settings import ConsoleSettings
from api.assembly.adapters import open_onboarding
from api.assembly.batches import batch_runner
from api.assembly.console import console_over
from api.assembly.operators import operator_services
from api.assembly.payments import open_payments
from api.assembly.pools import build_pools
from api.assembly.sign_in import open_sign_in
from api.assembly.status_page import running_status
from api.assembly.stored_state import running_background, stored_state
from api.batches.settings import BatchSettings
from api.deferred_work import DeferredWork
from api.edge import AsgiApp
from api.engine_watch import EngineWatch
from api.metrics.background_work import BackgroundWorkCollector
from api.metrics.disk import DiskCollector
from api.metrics.payments import PaymentsCollector
from api.metrics.reconciliation import BooksCollector
from api.metrics.restarts import RestartsCollector
from api.pools import Pools
from api.readiness import EngineDisk, ExpectedBase, LocalDisk, RedisWritable, SchemaVersion
from api.services import Check, Onboarding, RequestLimits, Services
from api.settings import ApiSettings
from api.workload_identity.exchange import TokenExchange
from api.workload_identity.published_keys import PublishedKeys
from batches.service import BatchService
from billing.invoices.accounts import BillingAccounts
from billing.invoices.credits import CreditService
from billing.invoices.service import InvoiceService
from billing.invoices.settings import InvoiceSettings
from billing.invoices.verification import InvoiceVerification
from billing.notifications.sending import WebhookSender
from billing.notifications.service import WebhookService
from billing.notifications.settings import NotificationSettings
from billing.payments.service import PaymentService
from billing.payments.settings import StripeSettings
from billing.pricing import PriceBook
from billing.reconciliation.service import ReconciliationService
from billing.request_metadata.content import MetadataSealer
from billing.request_metadata.recorder import MetadataRecorder
from billing.service import UsageReports
from billing.spend.alerts import SpendAlertService
from billing.statements import Statements
from billing.window_usage import WindowUsage
from billing.windows.usage_exists import UsageExists
from db.session import Database
from db.settings import DatabaseSettings
from engine.signing.settings import VerificationSettings
from retention.service import RetentionService
from sla.incidents.service import Incidents
from sla.recorder import SlaRecorder
from sla.service import SlaReports
from telemetry.disk import DiskSettings
from telemetry.metrics import ServingMetrics
from telemetry.trace_setup import open_tracing
from tenants.idempotency.records import IdempotencyRecords
from tenants.quotas import Quotas
from tenants.refusals.recorder import RefusalRecorder
from tenants.resolver import KeyResolver
from tenants.retention.settings import RetentionSettings
from tenants.service import account_services
from tenants.settings import TenantSettings
from tenants.workload_identity.spent_tokens import SpentTokens

if TYPE_CHECKING:
    from telemetry.tracing import Tracing

LOG_DELAY_S = 0.01
"""By which lines of the log and counters may be late."""
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Stores:
    """Connections to PostgreSQL and Redis, the object store, and the sandbox that looks at uploaded files."""

    database: Database
    cache: redis.asyncio.Redis
    objects: ObjectStore
    sandbox: Sandbox
    schema: SchemaVersion


@dataclass(frozen=True, slots=True)
class _Generation:
    """The services that a generation request passes through."""

    keys: KeyResolver
    models: ModelResolver
    prices: PriceBook
    sla: SlaRecorder
    refusals: RefusalRecorder
    request_metadata: MetadataRecorder
    quotas: Quotas
    pools: Pools
    watch: EngineWatch
    deferred_work: DeferredWork
    metrics: ServingMetrics
    tracing: Tracing | None


@contextlib.asynccontextmanager
async def open_services(
    settings: ApiSettings, database: DatabaseSettings, tenants: TenantSettings, storage: StorageSettings
) -> AsyncIterator[tuple[Services, AsgiApp]]:
    """Yields the routes' services, started, and the console's application over the same services.

    Raises UnusableDatabase, OSError, ValueError when the process cannot serve with these settings.
    """
    bases, metrics = FurtherBases().beside(settings.first_base), ServingMetrics()
    base_configs = {base.name: base.path / "config.json" for base in bases}
    pools = await build_pools(bases, settings.name, metrics)
    async with AsyncExitStack() as opened:
        tracing = open_tracing("rootstock-api", settings.name)
        if tracing is not None:
            opened.callback(tracing.close)
        stores = await _open_stores(opened, settings, database, storage)
        generation = await _start_generation(opened, stores, settings, tenants, pools, metrics, tracing)
        await _start_sandbox(opened, stores.sandbox)
        files = FileService(stores.database, stores.objects, stores.sandbox)
        uploads = UploadService(stores.database, stores.objects, stores.sandbox)
        onboarding = await opened.enter_async_context(
            open_onboarding(
                stores.database,
                stores.cache,
                stores.objects,
                files,
                uploads,
                stores.sandbox,
                {pool.name: pool.engine for pool in pools},
                redis_url=settings.redis_url,
                base_configs=base_configs,
                imports=ImportAdmission(ImportSettings().policy(), tenants.key_secrets()),
                platform_percent=SharingSettings().platform_percent,
                signing_keys=VerificationSettings().keys,
            )
        )
        payments = await opened.enter_async_context(
            open_payments(stores.database, stores.cache, onboarding.outbox, StripeSettings())
        )
        billing = _billing(stores, payments, generation.quotas)
        services = _services(stores, generation, files, uploads, onboarding, billing, settings, tenants)
        services = await opened.enter_async_context(
            running_background(services, stores.database, settings.name)
        )
        await _start_batches(opened, services, stores, settings)
        board = await opened.enter_async_context(
            running_status(
                services, stores.database, stores.cache, stores.objects, settings.name, base_configs
            )
        )
        services = replace(services, status=board)
        sign_in = await opened.enter_async_context(open_sign_in(ConsoleSettings(), NotificationSettings()))
        operation = operator_services(stores.database, stores.cache, onboarding.outbox, generation.watch)
        yield services, console_over(stores.database, stores.cache, services, billing, operation, sign_in)


async def _open_stores(
    opened: AsyncExitStack, settings: ApiSettings, database: DatabaseSettings, storage: StorageSettings
) -> _Stores:
    """Raises UnusableDatabase when the schema is not one that this release serves."""
    rows = Database(
        database.url,
        pool_size=database.pool_size,
        pool_overflow=database.pool_overflow,
        pool_timeout=database.pool_timeout,
        statement_timeout=database.statement_timeout,
        idle_transaction_timeout=database.idle_transaction_timeout,
        prepared_statements=database.prepared_statements,
    )
    opened.push_async_callback(rows.close)
    schema = SchemaVersion(rows)
    await schema.check_at_start()
    cache = redis.asyncio.Redis.from_url(settings.redis_url)
    opened.push_async_callback(cache.aclose)
    return _Stores(rows, cache, open_store(storage), Sandbox(), schema)


async def _start_generation(
    opened: AsyncExitStack,
    stores: _Stores,
    settings: ApiSettings,
    tenants: TenantSettings,
    pools: Pools,
    metrics: ServingMetrics,
    tracing: Tracing | None,
) -> _Generation:
    rows, cache = stores.database, stores.cache
    usage_exists = UsageExists(rows, WindowUsage(rows))
    opened.push_async_callback(usage_exists.close)
    generation = _Generation(
        keys=KeyResolver(rows, cache, tenants.key_secrets(), ttl=tenants.cache_seconds),
        models=ModelResolver(rows, cache, Bases(*(pool.name for pool in pools)), ttl=tenants.cache_seconds),
        prices=PriceBook(rows, cache, ttl=tenants.cache_seconds),
        sla=SlaRecorder(cache),
        refusals=RefusalRecorder(cache),
        request_metadata=MetadataRecorder(cache, _sealer(tenants)),
        quotas=Quotas(settings.redis_url, f"{settings.name}-{token_hex(4)}", read_usage=usage_exists),
        pools=pools,
        watch=EngineWatch(pools.clients, cache),
        deferred_work=DeferredWork(LOG_DELAY_S),
        metrics=metrics,
        tracing=tracing,
    )
    # Closed in the opposite order: what the engine still says of requests is settled.
    for part in (
        generation.keys,
        generation.models,
        generation.prices,
        generation.sla,
        generation.refusals,
        generation.request_metadata,
        generation.quotas,
        generation.pools,
        generation.watch,
    ):
        await part.start()
        opened.push_async_callback(part.close)
    opened.callback(generation.deferred_work.run)
    return generation


async def _start_sandbox(opened: AsyncExitStack, sandbox: Sandbox) -> None:
    """Starts the sandbox before the first file comes. If it cannot start now, each file tries again, and the
    process serves everything else meanwhile.
    """
    opened.push_async_callback(sandbox.close)
    try:
        await sandbox.start()
    except SandboxUnavailable as error:
        log.error("uploads of adapter files are refused: the sandbox does not start", error=str(error))


async def _start_batches(
    opened: AsyncExitStack, services: Services, stores: _Stores, settings: ApiSettings
) -> None:
    batches = BatchSettings()
    if batches.concurrency:
        owner = f"{settings.name}-{token_hex(4)}"
        runner = batch_runner(services, stores.database, stores.objects, stores.sandbox, batches, owner)
        await runner.start()
        opened.push_async_callback(runner.close)


def _billing(stores: _Stores, payments: PaymentService, quotas: Quotas) -> BillingServices:
    rows, cache = stores.database, stores.cache
    notifications = NotificationSettings()
    invoices = InvoiceService(rows, cache, InvoiceSettings(), minimum_cents=StripeSettings().smallest_charge)
    sender = WebhookSender(
        http_allowed=notifications.webhooks_http,
        private_allowed=notifications.webhooks_private,
        timeout=notifications.timeout,
    )
    return BillingServices(
        accounts=BillingAccounts(rows, cache),
        invoices=invoices,
        verification=InvoiceVerification(rows),
        credits=CreditService(rows, cache),
        statements=Statements(rows, invoices),
        payments=payments,
        alerts=SpendAlertService(rows),
        webhooks=WebhookService(rows, sender),
        quotas=quotas,
        is_mailing=bool(notifications.smtp_host),
    )


def _services(
    stores: _Stores,
    generation: _Generation,
    files: FileService,
    uploads: UploadService,
    onboarding: Onboarding,
    billing: BillingServices,
    settings: ApiSettings,
    tenants: TenantSettings,
) -> Services:
    rows, cache = stores.database, stores.cache
    services = Services(
        pools=generation.pools,
        keys=generation.keys,
        models=generation.models,
        usage=UsageReports(rows, _sealer(tenants)),
        files=files,
        uploads=uploads,
        quotas=generation.quotas,
        prices=generation.prices,
        sla=generation.sla,
        sla_reports=SlaReports(rows),
        refusals=generation.refusals,
        request_metadata=generation.request_metadata,
        idempotency=IdempotencyRecords(cache),
        books=BooksCollector(ReconciliationService(rows, cache)),
        checks=_checks(stores, generation.pools),
        limits=RequestLimits(
            settings.max_body_bytes,
            settings.body_timeout,
            settings.max_file_bytes,
            settings.min_file_rate,
            settings.ping_interval,
        ),
        metrics=generation.metrics,
        deferred_work=generation.deferred_work,
        tracing=generation.tracing,
        onboarding=onboarding,
        state=stored_state(rows, tenants.key_secrets()),
        accounts=account_services(rows, cache, tenants.key_secrets()),
        webhooks=billing.webhooks,
        spend_alerts=billing.alerts,
        invoices=billing.invoices,
        credits=billing.credits,
        payments=billing.payments,
        payments_waiting=PaymentsCollector(rows),
        background_work=BackgroundWorkCollector(rows),
        restarts=RestartsCollector(cache),
        batches=BatchService(rows, stores.objects),
        retention=RetentionService(rows, RetentionSettings().bounds()),
        incidents=Incidents(rows),
    )
    services = replace(services, token_exchange=_token_exchange(services, cache))
    services.metrics.registry.register(DiskCollector(stores.objects.scratch, generation.pools.latest_stats))
    return services


def _token_exchange(services: Services, cache: redis.asyncio.Redis) -> TokenExchange:
    """Returns the exchange, which may ask the addresses that webhooks may be sent to."""
    assert services.accounts is not None
    notifications = NotificationSettings()
    published = PublishedKeys(
        http_allowed=notifications.webhooks_http, private_allowed=notifications.webhooks_private
    )
    return TokenExchange(services.accounts.workload_identities, published, SpentTokens(cache))


def _sealer(tenants: TenantSettings) -> MetadataSealer:
    return MetadataSealer(tenants.key_secrets())


def _checks(stores: _Stores, pools: Pools) -> dict[str, Check]:
    min_free_bytes = DiskSettings().min_free_bytes
    return {
        "postgres": stores.database.ping,
        "redis": RedisWritable(stores.cache).check,
        "schema": stores.schema.check,
        "base": ExpectedBase(pools).check,
        "disk": LocalDisk(stores.objects.scratch, min_free_bytes).check,
        "engine_disk": EngineDisk(pools.latest_stats, min_free_bytes).check,
    }
