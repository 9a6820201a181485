"""Documents error responses: statuses, codes and example bodies from the one table of errors.

Each operation lists its own errors, by an example of each. Those that follow from what an operation is, such
as 401 of one that needs a key, are added here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from api.errors import (
    BodyTooLarge,
    HeadersTooLarge,
    IdempotencyInProgress,
    IdempotencyKeyReused,
    IdempotencyNotReplayable,
    InsufficientPermissions,
    InvalidValue,
    MissingApiKey,
    SlowBody,
    SlowHeaders,
    UnsupportedMediaType,
    UnsupportedParameter,
    envelope,
    response_for,
)
from api.openapi.routing import reference
from db.errors import DatabaseUnavailable

SCHEMA: dict[str, Any] = {
    "description": "What every failed request is answered with.",
    "type": "object",
    "required": ["error"],
    "additionalProperties": False,
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "additionalProperties": False,
            "properties": {
                "message": {"type": "string", "description": "What went wrong, for people."},
                "type": {"type": "string", "description": "The kind of error, as OpenAI's clients know it."},
                "param": {
                    "type": ["string", "null"],
                    "description": "The parameter or field that caused the error, where one did.",
                },
                "code": {"type": "string", "description": "What went wrong, for programs."},
            },
        }
    },
}
DESCRIPTIONS = {
    400: "A parameter or field is missing, unknown or invalid; `param` names it.",
    401: "The API key is missing or invalid.",
    403: "The API key may not do this.",
    404: "The object does not exist in your organization.",
    408: "The request did not arrive, or the response was not read, in time.",
    409: "The state of an object does not allow the request.",
    413: "The request body is too large.",
    415: "The content type, character set or encoding of the request body is not supported.",
    422: "The request can be read and cannot be carried out.",
    429: "A rate limit, quota or limit of your plan is reached.",
    431: "The request line and headers are too large.",
    500: "The server failed. Quote the response's `x-request-id` when you report it.",
    503: "The service is temporarily unavailable. Retry after the seconds in `retry-after`.",
}
EVERY = (
    SlowHeaders("The request's headers did not arrive within 20 seconds."),
    HeadersTooLarge("The request line and headers are larger than 64 kB; send smaller headers."),
    RuntimeError("any fault of the server"),
)
"""Of every operation."""
KEYED = (
    UnsupportedParameter("Unsupported parameter: 'colour'.", "colour"),
    MissingApiKey("no key"),
    InsufficientPermissions("This API key lacks the scope 'models.read'."),
    DatabaseUnavailable("the database does not answer"),
)
"""Of every operation that needs an API key."""
WITH_BODY = (
    InvalidValue("Missing required parameter: 'name'.", "name"),
    SlowBody("The request's body did not arrive within 30 seconds."),
    BodyTooLarge("The request's body is larger than 4194304 bytes."),
    UnsupportedMediaType("Send 'content-type: application/json', not 'text/plain'."),
)
"""Of every operation that takes a request body."""
IDEMPOTENT = (
    IdempotencyInProgress("A request with this Idempotency-Key is still in progress; retry in a moment."),
    IdempotencyNotReplayable(
        "The request was carried out before, and its response was too long to be kept; use a new "
        "Idempotency-Key to run it again.",
        "Idempotency-Key",
    ),
    IdempotencyKeyReused(
        "This Idempotency-Key was used for another request; use a new key for each request.",
        "Idempotency-Key",
    ),
)
"""Of every operation that takes an Idempotency-Key."""


def error_responses(errors: Iterable[Exception]) -> dict[str, dict[str, Any]]:
    """One response for each status of these errors, in their order, with each error's body as an example."""
    by_status: dict[int, dict[str, Any]] = {}
    for error in errors:
        body = envelope(error)
        examples = by_status.setdefault(response_for(error).status, {})
        examples.setdefault(type(error).__name__, {"summary": body["error"]["code"], "value": body})
    return {
        str(status): {
            "description": DESCRIPTIONS[status],
            "content": {"application/json": {"schema": reference("Error"), "examples": examples}},
        }
        for status, examples in sorted(by_status.items())
    }
