"""What an error looks like from outside: the one envelope, and the one table from class to status, type and
code.

Owns the API's own errors and the table over everybody's. Refuses to know how the errors come about: domain
errors carry data, no HTTP; a test proves that the table names every one of them.

    {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}
"""

from __future__ import annotations

import math

import msgspec

from adapters.errors import InvalidAdapter
from adapters.files.errors import FileError
from adapters.inspection import InspectionRefused
from api.error_mapping import (
    BAD_KEY,
    BUSY,
    ENGINE_AWAY,
    FORBIDDEN,
    INTERNAL,
    INVALID,
    NOT_FOUND,
    UNAVAILABLE,
    ErrorResponse,
    adapters,
    billing,
    tenants,
)
from api.ratelimit import rate_headers
from billing.errors import InvalidReportQuery
from db.errors import DatabaseUnavailable, UnknownCursor, UnstorableText
from engine.client import EngineGone, ReaderStalled, RequestRejected
from engine.protocol import RejectCode
from tenants.errors import LimitReached, NotHeld


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


class UnsupportedEncoding(UnsupportedMediaType):
    """The body is compressed."""


class MalformedRequest(ApiError):
    """What was sent is not HTTP, or can be read in more than one way."""


class HeadersTooLarge(ApiError):
    """The request line and headers are larger than the server takes."""


class SlowHeaders(ApiError):
    """The request line and headers did not arrive in time."""


class SlowBody(ApiError):
    """The body did not arrive in time."""


class ClientGone(ApiError):
    """The client hung up before its answer. Nobody reads what this becomes but the log."""


class IdempotencyInProgress(ApiError):
    """A request with the same idempotency key has not ended yet."""


class IdempotencyKeyReused(ApiError):
    """The idempotency key was used for a request with another body or path."""


class IdempotencyNotReplayable(ApiError):
    """The request with this idempotency key was carried out, and its response was too long to be kept."""


class NotServing(ApiError):
    """This process does not serve what was asked for."""


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


FACES: dict[type[Exception], ErrorResponse] = {
    InvalidValue: ErrorResponse(400, INVALID, "invalid_value", retry=False),
    UnsupportedParameter: ErrorResponse(400, INVALID, "unsupported_parameter", retry=False),
    ContextLengthExceeded: ErrorResponse(400, INVALID, "context_length_exceeded", retry=False),
    MissingApiKey: BAD_KEY,
    InsufficientPermissions: FORBIDDEN,
    RouteNotFound: NOT_FOUND,
    MethodNotAllowed: ErrorResponse(405, INVALID, "method_not_allowed", retry=False),
    MalformedRequest: ErrorResponse(400, INVALID, "invalid_value", retry=False),
    HeadersTooLarge: ErrorResponse(431, INVALID, "headers_too_large", retry=False),
    SlowHeaders: ErrorResponse(408, INVALID, "request_timeout", retry=True),
    SlowBody: ErrorResponse(408, INVALID, "request_timeout", retry=True),
    BodyTooLarge: ErrorResponse(413, INVALID, "file_too_large", retry=False),
    UnsupportedMediaType: ErrorResponse(415, INVALID, "unsupported_media_type", retry=False),
    UnsupportedEncoding: ErrorResponse(415, INVALID, "unsupported_media_type", retry=False),
    ClientGone: ErrorResponse(499, INVALID, "client_closed_request", retry=False),
    MismatchedOrganization: ErrorResponse(401, INVALID, "mismatched_organization", retry=False),
    MismatchedProject: ErrorResponse(401, INVALID, "mismatched_project", retry=False),
    IdempotencyInProgress: ErrorResponse(
        409, "conflict_error", "idempotency_in_progress", retry=True, retry_after=1
    ),
    IdempotencyNotReplayable: ErrorResponse(409, "conflict_error", "idempotency_not_replayable", retry=False),
    IdempotencyKeyReused: ErrorResponse(422, INVALID, "idempotency_key_reused", retry=False),
    NoRoomForFlex: ErrorResponse(429, "rate_limit_error", "resource_unavailable", retry=True, retry_after=1),
    GenerationFailed: ErrorResponse(500, "server_error", "generation_failed", retry=False),
    GenerationAborted: BUSY,
    NotServing: BUSY,
    EngineGone: ENGINE_AWAY,
    ReaderStalled: ErrorResponse(
        408,
        INVALID,
        "request_timeout",
        retry=False,
        message="The answer was not read for so long that it was given up.",
    ),
    # Shown by its code: see REJECTIONS.
    RequestRejected: INTERNAL,
    DatabaseUnavailable: ErrorResponse(
        503,
        UNAVAILABLE,
        "server_is_overloaded",
        retry=True,
        retry_after=2,
        message="The server cannot look this up at the moment. Try again.",
    ),
    UnstorableText: ErrorResponse(400, INVALID, "invalid_value", retry=False),
    UnknownCursor: ErrorResponse(400, INVALID, "invalid_value", retry=False),
    **adapters.FACES,
    **billing.FACES,
    **tenants.FACES,
}
"""Every domain error class, and how it is shown. A subclass not named here is shown as its nearest parent
that is.
"""

REJECTIONS: dict[RejectCode, ErrorResponse] = {
    "context_length_exceeded": ErrorResponse(400, INVALID, "context_length_exceeded", retry=False),
    "invalid": ErrorResponse(400, INVALID, "invalid_value", retry=False),
    "overloaded": BUSY,
    "draining": ENGINE_AWAY,
    "adapter_loading": ErrorResponse(503, UNAVAILABLE, "adapter_loading", retry=True, retry_after=1),
    "adapter_unavailable": ErrorResponse(
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


def face_of(error: BaseException) -> ErrorResponse:
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
        if isinstance(
            error,
            InvalidReportQuery | InspectionRefused | InvalidAdapter | FileError | NotHeld | UnknownCursor,
        )
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
    if isinstance(error, UnsupportedEncoding):
        headers["accept-encoding"] = "identity"
    if face.status == 401:
        headers["www-authenticate"] = "Bearer"
    return headers


def body_of(error: BaseException) -> bytes:
    """The envelope as bytes."""
    return msgspec.json.encode(envelope(error))
