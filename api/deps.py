"""What routes are given: the process's services, and who is calling.

Owns authentication of a request and reading of its body. Holds no database connection: keys resolve from a
cache, and a miss opens and closes its own session before the handler goes on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from fastapi import Request

from adapters.files.service import FileService, UploadService
from adapters.resolver import ModelResolver
from api.books_metrics import BooksCollector
from api.deferred_work import DeferredWork
from api.errors import (
    ClientGone,
    InsufficientPermissions,
    MismatchedOrganization,
    MismatchedProject,
    MissingApiKey,
    NotServing,
    UnsupportedMediaType,
)
from api.onboarding import Onboarding
from api.payments_metrics import PaymentsCollector
from api.restart_metrics import RestartsCollector
from billing.invoices.credits import CreditService
from billing.invoices.service import InvoiceService
from billing.notifications.service import WebhookService
from billing.payments.service import PaymentService
from billing.pricing import PriceBook
from billing.service import UsageReports
from billing.spend.alerts import SpendAlertService
from engine.client import EngineClient, EngineGone
from engine.protocol import EngineInfo
from sla.recorder import SlaRecorder
from sla.service import SlaReports
from telemetry.metrics import ServingMetrics
from tenants.actors import Actor
from tenants.context import KeyKind, TenantContext
from tenants.errors import AccountSuspended
from tenants.idempotency.records import IdempotencyRecords
from tenants.quotas import Quotas
from tenants.resolver import KeyResolver
from tenants.service import AccountServices
from tokenization.codec import TextCodec

ServiceT = TypeVar("ServiceT")


@dataclass(frozen=True, slots=True)
class Permission:
    """What a route asks of a key."""

    kind: KeyKind
    scope: str
    """Held by every key of the kind that was not restricted to other scopes."""


GENERATE = Permission("inference", "model.request")
READ_MODELS = Permission("inference", "models.read")
READ_FILES = Permission("inference", "files.read")
WRITE_FILES = Permission("inference", "files.write")
READ_ADAPTERS = Permission("inference", "adapters.read")
WRITE_ADAPTERS = Permission("inference", "adapters.write")
READ_GENERATIONS = Permission("inference", "generations.read")
READ_SLA = Permission("admin", "sla.read")
READ_USAGE = Permission("admin", "usage.read")
READ_MEMBERS = Permission("admin", "organization.members.read")
WRITE_MEMBERS = Permission("admin", "organization.members.write")
READ_PROJECTS = Permission("admin", "organization.projects.read")
WRITE_PROJECTS = Permission("admin", "organization.projects.write")
READ_KEYS = Permission("admin", "organization.keys.read")
WRITE_KEYS = Permission("admin", "organization.keys.write")
READ_LIMITS = Permission("admin", "organization.limits.read")
WRITE_LIMITS = Permission("admin", "organization.limits.write")
READ_BILLING = Permission("admin", "organization.billing.read")
WRITE_BILLING = Permission("admin", "organization.billing.write")
READ_AUDIT = Permission("admin", "organization.audit.read")
READ_WEBHOOKS = Permission("admin", "organization.webhooks.read")
WRITE_WEBHOOKS = Permission("admin", "organization.webhooks.write")

Check = Callable[[], Awaitable[str | None]]
"""Returns None when what it checks is ready. When it is not, it returns why, for anybody who reaches the port
to read, or raises.
"""


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
class Services:
    """Everything the routes use, built once by the process's main (or by a test)."""

    engine: EngineClient
    text: TextCodec
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
    afterwards: DeferredWork = field(default_factory=DeferredWork)
    checks: Mapping[str, Check] = field(default_factory=dict)
    """By the name /readyz shows: postgres, redis, schema. The engine is asked directly."""
    limits: RequestLimits = field(default_factory=RequestLimits)
    idempotency: IdempotencyRecords | None = None
    """None in a process that refuses requests with an idempotency key."""
    onboarding: Onboarding | None = None
    """None in a process that only answers requests on adapters that are there."""
    accounts: AccountServices | None = None
    """None in one that lets nobody run their account."""
    webhooks: WebhookService | None = None
    spend_alerts: SpendAlertService | None = None
    payments: PaymentService | None = None
    """None in one that tells nobody."""
    invoices: InvoiceService | None = None
    credits: CreditService | None = None
    """None in one that bills nobody."""
    payments_waiting: PaymentsCollector | None = None
    """None in one that shows nothing of payments among its metrics."""
    books: BooksCollector | None = None
    """None in one that shows no books among its metrics."""
    restarts: RestartsCollector | None = None
    """None in one that shows no restarts among its metrics."""


def services_of(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


def served(service: ServiceT | None, what: str) -> ServiceT:
    """A service that a process may do without. Raises NotServing where it does; `what` is in the plural."""
    if service is None:
        raise NotServing(f"{what} are not served here.")
    return service


def onboarding_of(request: Request) -> Onboarding:
    """Raises NotServing where there is none."""
    return served(services_of(request).onboarding, "Files and adapters")


def bearer_of(request: Request) -> str:
    """The API key as it was sent. Raises MissingApiKey."""
    scheme, _, plaintext = _header(request, b"authorization").partition(" ")
    plaintext = plaintext.strip()
    if scheme.lower() != "bearer" or not plaintext:
        raise MissingApiKey("no bearer token")
    return plaintext


async def identify(request: Request) -> TenantContext:
    """Whose key it is, whatever the key may do; looked up once for each request.

    Raises MissingApiKey, tenants' InvalidApiKey; InsufficientPermissions for a page of a web origin that is
    not one of the key's.
    """
    state = request.scope["state"]
    caller: TenantContext | None = state.get("caller")
    if caller is None:
        caller = await services_of(request).keys.resolve(bearer_of(request), address_of(request))
        state["log"] = {"tenant": caller.tenant_id, "key_id": caller.key_id}
        _check_origin(request, caller)
        state["caller"] = caller
    return caller


async def authenticate(request: Request, *needed: Permission) -> TenantContext:
    """Who is calling, if the key may do what is `needed`: at most one permission for each kind of key.

    Raises:
        MissingApiKey, tenants' InvalidApiKey: 401, the same body for every reason.
        MismatchedOrganization, MismatchedProject: a header names somebody else's.
        InsufficientPermissions: 403, also for a page of a web origin that is not one of the key's.
        AccountSuspended: of an inference key. Admin keys go on: with them what is owed can be paid.
    """
    caller = await identify(request)
    _check_names(request, caller)
    scope = next((permission.scope for permission in needed if permission.kind == caller.kind), None)
    if scope is None:
        raise InsufficientPermissions(
            f"This needs an {needed[0].kind} API key; yours is an {caller.kind} key."
        )
    if caller.billing_state == "suspended" and caller.kind == "inference":
        raise AccountSuspended
    if caller.scopes and scope not in caller.scopes:
        raise InsufficientPermissions(f"This API key lacks the scope '{scope}'.")
    return caller


def _check_origin(request: Request, caller: TenantContext) -> None:
    """That a web page which uses the key is of one of its origins, and may read the response then. Raises
    InsufficientPermissions.

    A key without origins is refused to pages of other origins alone: programs may send `Origin`, too.
    """
    origin = _header(request, b"origin")
    if not origin:
        return
    if origin in caller.origins:
        request.state.allowed_origin = origin
    elif caller.origins or _header(request, b"sec-fetch-site") in ("cross-site", "same-site"):
        raise InsufficientPermissions(
            f"This API key may not be used from the web origin '{origin[:200]}'; add it to the key's origins."
        )


def _check_names(request: Request, caller: TenantContext) -> None:
    """Clients may name the organisation and the project they mean to work for. An admin key is of none."""
    organization = _header(request, b"openai-organization")
    if organization and organization not in (caller.tenant_id, caller.tenant_name):
        raise MismatchedOrganization("OpenAI-Organization header should match organization for API key.")
    project = _header(request, b"openai-project")
    if project and caller.project_id is not None and project != caller.project_id:
        raise MismatchedProject("OpenAI-Project header should match project for API key.")


def _header(request: Request, name: bytes, otherwise: str = "") -> str:
    """Of a name that comes twice the last. From the edge, which has them at hand: the framework looks through
    all of them for each.
    """
    value: bytes | None = request.scope["state"]["headers"].get(name)
    return otherwise if value is None else value.decode("latin-1")


def address_of(request: Request) -> str | None:
    """Of the client, as far as trusted proxies tell."""
    return None if request.client is None else request.client.host


def actor_of(request: Request, caller: TenantContext) -> Actor:
    """On whose behalf this request changes something."""
    return Actor.of_key(caller, address_of(request), request.state.request_id)


def check_model(caller: TenantContext, name: str) -> None:
    """Raises InsufficientPermissions when the key's list of models lacks this one."""
    if not caller.may_use(name):
        raise InsufficientPermissions(f"This API key may not use the model '{name}'.", "model")


def serving_engine(request: Request) -> EngineInfo:
    """Who generates. Raises EngineGone while there is no engine to ask."""
    return engine_of(services_of(request))


def engine_of(services: Services) -> EngineInfo:
    """The same. Raises EngineGone."""
    engine = services.engine
    if engine.info is None or not engine.ready:
        raise EngineGone("the engine does not serve", engine.ready_in)
    return engine.info


async def read_json(request: Request) -> bytes:
    """The body, undecoded. Raises UnsupportedMediaType when it is declared to be something else than JSON in
    UTF-8.
    """
    _check_json(_header(request, b"content-type", "application/json"))
    message = await request.receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        body: bytes = message.get("body", b"")
        return body
    pieces: list[bytes] = []
    while message["type"] == "http.request":
        pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(pieces)
        message = await request.receive()
    raise ClientGone("The client hung up while sending the request.")


def _check_json(content_type: str) -> None:
    """Raises UnsupportedMediaType."""
    media_type, _, parameters = content_type.partition(";")
    media_type = media_type.strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise UnsupportedMediaType(f"Send 'content-type: application/json', not '{media_type[:100]}'.")
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        charset = value.strip().strip('"')
        if name.strip().lower() == "charset" and charset.lower() not in ("utf-8", "utf8"):
            raise UnsupportedMediaType(f"JSON must be in UTF-8; charset '{charset[:100]}' is not supported.")
