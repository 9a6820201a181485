"""Maps errors of batches to HTTP responses."""

from __future__ import annotations

from api.error_mapping import INTERNAL, INVALID, NOT_FOUND, ErrorResponse
from batches.errors import BatchFinished, BatchLeaseLost, BatchNotFound, InvalidBatch, TooManyBatches

ERROR_RESPONSES: dict[type[Exception], ErrorResponse] = {
    BatchNotFound: NOT_FOUND,
    BatchFinished: ErrorResponse(409, "conflict_error", "batch_finished", retry=False),
    InvalidBatch: ErrorResponse(400, INVALID, "invalid_value", retry=False),
    TooManyBatches: ErrorResponse(429, "rate_limit_error", "insufficient_quota", retry=False),
    # Raised where batches are run, which then leave the batch to the process that holds its lease.
    BatchLeaseLost: INTERNAL,
}
