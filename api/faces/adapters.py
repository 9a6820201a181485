"""Faces of what goes wrong with adapters, their files and their jobs."""

from __future__ import annotations

from adapters.calibration.errors import SamplesInvalid, ServingRefused, ServingUnavailable, SourceInvalid
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
from api.faces import BUSY, INTERNAL, INVALID, NO_MODEL, NOT_FOUND, UNAVAILABLE, Face

FACES: dict[type[Exception], Face] = {
    # Of these four a request sees the first alone: the others end a job, which says so itself.
    SamplesInvalid: Face(400, INVALID, "invalid_value", retry=False),
    SourceInvalid: Face(422, INVALID, "adapter_invalid", retry=False),
    ServingRefused: Face(422, INVALID, "adapter_invalid", retry=False),
    ServingUnavailable: BUSY,
    ModelNotFound: NO_MODEL,
    InvalidModelName: NO_MODEL,
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
