"""What an error looks like from outside: the one envelope, and the one table from class to status, type and
code.

Owns the API's own errors and the table over everybody's. Refuses to know how the errors come about: domain
errors carry data, no HTTP; a test proves that the table names every one of them.

    {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from adapters.calibration.errors import (
    SamplesInvalid,
    ServingRefused,
    ServingUnavailable,
    SourceInvalid,
)
from adapters.errors import (
    AdapterLimitReached,
    AdapterNotFound,
    InvalidAdapter,
    ModelNotFound,
    ModelNotReady,
    NothingToRollBackTo,
    VersionNotFound,
    VersionNotReady,
)
from adapters.files.errors import (
    FileError,
    FileNotFound,
    FileTooLarge,
    InvalidFile,
    StorageLimitReached,
    TooManyUploads,
    UnsupportedFile,
    UploadNotFound,
    UploadNotPending,
)
from adapters.inspection import InspectionRefused, SandboxUnavailable
from adapters.jobs.errors import (
    JobFailed,
    JobFinished,
    JobNotFound,
    JobUnfinished,
    LeaseLost,
    ReportNotFound,
    VersionGone,
)
from adapters.jobs.lease import Interrupted
from adapters.names import InvalidModelName
from adapters.storage.errors import DigestMismatch, ObjectNotFound, StorageUnavailable
from adapters.storage.receiving import TooManyBytes
from api.ratelimit import rate_headers
from billing.errors import (
    AlreadyReversed,
    BooksBusy,
    GenerationNotFound,
    InvalidBillingMonth,
    InvalidReportQuery,
    MalformedEvent,
    NothingToReverse,
    PriceTaken,
    StillRunning,
)
from billing.invoices.errors import CreditNotAllowed, InvoiceNotFound, MonthSettled
from billing.notifications.errors import (
    DeliveryNotFound,
    EndpointUnreachable,
    MailNotSent,
    NotificationError,
    TooManyEndpoints,
    WebhookEndpointNotFound,
)
from billing.payments.errors import (
    BadSignature,
    ManualEntryNotFound,
    PaymentsNotConfigured,
    ProviderRefused,
    ProviderUnavailable,
)
from billing.spend.errors import SpendAlertNotFound, TooManyAlerts
from db.errors import DatabaseUnavailable
from engine.client import EngineGone, ReaderStalled, RequestRejected
from engine.protocol import RejectCode
from sla.errors import IncidentEnded, IncidentNotFound, InvalidMonth
from tenants.errors import (
    AccountSuspended,
    AddressNotAllowed,
    AuditEntryNotFound,
    BalanceExhausted,
    DefaultProjectKept,
    IdentityNotFound,
    IdentityTaken,
    InvalidApiKey,
    InviteAccepted,
    InviteInvalid,
    InviteNotFound,
    InviteNotTheirs,
    KeyNotActive,
    KeyNotFound,
    LastOwner,
    LastWayIn,
    LimitNotFound,
    LimitReached,
    NameTaken,
    NoSecondFactor,
    NotHeld,
    OwnersOnly,
    PlanNotFound,
    ProjectArchived,
    ProjectNotFound,
    QuotaExhausted,
    QuotaUnavailable,
    RateLimited,
    ResetInvalid,
    SecondFactorKept,
    SecondFactorMissing,
    ServiceAccountNotFound,
    TenantNotFound,
    UserNotFound,
    WrongCode,
    WrongPassword,
)
from tenants.quotas.link import LinkDown, ReplyError


class ApiError(Exception):
    """Base of what this package raises: a message for the caller, and the request's field it is about."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class InvalidValue(ApiError):
    """A field, or the body, is not what it must be."""


class UnsupportedParameter(ApiError):
    """A field this server does not know, or knows and would have to ignore."""


class ContextLengthExceeded(ApiError):
    """Prompt and completion do not fit into the model's context."""


class MissingApiKey(ApiError):
    """No `Authorization: Bearer` header. Answered with the very body of a wrong key."""


class InsufficientPermissions(ApiError):
    """The key is good and may not do this."""


class RouteNotFound(ApiError):
    """No such path."""


class MethodNotAllowed(ApiError):
    """The path exists and does not take this verb."""


class BodyTooLarge(ApiError):
    """The request's body is larger than the server takes."""


class UnsupportedMediaType(ApiError):
    """The body is declared to be something else than what the route takes."""


class SlowBody(ApiError):
    """The body did not arrive in time."""


class ClientGone(ApiError):
    """The client hung up before its answer. Nobody reads what this becomes but the log."""


class NotServing(ApiError):
    """The process is up and its engine is not, or not yet."""


class MismatchedOrganization(ApiError):
    """`OpenAI-Organization` names another tenant than the key's."""


class MismatchedProject(ApiError):
    """`OpenAI-Project` names another project than the key's."""


class NoRoomForFlex(ApiError):
    """The engine is busy with other classes. What is served in what they leave is asked to come again."""

    def __init__(self, retry_after: float | None) -> None:
        super().__init__("There is no room for flex requests at the moment. You have not been charged.")
        self.retry_after = retry_after


class GenerationFailed(ApiError):
    """The engine gave a choice up: its numbers were no longer finite."""


class GenerationAborted(ApiError):
    """The engine stopped before the answer was complete, for example because it was shut down."""


@dataclass(frozen=True, slots=True)
class Face:
    """How one class of error is shown."""

    status: int
    type: str
    code: str
    retry: bool
    """`x-should-retry`: what the stock client obeys before anything else."""
    retry_after: int | None = None
    """Seconds."""
    message: str | None = None
    """Shown instead of the error's own words, where those would tell too much or say it differently each
    time.
    """
    param: str | None = None
    """The field at fault, where the class alone tells it."""


INVALID = "invalid_request_error"
UNAVAILABLE = "service_unavailable_error"
BAD_KEY = Face(
    401,
    INVALID,
    "invalid_api_key",
    retry=False,
    message="Incorrect API key provided. Send a valid key as 'Authorization: Bearer <key>'.",
)
INTERNAL = Face(
    500,
    "server_error",
    "internal_error",
    retry=True,
    message="The server had an error processing the request. Quote its x-request-id when you report it.",
)
NOT_FOUND = Face(404, INVALID, "not_found", retry=False)
FORBIDDEN = Face(403, "permission_error", "insufficient_permissions", retry=False)
NO_MODEL = Face(404, INVALID, "model_not_found", retry=False, param="model")
BUSY = Face(503, UNAVAILABLE, "server_is_overloaded", retry=True, retry_after=1)

FACES: dict[type[Exception], Face] = {
    InvalidValue: Face(400, INVALID, "invalid_value", retry=False),
    UnsupportedParameter: Face(400, INVALID, "unsupported_parameter", retry=False),
    ContextLengthExceeded: Face(400, INVALID, "context_length_exceeded", retry=False),
    MissingApiKey: BAD_KEY,
    InsufficientPermissions: FORBIDDEN,
    RouteNotFound: NOT_FOUND,
    MethodNotAllowed: Face(405, INVALID, "method_not_allowed", retry=False),
    SlowBody: Face(408, INVALID, "request_timeout", retry=True),
    BodyTooLarge: Face(413, INVALID, "file_too_large", retry=False),
    UnsupportedMediaType: Face(415, INVALID, "unsupported_media_type", retry=False),
    ClientGone: Face(499, INVALID, "client_closed_request", retry=False),
    MismatchedOrganization: Face(401, INVALID, "mismatched_organization", retry=False),
    MismatchedProject: Face(401, INVALID, "mismatched_project", retry=False),
    NoRoomForFlex: Face(429, "rate_limit_error", "resource_unavailable", retry=True, retry_after=1),
    GenerationFailed: Face(500, "server_error", "generation_failed", retry=False),
    GenerationAborted: BUSY,
    NotServing: BUSY,
    # Of these four a request sees the first alone: the others end a job, which says so itself.
    SamplesInvalid: Face(400, INVALID, "invalid_value", retry=False),
    SourceInvalid: Face(422, INVALID, "adapter_invalid", retry=False),
    ServingRefused: Face(422, INVALID, "adapter_invalid", retry=False),
    ServingUnavailable: BUSY,
    EngineGone: Face(
        503,
        UNAVAILABLE,
        "engine_unavailable",
        retry=True,
        retry_after=2,
        message="The engine that serves this model is not available. Try again in a moment.",
    ),
    ReaderStalled: Face(
        408,
        INVALID,
        "request_timeout",
        retry=False,
        message="The answer was not read for so long that it was given up.",
    ),
    # Shown by its code: see REJECTIONS.
    RequestRejected: INTERNAL,
    DatabaseUnavailable: Face(
        503,
        UNAVAILABLE,
        "server_is_overloaded",
        retry=True,
        retry_after=2,
        message="The server cannot look this up at the moment. Try again.",
    ),
    InvalidApiKey: BAD_KEY,
    TenantNotFound: NOT_FOUND,
    PlanNotFound: NOT_FOUND,
    LimitNotFound: NOT_FOUND,
    RateLimited: Face(429, "rate_limit_error", "rate_limit_exceeded", retry=True, retry_after=1),
    BalanceExhausted: Face(429, "rate_limit_error", "insufficient_quota", retry=False),
    QuotaExhausted: Face(429, "rate_limit_error", "insufficient_quota", retry=False),
    # The quotas' own: what they cannot ask they judge by themselves, or say that it is unavailable.
    LinkDown: INTERNAL,
    ReplyError: INTERNAL,
    QuotaUnavailable: Face(503, UNAVAILABLE, "server_is_overloaded", retry=True, retry_after=1),
    AccountSuspended: Face(429, "rate_limit_error", "insufficient_quota", retry=False),
    KeyNotFound: NOT_FOUND,
    ProjectNotFound: NOT_FOUND,
    UserNotFound: NOT_FOUND,
    ServiceAccountNotFound: NOT_FOUND,
    InviteNotFound: NOT_FOUND,
    InviteInvalid: NOT_FOUND,
    InviteNotTheirs: FORBIDDEN,
    WrongPassword: Face(403, "permission_error", "wrong_password", retry=False, param="password"),
    WrongCode: Face(403, "permission_error", "wrong_code", retry=False, param="code"),
    NoSecondFactor: NOT_FOUND,
    SecondFactorKept: Face(409, "conflict_error", "second_factor_kept", retry=False),
    SecondFactorMissing: Face(409, "conflict_error", "second_factor_missing", retry=False),
    ResetInvalid: NOT_FOUND,
    IdentityNotFound: NOT_FOUND,
    IdentityTaken: Face(409, "conflict_error", "identity_taken", retry=False),
    LastWayIn: Face(409, "conflict_error", "last_way_in", retry=False),
    AuditEntryNotFound: Face(404, INVALID, "not_found", retry=False, param="after"),
    AddressNotAllowed: FORBIDDEN,
    NotHeld: FORBIDDEN,
    OwnersOnly: FORBIDDEN,
    KeyNotActive: Face(409, "conflict_error", "key_not_active", retry=False),
    ProjectArchived: Face(409, "conflict_error", "project_archived", retry=False),
    DefaultProjectKept: Face(409, "conflict_error", "default_project", retry=False),
    InviteAccepted: Face(409, "conflict_error", "invite_accepted", retry=False),
    LastOwner: Face(409, "conflict_error", "last_owner", retry=False),
    NameTaken: Face(409, "conflict_error", "name_taken", retry=False, param="name"),
    ModelNotFound: NO_MODEL,
    InvalidModelName: NO_MODEL,
    InvalidReportQuery: Face(400, INVALID, "invalid_value", retry=False),
    GenerationNotFound: NOT_FOUND,
    InvalidMonth: Face(400, INVALID, "invalid_value", retry=False, param="month"),
    IncidentNotFound: NOT_FOUND,
    BooksBusy: Face(409, "conflict_error", "books_busy", retry=False),
    IncidentEnded: Face(409, "conflict_error", "incident_ended", retry=False),
    InvalidBillingMonth: Face(400, INVALID, "invalid_value", retry=False, param="month"),
    MonthSettled: Face(404, INVALID, "not_found", retry=False, param="month"),
    InvoiceNotFound: NOT_FOUND,
    CreditNotAllowed: Face(400, INVALID, "invalid_value", retry=False),
    PaymentsNotConfigured: Face(409, "conflict_error", "payments_not_configured", retry=False),
    ProviderUnavailable: Face(
        503,
        UNAVAILABLE,
        "server_is_overloaded",
        retry=True,
        retry_after=5,
        message="The payment provider does not answer at the moment. Try again.",
    ),
    ProviderRefused: Face(
        500,
        "server_error",
        "payment_provider_error",
        retry=False,
        message="The payment provider refused this. Please contact us.",
    ),
    BadSignature: Face(400, INVALID, "invalid_signature", retry=False),
    # The operator's: it never crosses HTTP.
    ManualEntryNotFound: INTERNAL,
    # The worker's, and the operator's: they never cross HTTP.
    MalformedEvent: INTERNAL,
    PriceTaken: INTERNAL,
    NothingToReverse: INTERNAL,
    StillRunning: INTERNAL,
    AlreadyReversed: INTERNAL,
    NotificationError: INTERNAL,
    WebhookEndpointNotFound: NOT_FOUND,
    DeliveryNotFound: NOT_FOUND,
    SpendAlertNotFound: NOT_FOUND,
    TooManyEndpoints: Face(429, "rate_limit_error", "insufficient_quota", retry=False),
    TooManyAlerts: Face(429, "rate_limit_error", "insufficient_quota", retry=False),
    EndpointUnreachable: Face(422, INVALID, "endpoint_unreachable", retry=False, param="url"),
    MailNotSent: INTERNAL,
    ModelNotReady: Face(409, "conflict_error", "not_ready", retry=False, param="model"),
    AdapterNotFound: NOT_FOUND,
    VersionNotFound: NOT_FOUND,
    VersionNotReady: Face(409, "conflict_error", "not_ready", retry=False, param="version"),
    NothingToRollBackTo: Face(409, "conflict_error", "not_ready", retry=False, param="previous_version"),
    JobNotFound: NOT_FOUND,
    ReportNotFound: NOT_FOUND,
    JobFinished: Face(409, "conflict_error", "job_finished", retry=False),
    JobUnfinished: Face(409, "conflict_error", "job_unfinished", retry=False),
    # The workers': they become a job's error, or its interruption.
    JobFailed: INTERNAL,
    LeaseLost: INTERNAL,
    Interrupted: INTERNAL,
    VersionGone: INTERNAL,
    InvalidAdapter: Face(400, INVALID, "invalid_value", retry=False),
    AdapterLimitReached: Face(429, "rate_limit_error", "insufficient_quota", retry=False),
    # Its `field` is the param: a tensor's key, a field of the config, a file's name.
    InspectionRefused: Face(422, INVALID, "adapter_invalid", retry=False),
    SandboxUnavailable: Face(
        503,
        UNAVAILABLE,
        "server_is_overloaded",
        retry=True,
        retry_after=2,
        message="Adapters cannot be inspected at the moment. Try again.",
    ),
    InvalidFile: Face(400, INVALID, "invalid_value", retry=False),
    FileNotFound: NOT_FOUND,
    UploadNotFound: NOT_FOUND,
    UploadNotPending: Face(409, "conflict_error", "upload_not_pending", retry=False),
    FileTooLarge: Face(413, INVALID, "file_too_large", retry=False),
    # What receives bytes says it to the services of files, which name the field.
    TooManyBytes: Face(413, INVALID, "file_too_large", retry=False),
    UnsupportedFile: Face(415, INVALID, "unsupported_media_type", retry=False),
    TooManyUploads: Face(429, "rate_limit_error", "insufficient_quota", retry=False),
    StorageLimitReached: Face(429, "rate_limit_error", "insufficient_quota", retry=False),
    StorageUnavailable: Face(
        503,
        UNAVAILABLE,
        "server_is_overloaded",
        retry=True,
        retry_after=2,
        message="The server cannot reach its stored files at the moment. Try again.",
    ),
    # A row's object is not there, or not what it was: ours to repair.
    ObjectNotFound: INTERNAL,
    DigestMismatch: INTERNAL,
}
"""Every domain error class, and how it is shown. A subclass not named here is shown as its nearest parent
that is.
"""

REJECTIONS: dict[RejectCode, Face] = {
    "context_length_exceeded": Face(400, INVALID, "context_length_exceeded", retry=False),
    "invalid": Face(400, INVALID, "invalid_value", retry=False),
    "overloaded": BUSY,
    "draining": BUSY,
    "adapter_loading": Face(503, UNAVAILABLE, "adapter_loading", retry=True, retry_after=1),
    "adapter_unavailable": Face(
        503,
        UNAVAILABLE,
        "adapter_unavailable",
        retry=True,
        retry_after=5,
        message="This model's adapter cannot be loaded at the moment.",
        param="model",
    ),
    # A request id is drawn anew for every request: the engine having seen one is a fault of ours.
    "duplicate": INTERNAL,
}
"""The engine rejects with a code of its own: one class, many faces."""


def face_of(error: BaseException) -> Face:
    """The face of `error`: by the engine's code, else by the nearest class of the table, else an internal
    error.
    """
    if isinstance(error, RequestRejected):
        return REJECTIONS.get(error.code, INTERNAL)
    for parent in type(error).__mro__:
        if parent in FACES:
            return FACES[parent]
    return INTERNAL


def _param_of(error: BaseException) -> str | None:
    if isinstance(error, ApiError):
        return error.param
    return (
        error.field
        if isinstance(error, InvalidReportQuery | InspectionRefused | InvalidAdapter | FileError | NotHeld)
        else None
    )


def envelope(error: BaseException) -> dict[str, dict[str, str | None]]:
    """The body that shows `error`; its own message only where the table does not replace it."""
    face = face_of(error)
    return {
        "error": {
            "message": face.message or str(error),
            "type": face.type,
            "param": _param_of(error) or face.param,
            "code": face.code,
        }
    }


def headers_of(error: BaseException) -> dict[str, str]:
    """Headers beside the envelope."""
    face = face_of(error)
    headers = {"content-type": "application/json", "x-should-retry": "true" if face.retry else "false"}
    carried: float | None = getattr(error, "retry_after", None)
    if carried is not None and face.retry:
        # What the error itself knows is exact; whole seconds are for those who read no milliseconds.
        headers["retry-after"] = str(max(1, math.ceil(carried)))
        headers["retry-after-ms"] = str(max(1, math.ceil(carried * 1000)))
    elif face.retry_after is not None:
        headers["retry-after"] = str(face.retry_after)
    if isinstance(error, LimitReached):
        headers |= rate_headers(error.requests, error.tokens, error.local)
    if face.status == 401:
        headers["www-authenticate"] = "Bearer"
    return headers


def body_of(error: BaseException) -> bytes:
    """The envelope as bytes."""
    return msgspec.json.encode(envelope(error))
