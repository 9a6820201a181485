"""Defines the API's errors, and maps every error class to an HTTP status, type and code.

Domain errors carry data, no HTTP; a test proves that the table has every one of them. All errors share one
envelope:

{"error": {"message": ..., "type": ..., "param": ..., "code": ...}}
"""

from __future__ import annotations

import math
import re

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
    batches,
    billing,
    conversations,
    tenants,
)
from api.ratelimit import rate_headers
from batches.errors import InvalidBatch
from billing.errors import InvalidReportQuery
from conversations.errors import ConversationError
from db.errors import DatabaseUnavailable, UnknownCursor, UnstorableText
from engine.client import EngineGone, ReaderStalled, RequestRejected
from engine.protocol import RejectCode
from tenants.errors import LimitReached, RightsNotHeld
from tokenization.grammars.errors import GrammarsUnavailable


class ApiError(Exception):
    """Base class of this package's errors: a message for the client, and the field of the request at
    fault.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class InvalidValue(ApiError):
    """A field or the body is invalid."""


class InvalidScim(ApiError):
    """A SCIM request is invalid. `scim_type`: RFC 7644's name of the reason."""

    def __init__(self, message: str, scim_type: str) -> None:
        super().__init__(message)
        self.scim_type = scim_type


class UnsupportedParameter(ApiError):
    """A field is unknown, or known but not supported."""


class ContextLengthExceeded(ApiError):
    """Prompt and completion exceed the model's context length."""


class MissingApiKey(ApiError):
    """There is no `Authorization: Bearer` header. The response is the same as for a wrong key."""


class InsufficientPermissions(ApiError):
    """The key is valid but lacks the permission."""


class RouteNotFound(ApiError):
    """There is no route with this path."""


class MethodNotAllowed(ApiError):
    """The path exists but does not allow this method."""


class BodyTooLarge(ApiError):
    """The request's body is too large."""


class UnsupportedMediaType(ApiError):
    """The body's content type is not one that the route accepts."""


class UnsupportedEncoding(UnsupportedMediaType):
    """The body is compressed."""


class MalformedRequest(ApiError):
    """The request is not valid HTTP, or is ambiguous."""


class HeadersTooLarge(ApiError):
    """The request line and headers are too large."""


class SlowHeaders(ApiError):
    """The request line and headers did not arrive in time."""


class SlowBody(ApiError):
    """The body did not arrive in time."""


class ClientGone(ApiError):
    """The client disconnected before its response. Only the log shows this error."""


class IdempotencyInProgress(ApiError):
    """A request with the same idempotency key is still in progress."""


class IdempotencyKeyReused(ApiError):
    """The idempotency key was used for a request with another body or path."""


class IdempotencyNotReplayable(ApiError):
    """The request with this idempotency key was processed, but its response was too long to store."""


class NotServing(ApiError):
    """This process does not offer the requested function."""


class MismatchedOrganization(ApiError):
    """`OpenAI-Organization` is not the key's tenant."""


class MismatchedProject(ApiError):
    """`OpenAI-Project` is not the key's project."""


class GrammarChecksBusy(ApiError):
    """The tenant has too many grammars being checked."""


class IssuerUnavailable(ApiError):
    """The issuer of a token does not say what its keys are."""


class NoRoomForFlex(ApiError):
    """Other service tiers use all of the engine's capacity, so a flex request has to be retried later."""

    def __init__(self, retry_after: float | None) -> None:
        super().__init__("There is no room for flex requests at the moment. You have not been charged.")
        self.retry_after = retry_after


class GenerationFailed(ApiError):
    """The engine ended a choice because its logits were no longer finite."""


class GenerationAborted(ApiError):
    """The engine stopped before the answer was complete, for example because it was shut down."""


ERROR_RESPONSES: dict[type[Exception], ErrorResponse] = {
    InvalidValue: ErrorResponse(400, INVALID, "invalid_value", retry=False),
    InvalidScim: ErrorResponse(400, INVALID, "invalid_value", retry=False),
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
    GrammarChecksBusy: ErrorResponse(
        429, "rate_limit_error", "rate_limit_exceeded", retry=True, retry_after=1
    ),
    GrammarsUnavailable: ErrorResponse(
        503,
        UNAVAILABLE,
        "server_is_overloaded",
        retry=True,
        retry_after=2,
        message="The grammar of this request cannot be checked at the moment. Try again.",
    ),
    IssuerUnavailable: ErrorResponse(
        503, UNAVAILABLE, "issuer_unavailable", retry=True, retry_after=30, param="subject_token"
    ),
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
    # Mapped by its code: see REJECTIONS.
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
    **adapters.ERROR_RESPONSES,
    **batches.ERROR_RESPONSES,
    **billing.ERROR_RESPONSES,
    **conversations.ERROR_RESPONSES,
    **tenants.ERROR_RESPONSES,
}
"""The response to every error class. Subclasses that are not listed use their nearest listed base class."""

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
    # Request ids are unique, so a duplicate is a server error.
    "duplicate": INTERNAL,
}
"""The response to `RequestRejected`, by the engine's code."""

REFUSED_ADAPTER = ErrorResponse(
    503,
    UNAVAILABLE,
    "adapter_unavailable",
    retry=False,
    message="This model's adapter is refused: it is not what was signed. Its version's page says why.",
    param="model",
)
"""The response where the engine found another signature, or other weights, than were signed."""
_NOT_SIGNED = re.compile(r"packed adapter rejected: (signature|digest): ")


def response_for(error: BaseException) -> ErrorResponse:
    """Returns the response to `error`: by the engine's code, else by the nearest class in the table, else an
    internal error.
    """
    if isinstance(error, RequestRejected):
        is_refused = error.code == "adapter_unavailable" and _NOT_SIGNED.search(str(error)) is not None
        return REFUSED_ADAPTER if is_refused else REJECTIONS.get(error.code, INTERNAL)
    for parent in type(error).__mro__:
        if parent in ERROR_RESPONSES:
            return ERROR_RESPONSES[parent]
    return INTERNAL


def _param_of(error: BaseException) -> str | None:
    if isinstance(error, ApiError):
        return error.param
    return (
        error.field
        if isinstance(
            error,
            InvalidReportQuery
            | InvalidBatch
            | InspectionRefused
            | InvalidAdapter
            | FileError
            | RightsNotHeld
            | ConversationError
            | UnknownCursor,
        )
        else None
    )


def envelope(error: BaseException) -> dict[str, dict[str, str | None]]:
    """Returns the body of an error response, with the error's own message unless the table replaces it."""
    response = response_for(error)
    return {
        "error": {
            "message": response.message or str(error),
            "type": response.type,
            "param": _param_of(error) or response.param,
            "code": response.code,
        }
    }


def headers_of(error: BaseException) -> dict[str, str]:
    """Returns the headers of an error response."""
    response = response_for(error)
    headers = {"content-type": "application/json", "x-should-retry": "true" if response.retry else "false"}
    carried: float | None = getattr(error, "retry_after", None)
    if carried is not None and response.retry:
        # Exact from the error; whole seconds for clients that ignore `retry-after-ms`.
        headers["retry-after"] = str(max(1, math.ceil(carried)))
        headers["retry-after-ms"] = str(max(1, math.ceil(carried * 1000)))
    elif response.retry_after is not None:
        headers["retry-after"] = str(response.retry_after)
    if isinstance(error, LimitReached):
        headers |= rate_headers(error.requests, error.tokens, error.local)
    if isinstance(error, UnsupportedEncoding):
        headers["accept-encoding"] = "identity"
    if response.status == 401:
        headers["www-authenticate"] = "Bearer"
    return headers


def body_of(error: BaseException) -> bytes:
    """Returns the envelope as JSON."""
    return msgspec.json.encode(envelope(error))
