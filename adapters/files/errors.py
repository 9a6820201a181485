"""Defines the errors of files and uploads. They carry data, not HTTP status codes; `field` is the
request's.
"""

from __future__ import annotations

from adapters.errors import AdapterError


class FileError(AdapterError):
    """Base of the file errors; `field` is None if no field of the request is wrong."""

    field: str | None = None


class FileNotFound(FileError):
    """The file does not exist, expired, was deleted, or belongs to another tenant: indistinguishable on
    purpose.
    """

    def __init__(self, file_id: str, field: str | None = None) -> None:
        super().__init__(f"there is no file {file_id[:80]!r}")
        self.file_id = file_id
        self.field = field


class UploadNotFound(FileError):
    """The upload does not exist or belongs to another tenant."""

    def __init__(self, upload_id: str, field: str | None = None) -> None:
        super().__init__(f"there is no upload {upload_id[:80]!r}")
        self.upload_id = upload_id
        self.field = field


class InvalidFile(FileError, ValueError):
    """A field of the request is invalid."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class UnsupportedFile(FileError):
    """A kind of file that is never opened: it may run code, contain other files, or does not fit the
    purpose.
    """

    def __init__(self, field: str, filename: str, wanted: str) -> None:
        super().__init__(f"{field}: {filename[:80]!r} is not accepted, only {wanted}")
        self.field = field
        self.filename = filename
        self.wanted = wanted


class FileTooLarge(FileError):
    def __init__(self, field: str, limit: int) -> None:
        super().__init__(f"{field}: larger than the limit of {limit} bytes")
        self.field = field
        self.limit = limit


class UploadNotPending(FileError):
    """The upload accepts no more parts: `status` says why."""

    def __init__(self, upload_id: str, status: str) -> None:
        super().__init__(f"the upload {upload_id!r} is {status}")
        self.upload_id = upload_id
        self.status = status
        self.field = "upload_id"


class TooManyUploads(FileError):
    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} uploads are pending: complete or cancel one first")
        self.limit = limit


class StorageLimitReached(FileError):
    """The tenant's files and the announced sizes of its open uploads reach its storage limit."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the storage limit of {limit} bytes is reached: delete files first")
        self.limit = limit
