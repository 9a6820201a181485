"""Maps error classes to HTTP responses.

Each domain's classes are in a module of this package; the API's own, and the table over all, in `api.errors`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """The HTTP response to one class of errors."""

    status: int
    type: str
    code: str
    retry: bool
    """`x-should-retry`, which OpenAI's client obeys before anything else."""
    retry_after: int | None = None
    """Seconds."""
    message: str | None = None
    """Replaces the error's own message if that would reveal too much or vary."""
    param: str | None = None
    """The field at fault, if it is always the same."""


INVALID = "invalid_request_error"
UNAVAILABLE = "service_unavailable_error"
BAD_KEY = ErrorResponse(
    401,
    INVALID,
    "invalid_api_key",
    retry=False,
    message="Incorrect API key provided. Send a valid key as 'Authorization: Bearer <key>'.",
)
INTERNAL = ErrorResponse(
    500,
    "server_error",
    "internal_error",
    retry=True,
    message="The server had an error processing the request. Quote its x-request-id when you report it.",
)
NOT_FOUND = ErrorResponse(404, INVALID, "not_found", retry=False)
FORBIDDEN = ErrorResponse(403, "permission_error", "insufficient_permissions", retry=False)
NO_MODEL = ErrorResponse(404, INVALID, "model_not_found", retry=False, param="model")
BUSY = ErrorResponse(503, UNAVAILABLE, "server_is_overloaded", retry=True, retry_after=1)
ENGINE_AWAY = ErrorResponse(
    503,
    UNAVAILABLE,
    "engine_unavailable",
    retry=True,
    retry_after=2,
    message="The engine that serves this model is not available. Try again in a moment.",
)
