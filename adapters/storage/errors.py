"""What can go wrong with stored objects. Errors carry data, not HTTP; keys and addresses are for the log."""

from __future__ import annotations

from adapters.errors import AdapterError


class StorageError(AdapterError):
    """Any of the below."""


class StorageUnavailable(StorageError):
    """The store cannot be reached, is full, or took too long: the same call may succeed later."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the object store is unavailable: {reason}")
        self.reason = reason


class ObjectNotFound(StorageError):
    def __init__(self, key: str) -> None:
        super().__init__(f"there is no object {key!r}")
        self.key = key


class DigestMismatch(StorageError):
    """The bytes are not those that were promised or stored. Nothing of them is to be used."""

    def __init__(self, key: str, expected: str, found: str) -> None:
        super().__init__(f"{key!r} has the SHA-256 {found or 'of nothing'}, not {expected}")
        self.key = key
        self.expected = expected
        self.found = found
