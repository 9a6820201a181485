"""Defines the errors of object storage. They carry data, not HTTP status codes; keys are for the log."""

from __future__ import annotations

from adapters.errors import AdapterError


class StorageError(AdapterError):
    """Base of the storage errors."""


class StorageUnavailable(StorageError):
    """The store cannot be reached, is full, or took too long: a retry may succeed."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the object store is unavailable: {reason}")
        self.reason = reason


class ObjectNotFound(StorageError):
    def __init__(self, key: str) -> None:
        super().__init__(f"there is no object {key!r}")
        self.key = key


class DigestMismatch(StorageError):
    """The bytes differ from those that were announced or stored, and must not be used."""

    def __init__(self, key: str, expected: str, found: str) -> None:
        super().__init__(f"{key!r} has the SHA-256 {found or 'of nothing'}, not {expected}")
        self.key = key
        self.expected = expected
        self.found = found
