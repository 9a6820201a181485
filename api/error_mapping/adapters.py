"""Maps errors of adapters, their files and their jobs to HTTP responses."""

from __future__ import annotations

from adapters.calibration.errors import SamplesInvalid, ServingRefused, ServingUnavailable, SourceInvalid
from adapters.errors import (
    AdapterLimitReached,
    AdapterNotFound,
    InvalidAdapter,
    ModelNotFound,
    ModelNotReady,
    NoPreviousVersion,
    VersionNotFound,
    VersionNotReady,
)
from adapters.files.errors import (
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
    VersionDeleted,
)
from adapters.jobs.lease import Interrupted
from adapters.model_names import InvalidModelName
from adapters.sharing.errors import AlreadyShared, OrganizationNotFound, ShareAnswered, ShareNotFound
from adapters.signing.errors import SignatureNotFound
from adapters.storage.errors import DigestMismatch, ObjectNotFound, StorageUnavailable
from adapters.storage.receiving import TooManyBytes
from api.error_mapping import BUSY, INTERNAL, INVALID, NO_MODEL, NOT_FOUND, UNAVAILABLE, ErrorResponse

ERROR_RESPONSES: dict[type[Exception], ErrorResponse] = {
    # Of these four, clients see only the first; the others become a job's error.
    SamplesInvalid: ErrorResponse(400, INVALID, "invalid_value", retry=False),
    SourceInvalid: ErrorResponse(422, INVALID, "adapter_invalid", retry=False),
    ServingRefused: ErrorResponse(422, INVALID, "adapter_invalid", retry=False),
    ServingUnavailable: BUSY,
    ModelNotFound: NO_MODEL,
    InvalidModelName: NO_MODEL,
    ModelNotReady: ErrorResponse(409, "conflict_error", "not_ready", retry=False, param="model"),
    AdapterNotFound: NOT_FOUND,
    VersionNotFound: NOT_FOUND,
    VersionNotReady: ErrorResponse(409, "conflict_error", "not_ready", retry=False, param="version"),
    NoPreviousVersion: ErrorResponse(
        409, "conflict_error", "not_ready", retry=False, param="previous_version"
    ),
    SignatureNotFound: NOT_FOUND,
    ShareNotFound: NOT_FOUND,
    OrganizationNotFound: ErrorResponse(404, INVALID, "not_found", retry=False, param="organization_id"),
    AlreadyShared: ErrorResponse(
        409, "conflict_error", "already_shared", retry=False, param="organization_id"
    ),
    ShareAnswered: ErrorResponse(409, "conflict_error", "share_answered", retry=False),
    JobNotFound: NOT_FOUND,
    ReportNotFound: NOT_FOUND,
    JobFinished: ErrorResponse(409, "conflict_error", "job_finished", retry=False),
    JobUnfinished: ErrorResponse(409, "conflict_error", "job_unfinished", retry=False),
    # Raised in workers: they become a job's error or its interruption.
    JobFailed: INTERNAL,
    LeaseLost: INTERNAL,
    Interrupted: INTERNAL,
    VersionDeleted: INTERNAL,
    InvalidAdapter: ErrorResponse(400, INVALID, "invalid_value", retry=False),
    AdapterLimitReached: ErrorResponse(429, "rate_limit_error", "insufficient_quota", retry=False),
    # Its `field` is the param: a tensor's key, a field of the config, a file's name.
    InspectionRefused: ErrorResponse(422, INVALID, "adapter_invalid", retry=False),
    SandboxUnavailable: ErrorResponse(
        503,
        UNAVAILABLE,
        "server_is_overloaded",
        retry=True,
        retry_after=2,
        message="Adapters cannot be inspected at the moment. Try again.",
    ),
    InvalidFile: ErrorResponse(400, INVALID, "invalid_value", retry=False),
    FileNotFound: NOT_FOUND,
    UploadNotFound: NOT_FOUND,
    UploadNotPending: ErrorResponse(409, "conflict_error", "upload_not_pending", retry=False),
    FileTooLarge: ErrorResponse(413, INVALID, "file_too_large", retry=False),
    # Services of files catch it and name the field.
    TooManyBytes: ErrorResponse(413, INVALID, "file_too_large", retry=False),
    UnsupportedFile: ErrorResponse(415, INVALID, "unsupported_media_type", retry=False),
    TooManyUploads: ErrorResponse(429, "rate_limit_error", "insufficient_quota", retry=False),
    StorageLimitReached: ErrorResponse(429, "rate_limit_error", "insufficient_quota", retry=False),
    StorageUnavailable: ErrorResponse(
        503,
        UNAVAILABLE,
        "server_is_overloaded",
        retry=True,
        retry_after=2,
        message="The server cannot reach its stored files at the moment. Try again.",
    ),
    # A stored object is missing or damaged, which is a server error.
    ObjectNotFound: INTERNAL,
    DigestMismatch: INTERNAL,
}
