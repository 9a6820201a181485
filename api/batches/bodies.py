"""Defines the JSON request body and the response object of batches, in OpenAI's format."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

import msgspec
from msgspec import Meta

from adapters.files.description import MAX_LIFETIME, MIN_LIFETIME
from api.batches.checking import BatchErrorObject
from api.batches.endpoints import ENDPOINTS
from api.body_fields import Body, Id
from api.errors import InvalidValue
from api.json_bodies import decode, unix
from api.responses.objects import ResponseOutputDetails
from batches.models import Batch, BatchStatus
from batches.service import MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE, NewBatch

MetadataKey = Annotated[str, Meta(min_length=1, max_length=MAX_METADATA_KEY)]
MetadataValue = Annotated[str, Meta(max_length=MAX_METADATA_VALUE)]


class OutputExpiresAfter(Body, frozen=True, kw_only=True):
    """When the output files are deleted."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Meta(ge=MIN_LIFETIME, le=MAX_LIFETIME)]


class CreateBatchRequest(Body, frozen=True, kw_only=True):
    """A request to run the lines of a file."""

    input_file_id: Id
    """A file of JSON lines, uploaded with the purpose `batch`."""
    endpoint: Annotated[str, Meta(extra_json_schema={"enum": [*ENDPOINTS]})]
    """The endpoint of all requests in the file."""
    completion_window: Literal["24h"]
    metadata: Annotated[dict[MetadataKey, MetadataValue], Meta(max_length=MAX_METADATA)] | None = None
    output_expires_after: OutputExpiresAfter | None = None


class BatchErrorList(TypedDict):
    """What is wrong with a batch."""

    object: Literal["list"]
    data: list[BatchErrorObject]


class BatchRequestCounts(TypedDict):
    """The lines of a batch by what became of them."""

    total: int
    completed: int
    failed: int


class BatchInputDetails(TypedDict):
    """A part of the input tokens."""

    cached_tokens: int


class BatchUsage(TypedDict):
    """The tokens of a batch's answers."""

    input_tokens: int
    input_tokens_details: BatchInputDetails
    output_tokens: int
    output_tokens_details: ResponseOutputDetails
    total_tokens: int


class BatchObject(TypedDict):
    """A file of requests that run in the background."""

    id: str
    object: Literal["batch"]
    endpoint: str
    model: str | None
    """The model of all lines; null where they name several, or are not checked yet."""
    errors: BatchErrorList | None
    """Why the batch failed, or was stopped."""
    input_file_id: str
    completion_window: Literal["24h"]
    status: BatchStatus
    output_file_id: str | None
    """The answers, once the batch has ended; null when nothing succeeded."""
    error_file_id: str | None
    """The requests that failed or did not run, once the batch has ended."""
    created_at: int
    """Unix seconds."""
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: BatchRequestCounts
    usage: BatchUsage
    metadata: dict[str, str] | None


BODIES = (CreateBatchRequest,)
_create = msgspec.json.Decoder(CreateBatchRequest)


def decode_create_batch(body: bytes) -> NewBatch:
    """Raises InvalidValue, UnsupportedParameter."""
    asked = decode(_create, body)
    if asked.endpoint not in ENDPOINTS:
        known = ", ".join(f"'{url}'" for url in ENDPOINTS)
        raise InvalidValue(f"'endpoint' must be one of {known}, not '{asked.endpoint[:80]}'.", "endpoint")
    expires_after = asked.output_expires_after
    return NewBatch(
        asked.input_file_id,
        asked.endpoint,
        asked.metadata,
        None if expires_after is None else expires_after.seconds,
    )


def batch_object(batch: Batch) -> BatchObject:
    errors: Any = batch.errors
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model,
        "errors": None if errors is None else {"object": "list", "data": errors},
        "input_file_id": batch.input_file_id,
        "completion_window": "24h",
        "status": BatchStatus(batch.status),
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
        "created_at": unix(batch.created_at),
        "in_progress_at": unix(batch.in_progress_at),
        "expires_at": unix(batch.expires_at),
        "finalizing_at": unix(batch.finalizing_at),
        "completed_at": unix(batch.completed_at),
        "failed_at": unix(batch.failed_at),
        "expired_at": unix(batch.expired_at),
        "cancelling_at": unix(batch.cancelling_at),
        "cancelled_at": unix(batch.cancelled_at),
        "request_counts": {"total": batch.total, "completed": batch.completed, "failed": batch.failed},
        "usage": {
            "input_tokens": batch.prompt_tokens,
            "input_tokens_details": {"cached_tokens": batch.cached_tokens},
            "output_tokens": batch.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": batch.reasoning_tokens},
            "total_tokens": batch.prompt_tokens + batch.completion_tokens,
        },
        "metadata": batch.details,
    }
