"""Defines the services that routes use; the main of the process, or a test, builds them once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from fastapi import Request

from adapters.catalogue import AdapterCatalogue
from adapters.deletion import AdapterDeletion
from adapters.files.service import FileService, UploadService
from adapters.jobs.service import JobService
from adapters.pending_uploads import PendingUploads
from adapters.recalibration import Recalibration
from adapters.reports import ReportReader
from adapters.resolver import ModelResolver
from adapters.service import AdapterService
from adapters.shares import SharingService
from adapters.signing.reader import SignatureReader
from adapters.storage import ObjectStore
from adapters.submission import AdapterSubmission
from api.deferred_work import DeferredWork
from api.errors import NotServing
from api.metrics.background_work import BackgroundWorkCollector
from api.metrics.payments import PaymentsCollector
from api.metrics.polled import PolledCollector
from api.metrics.reconciliation import BooksCollector
from api.metrics.restarts import RestartsCollector
from api.pools import Pools
from api.workload_identity.exchange import TokenExchange
from batches.service import BatchService
from billing.invoices.credits import CreditService
from billing.invoices.service import InvoiceService
from billing.notifications.service import WebhookService
from billing.payments.service import PaymentService
from billing.pricing import PriceBook
from billing.request_metadata.recorder import MetadataRecorder
from billing.service import UsageReports
from billing.spend.alerts import SpendAlertService
from conversations.background.service import BackgroundQueue
from conversations.responses.service import ResponseService
from conversations.service import ConversationService
from db.outbox import Outbox
from retention.service import RetentionService
from sla.incidents.service import Incidents
from sla.recorder import SlaRecorder
from sla.service import SlaReports
from sla.status.board import StatusBoard
from telemetry.metrics import ServingMetrics
from tenants.idempotency.records import IdempotencyRecords
from tenants.quotas import Quotas
from tenants.refusals.recorder import RefusalRecorder
from tenants.resolver import KeyResolver
from tenants.service import AccountServices

if TYPE_CHECKING:
    from telemetry.tracing import Tracing

ServiceT = TypeVar("ServiceT")
Check = Callable[[], Awaitable[str | None]]
"""Returns None when what it checks is ready; otherwise raises, or returns the reason, which /readyz shows."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What a request may ask of this process."""

    max_body_bytes: int = 4 * 1024 * 1024
    body_timeout: float = 30.0
    """Seconds for a request's body to arrive; of a file, that may pass without a byte of it."""
    max_file_bytes: int = 8 * 1024 * 1024 * 1024
    """Of a body with a file, whatever the caller's plan allows."""
    min_file_rate: float = 16 * 1024
    """Bytes per second at which a file must come on average."""
    ping_interval: float = 15.0
    """Seconds of silence on a stream after which a comment is sent, so that proxies keep it open."""


@dataclass(frozen=True, slots=True)
class Onboarding:
    """The services of adapters: upload, inspection, jobs, reports, sharing, deletion."""

    store: ObjectStore
    submission: AdapterSubmission
    waiting: PendingUploads
    catalogue: AdapterCatalogue
    adapters: AdapterService
    deletion: AdapterDeletion
    sharing: SharingService
    jobs: JobService
    recalibration: Recalibration
    reports: ReportReader
    signatures: SignatureReader
    outbox: Outbox


@dataclass(frozen=True, slots=True)
class StoredState:
    """The services of stored responses and conversations."""

    responses: ResponseService
    conversations: ConversationService
    background: BackgroundQueue


class BackgroundWork(Protocol):
    """What runs background responses in this process."""

    def wake(self) -> None:
        """Makes it look at the queue at once."""
        ...


@dataclass(frozen=True, slots=True)
class Services:
    """Everything the routes use, built once by the process's main (or by a test)."""

    pools: Pools
    """The base models and their engines."""
    keys: KeyResolver
    models: ModelResolver
    usage: UsageReports
    files: FileService
    uploads: UploadService
    quotas: Quotas
    prices: PriceBook
    sla: SlaRecorder
    sla_reports: SlaReports
    metrics: ServingMetrics = field(default_factory=ServingMetrics)
    deferred_work: DeferredWork = field(default_factory=DeferredWork)
    tracing: Tracing | None = None
    """None in a process that records no spans."""
    checks: Mapping[str, Check] = field(default_factory=dict)
    """By the name /readyz shows: postgres, redis, schema. The engines are asked directly."""
    limits: RequestLimits = field(default_factory=RequestLimits)
    idempotency: IdempotencyRecords | None = None
    """None in a process that refuses requests with an idempotency key."""
    state: StoredState | None = None
    """None in a process that stores no responses and conversations."""
    background: BackgroundWork | None = None
    """Runs background responses; None in a process that leaves them to others."""
    onboarding: Onboarding | None = None
    """None in a process without the routes of files, adapters and jobs."""
    accounts: AccountServices | None = None
    """None in a process without the routes of organizations."""
    webhooks: WebhookService | None = None
    spend_alerts: SpendAlertService | None = None
    payments: PaymentService | None = None
    """None in a process without the routes of payments."""
    invoices: InvoiceService | None = None
    credits: CreditService | None = None
    """None in a process without the routes of invoices."""
    payments_waiting: PaymentsCollector | None = None
    """None in a process whose /metrics shows no payments."""
    background_work: BackgroundWorkCollector | None = None
    """None in a process whose /metrics shows no batches and background responses of the service."""
    books: BooksCollector | None = None
    """None in a process whose /metrics shows no reconciliation."""
    restarts: RestartsCollector | None = None
    """None in a process whose /metrics shows no restarts."""
    refusals: RefusalRecorder | None = None
    """None in a process that does not record refused requests."""
    request_metadata: MetadataRecorder | None = None
    """None in a process that does not keep the metadata of requests."""
    retention: RetentionService | None = None
    """None in a process without the routes of retention."""
    batches: BatchService | None = None
    """None in a process without the routes of batches."""
    token_exchange: TokenExchange | None = None
    """None in a process that exchanges no tokens of other issuers."""
    incidents: Incidents | None = None
    """None in a process whose landing page shows no incidents."""
    status: StatusBoard | None = None
    """None in a process without the status page."""

    @property
    def polled(self) -> tuple[PolledCollector, ...]:
        """What /metrics shows of the database and Redis."""
        found = (self.payments_waiting, self.background_work, self.books, self.restarts)
        return tuple(one for one in found if one is not None)


def services_of(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


def served(service: ServiceT | None, what: str) -> ServiceT:
    """Returns an optional service. Raises NotServing, with its name in the plural, where there is none."""
    if service is None:
        raise NotServing(f"{what} are not served here.")
    return service


def onboarding_of(request: Request) -> Onboarding:
    """Returns the services of adapters. Raises NotServing where this process has none."""
    return served(services_of(request).onboarding, "Files and adapters")
