"""Lists the services that the console calls; the API process builds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from redis.asyncio import Redis
from starlette.requests import Request
from starlette.responses import Response

from adapters.catalogue import AdapterCatalogue
from adapters.deletion import AdapterDeletion
from adapters.files.service import FileService
from adapters.files.uploads import UploadService
from adapters.jobs.service import JobService
from adapters.reports import ReportReader
from adapters.resolver import ModelResolver
from adapters.service import AdapterService
from adapters.shares import SharingService
from adapters.signing.reader import SignatureReader
from adapters.submission import AdapterSubmission
from admin.operator.services import OperatorServices
from admin.sign_in.services import SignInServices
from batches.service import BatchService
from billing.invoices.accounts import BillingAccounts
from billing.invoices.credits import CreditService
from billing.invoices.service import InvoiceService
from billing.invoices.verification import InvoiceVerification
from billing.notifications.service import WebhookService
from billing.payments.service import PaymentService
from billing.rates import Rate
from billing.service import UsageReports
from billing.spend.alerts import SpendAlertService
from billing.statements import Statements
from engine.protocol import PriorityClass
from retention.service import RetentionService
from sla.service import SlaReports
from tenants.accounts import UserAccounts
from tenants.context import KeyKind
from tenants.object_names import NameService
from tenants.outbound.addresses import read_url
from tenants.quotas import Quotas
from tenants.refusals.service import RefusedRequests
from tenants.service import AccountServices


class AdapterServices(Protocol):
    """The way of an adapter into service, and out of it."""

    @property
    def submission(self) -> AdapterSubmission: ...
    @property
    def catalogue(self) -> AdapterCatalogue: ...
    @property
    def adapters(self) -> AdapterService: ...
    @property
    def deletion(self) -> AdapterDeletion: ...
    @property
    def sharing(self) -> SharingService: ...
    @property
    def jobs(self) -> JobService: ...
    @property
    def reports(self) -> ReportReader: ...
    @property
    def signatures(self) -> SignatureReader: ...


class Playground(Protocol):
    """Answers of models, for people who signed in."""

    async def terms(self, tenant_id: str, user_id: str) -> tuple[PriorityClass, Rate, Rate]:
        """The service tier of the user's requests, and what it costs: on the base, and on an adapter."""

    async def chat(self, request: Request, tenant_id: str, user_id: str) -> Response:
        """Answer a request whose body is that of a chat completion, under the user's limits, on their bill.
        Raises what `ErrorMapping` know.
        """


@dataclass(frozen=True)
class ErrorMapping:
    """Maps domain errors to statuses and messages: the API's table, so that console and API agree."""

    known: tuple[type[Exception], ...]
    """Errors with a mapping; any other is an internal error."""
    describe: Callable[[BaseException], tuple[int, dict[str, dict[str, Any]]]]
    """Status and envelope."""


@dataclass(frozen=True)
class BillingServices:
    """Invoices, payments, limits and notifications."""

    accounts: BillingAccounts
    invoices: InvoiceService
    verification: InvoiceVerification
    credits: CreditService
    statements: Statements
    payments: PaymentService
    alerts: SpendAlertService
    webhooks: WebhookService
    quotas: Quotas
    is_mailing: bool
    """Whether there is a mail server to send by."""


@dataclass(frozen=True)
class ConsoleServices:
    """Built by the API process."""

    redis: Redis
    accounts: UserAccounts
    account: AccountServices
    scopes: Mapping[KeyKind, frozenset[str]]
    """What keys can be restricted to."""
    names: NameService
    usage: UsageReports
    files: FileService
    uploads: UploadService
    batches: BatchService
    retention: RetentionService
    batch_endpoints: Sequence[str]
    """Paths of the API that the lines of a batch can name."""
    adapters: AdapterServices
    models: ModelResolver
    playground: Playground
    sla: SlaReports
    refused: RefusedRequests
    billing: BillingServices
    operation: OperatorServices
    """Services of the operator's pages."""
    base_digest: Callable[[str], str]
    """Of a base that is served; raises one of `error_mapping.known` while there is no engine to ask."""
    error_mapping: ErrorMapping
    sign_in: SignInServices = field(default_factory=SignInServices)
    check_issuer_url: Callable[[str], object] = read_url
    """Raises ValueError for an address that no issuer of workloads' tokens can have."""
