"""The API process: builds its services from settings, serves until SIGTERM, drains, exits 0.

Owns construction order and the end. Serves /livez from the first moment; /readyz says no until the engine has
answered and the database is at this code's schema.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from secrets import token_hex
from types import FrameType

import redis.asyncio
import structlog
import uvicorn
import uvloop

from adapters.files.service import FileService, UploadService
from adapters.inspection import Sandbox, SandboxUnavailable
from adapters.resolver import ModelResolver
from adapters.storage import StorageSettings, open_store
from admin.app import BillingServices
from admin.settings import ConsoleSettings
from api.app import create_app
from api.books_metrics import BooksCollector
from api.connections import connections_with
from api.console import console_over
from api.deferred_work import DeferredWork
from api.deps import RequestLimits, Services
from api.disk_metrics import DiskCollector
from api.edge import AsgiApp
from api.engine_watch import EngineWatch
from api.onboarding import open_onboarding
from api.operation import operator_services
from api.payments import open_payments
from api.payments_metrics import PaymentsCollector
from api.playground import Playground
from api.readiness import EngineDisk, LocalDisk, RedisWritable
from api.restart_metrics import RestartsCollector
from api.settings import ApiSettings, ConnectionSettings
from api.sign_in import open_sign_in
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
from billing.service import UsageReports
from billing.spend.alerts import SpendAlertService
from billing.statements import Statements
from billing.window_usage import WindowUsage
from billing.windows.usage_exists import UsageExists
from db.errors import DatabaseUnavailable, UnusableDatabase
from db.schema import assert_fit_to_serve
from db.session import Database
from db.settings import DatabaseSettings
from engine.client import EngineClient
from sla.recorder import SlaRecorder
from sla.service import SlaReports
from telemetry import logs
from telemetry.disk import DiskSettings
from tenants.idempotency.records import IdempotencyRecords
from tenants.naming import NameService
from tenants.quotas import Quotas
from tenants.resolver import KeyResolver
from tenants.service import account_services
from tenants.settings import TenantSettings
from tenants.user_callers import UserCallers
from tokenization.codec import TextCodec

COLLECT_AFTER = (10_000, 20, 50)
"""Objects, and younger collections, after which the collector looks for cycles. Requests leave next to none,
and at Python's own 700 looking took a twentieth of the process's time.
"""
AFTERWARDS = 0.01
"""Seconds by which lines of the log and counters may be late."""
log = structlog.get_logger(__name__)


def run(settings: ApiSettings) -> int:
    """Serve until SIGTERM or SIGINT; the process's exit code: 0 after the drain.

    The settings of connections, database and keys are read from the environment too.
    """
    logs.configure(settings.name, settings.log_level, settings.log_format)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # one text at a time: threads only cost
    database, tenants = DatabaseSettings(), TenantSettings()  # type: ignore[call-arg]
    storage, connections = StorageSettings(), ConnectionSettings()  # type: ignore[call-arg]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_serve(settings, connections, database, tenants, storage))
        except (OSError, ValueError, UnusableDatabase) as error:
            log.critical("api cannot start", reason=str(error))
            return 1
    return 0


async def _serve(
    settings: ApiSettings,
    connections: ConnectionSettings,
    database: DatabaseSettings,
    tenants: TenantSettings,
    storage: StorageSettings,
) -> None:
    async with open_services(settings, database, tenants, storage) as (services, console):
        config = uvicorn.Config(
            create_app(services, console),
            host=settings.host,
            port=settings.port,
            http=connections_with(connections.write_timeout, connections.head_timeout),
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=bool(connections.forwarded_allow_ips),
            forwarded_allow_ips=connections.forwarded_allow_ips,
            backlog=connections.backlog,
            timeout_keep_alive=connections.keep_alive,
            timeout_graceful_shutdown=settings.drain_timeout,
        )
        # Not uvicorn's own `fd`: it takes the socket for a Unix one, and TCP_NODELAY would be missing.
        inherited = None if settings.listen_fd is None else [socket.socket(fileno=settings.listen_fd)]
        _allow_many_connections()
        # What is there now stays: without it the collector has a hundredth of the objects to look through.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*COLLECT_AFTER)
        await DrainingServer(config).serve(inherited)


@contextlib.asynccontextmanager
async def open_services(
    settings: ApiSettings, database: DatabaseSettings, tenants: TenantSettings, storage: StorageSettings
) -> AsyncIterator[tuple[Services, AsgiApp]]:
    """All that routes use, started, and the console over the same; closed at the end of the block."""
    text = await asyncio.to_thread(TextCodec.load, settings.base_path)
    rows = Database(
        database.url,
        pool_size=database.pool_size,
        pool_overflow=database.pool_overflow,
        pool_timeout=database.pool_timeout,
        statement_timeout=database.statement_timeout,
        prepared_statements=database.prepared_statements,
    )
    cache = redis.asyncio.Redis.from_url(settings.redis_url)
    secret = tenants.key_secret.get_secret_value()
    keys = KeyResolver(rows, cache, secret, ttl=tenants.cache_seconds)
    models = ModelResolver(rows, cache, settings.base_name, ttl=tenants.cache_seconds)
    engine = EngineClient(settings.engine_endpoint, settings.name)
    watch = EngineWatch(engine, cache)
    prices = PriceBook(rows, cache, ttl=tenants.cache_seconds)
    sla = SlaRecorder(cache)
    windows = UsageExists(rows, WindowUsage(rows))
    quotas = Quotas(settings.redis_url, f"{settings.name}-{token_hex(4)}", seed=windows)
    afterwards = DeferredWork(AFTERWARDS)
    store, sandbox = open_store(storage), Sandbox()
    min_free_bytes = DiskSettings().min_free_bytes
    schema = _SchemaCheck(rows)
    async with contextlib.AsyncExitStack() as opened:
        opened.push_async_callback(rows.close)
        await schema.check_at_start()
        opened.push_async_callback(cache.aclose)
        opened.push_async_callback(windows.close)
        # Closed in the opposite order: what the engine still says of requests is settled.
        for part in (keys, models, prices, sla, quotas, engine, watch):
            await part.start()
            opened.push_async_callback(part.close)
        opened.callback(afterwards.run)
        opened.push_async_callback(sandbox.close)
        await _start_ahead(sandbox)
        usage = UsageReports(rows)
        accounts = account_services(rows, cache, secret)
        files, uploads = FileService(rows, store, sandbox), UploadService(rows, store, sandbox)
        onboarding = await opened.enter_async_context(
            open_onboarding(
                rows,
                cache,
                store,
                files,
                uploads,
                sandbox,
                engine,
                redis_url=settings.redis_url,
                base=settings.base_name,
                base_config=settings.base_path / "config.json",
            )
        )
        payments = await opened.enter_async_context(
            open_payments(rows, cache, onboarding.outbox, StripeSettings())
        )
        billing = _billing(rows, cache, payments, quotas)
        services = Services(
            engine=engine,
            text=text,
            keys=keys,
            models=models,
            usage=usage,
            files=files,
            uploads=uploads,
            quotas=quotas,
            prices=prices,
            sla=sla,
            sla_reports=SlaReports(rows),
            idempotency=IdempotencyRecords(cache),
            books=BooksCollector(ReconciliationService(rows, cache)),
            checks={
                "postgres": rows.ping,
                "redis": RedisWritable(cache).check,
                "schema": schema.check,
                "base": _SameBase(engine, settings.base_name).check,
                "disk": LocalDisk(store.scratch, min_free_bytes).check,
                "engine_disk": EngineDisk(lambda: engine.stats, min_free_bytes).check,
            },
            limits=RequestLimits(
                settings.max_body_bytes,
                settings.body_timeout,
                settings.max_file_bytes,
                settings.min_file_rate,
                settings.ping_interval,
            ),
            afterwards=afterwards,
            onboarding=onboarding,
            accounts=accounts,
            webhooks=billing.webhooks,
            spend_alerts=billing.alerts,
            invoices=billing.invoices,
            credits=billing.credits,
            payments=payments,
            payments_waiting=PaymentsCollector(rows),
            restarts=RestartsCollector(cache),
        )
        services.metrics.registry.register(DiskCollector(store.scratch, lambda: engine.stats))
        playground = Playground(services, UserCallers(rows))
        sign_in = await opened.enter_async_context(open_sign_in(ConsoleSettings(), NotificationSettings()))
        console = console_over(
            cache,
            accounts,
            NameService(rows),
            usage,
            files,
            uploads,
            onboarding,
            models,
            playground,
            services.sla_reports,
            billing,
            operator_services(rows, cache, onboarding.outbox, watch),
            sign_in,
            engine,
        )
        yield services, console


def _billing(
    rows: Database, cache: redis.asyncio.Redis, payments: PaymentService, quotas: Quotas
) -> BillingServices:
    notifications = NotificationSettings()
    smallest = StripeSettings().smallest_charge
    invoices = InvoiceService(rows, cache, InvoiceSettings(), minimum_cents=smallest)
    return BillingServices(
        accounts=BillingAccounts(rows, cache),
        invoices=invoices,
        verification=InvoiceVerification(rows),
        credits=CreditService(rows, cache),
        statements=Statements(rows, invoices),
        payments=payments,
        alerts=SpendAlertService(rows),
        webhooks=WebhookService(rows, _webhook_sender(notifications)),
        quotas=quotas,
        is_mailing=bool(notifications.smtp_host),
    )


def _webhook_sender(settings: NotificationSettings) -> WebhookSender:
    return WebhookSender(
        http_allowed=settings.webhooks_http,
        private_allowed=settings.webhooks_private,
        timeout=settings.timeout,
    )


async def _start_ahead(sandbox: Sandbox) -> None:
    """The first file does not wait for it. Where it cannot be started it is tried again with each file: all
    else is served meanwhile.
    """
    try:
        await sandbox.start()
    except SandboxUnavailable as error:
        log.error("no files of adapters are taken", reason=str(error))


def _allow_many_connections() -> None:
    """As many open files as the system lets a process ask for: every connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _SchemaCheck:
    """Is the database at a schema that this code can serve? Asked at the start, and by each probe: it may be
    restored or migrated while we serve.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._has_passed = False
        self._reason: str | None = None

    async def check_at_start(self) -> None:
        """Raises UnusableDatabase. While PostgreSQL is away the process starts: /readyz goes on asking."""
        try:
            await assert_fit_to_serve(self._database)
            self._has_passed = True
        except DatabaseUnavailable as error:
            log.warning("the schema is not checked yet", reason=str(error))

    async def check(self) -> str | None:
        """Returns why not, with both versions; logged when it begins. Raises DatabaseUnavailable before it
        passed once: afterwards that is for the check of PostgreSQL to say.
        """
        before = self._reason
        try:
            await assert_fit_to_serve(self._database)
            self._has_passed, self._reason = True, None
        except DatabaseUnavailable:
            if not self._has_passed:
                raise
        except UnusableDatabase as error:
            self._reason = str(error)
            if self._reason != before:
                log.error("the database cannot be served from", reason=self._reason)
        return self._reason


class _SameBase:
    """The engine behind the endpoint must serve the model whose tokenizer stands here."""

    def __init__(self, engine: EngineClient, base_name: str) -> None:
        self._engine = engine
        self._base_name = base_name

    async def check(self) -> None:
        if self._engine.info is not None and self._engine.info.base != self._base_name:
            raise ValueError(f"the engine serves {self._engine.info.base}, this process {self._base_name}")


class DrainingServer(uvicorn.Server):
    """Takes SIGTERM as the order to finish and leave, once: uvicorn would raise it again after the drain, and
    the process would not exit with 0.
    """

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        def finish(number: int, frame: FrameType | None) -> None:
            log.info("draining", signal=signal.Signals(number).name)
            self.handle_exit(number, frame)

        before = {number: signal.signal(number, finish) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for server in self.servers:
            for bound in server.sockets:
                host, port = bound.getsockname()[:2]
                log.info("listening", address=f"http://{host}:{port}")


if __name__ == "__main__":
    sys.exit(run(ApiSettings()))  # type: ignore[call-arg]
