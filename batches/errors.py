"""Defines the errors of batches. They carry data, not HTTP status codes."""

from __future__ import annotations


class BatchError(Exception):
    """Base of the errors of batches."""


class BatchNotFound(BatchError):
    """The batch does not exist or belongs to another tenant."""

    def __init__(self, batch_id: str) -> None:
        super().__init__(f"there is no batch {batch_id[:80]!r}")
        self.batch_id = batch_id


class BatchFinished(BatchError):
    """The batch has ended: it cannot be cancelled."""

    def __init__(self, batch_id: str, status: str) -> None:
        super().__init__(f"the batch {batch_id} has ended: {status}")
        self.batch_id = batch_id
        self.status = status


class InvalidBatch(BatchError):
    """A field of a new batch is invalid."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class TooManyBatches(BatchError):
    """The tenant has as many unfinished batches as it may have."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} unfinished batches are the most: wait until one has ended.")
        self.limit = limit


class BatchLeaseLost(BatchError):
    """Another process holds the batch now: this one's writes have no effect."""

    def __init__(self, batch_id: str, fence: int) -> None:
        super().__init__(f"the lease {fence} of batch {batch_id} is lost")
        self.batch_id = batch_id
        self.fence = fence
