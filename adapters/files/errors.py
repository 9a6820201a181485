"""What can be wrong with files and uploads. Errors carry data, not HTTP; `field` is the request's."""

from __future__ import annotations

from adapters.errors import AdapterError


class FileError(AdapterError):
    """Any of the below; `field` is None where no field of the request is at fault."""

    field: str | None = None


class FileNotFound(FileError):
    """Absent, expired, deleted, or another tenant's: the same error, with only what was asked for."""

    def __init__(self, file_id: str, field: str | None = None) -> None:
        super().__init__(f"there is no file {file_id[:80]!r}")
        self.file_id = file_id
        self.field = field


class UploadNotFound(FileError):
    """Absent, or another tenant's."""

    def __init__(self, upload_id: str, field: str | None = None) -> None:
        super().__init__(f"there is no upload {upload_id[:80]!r}")
        self.upload_id = upload_id
        self.field = field


class InvalidFile(FileError, ValueError):
    """A field of the request is not what it must be."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class UnsupportedFile(FileError):
    """A kind of file that is never opened: it may run code, hide others, or is not of the purpose's."""

    def __init__(self, field: str, filename: str, wanted: str) -> None:
        super().__init__(f"{field}: {filename[:80]!r} is not accepted, only {wanted}")
        self.field = field
        self.filename = filename
        self.wanted = wanted


class FileTooLarge(FileError):
    def __init__(self, field: str, limit: int) -> None:
        super().__init__(f"{field}: larger than the {limit} bytes that are allowed")
        self.field = field
        self.limit = limit


class UploadNotPending(FileError):
    """It takes no more parts: `status` says why."""

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
    """The tenant's files and what its open uploads were announced with fill what it may store."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"no room for it: {limit} bytes may be stored, delete files first")
        self.limit = limit
