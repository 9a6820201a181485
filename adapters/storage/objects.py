"""Defines the object store's interface: objects by key, stored completely or not at all, with verified
digests.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from adapters.storage.errors import DigestMismatch, StorageUnavailable
from adapters.storage.receiving import fresh_path, on_disk, receive

_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_MAX_KEY = 700
"""S3 allows 1 024 bytes, and the bucket's prefix counts too."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    key: str
    size: int
    sha256: str
    """Hex. Empty where unknown: in listings, and for objects that other software stored."""
    modified_at: datetime


class ObjectStore(Protocol):
    """Objects by key, such as `tenants/ten_1/files/file_2`; no key may be a folder of another key.

    An object appears completely or not at all, and replaces its predecessor atomically. Reading or writing a
    whole object verifies its SHA-256 and raises DigestMismatch. Every method raises StorageUnavailable, and
    ValueError for a key that `checked_key` rejects.
    """

    @property
    def scratch(self) -> Path:
        """Returns a local directory for incoming files: `put_file` takes them from here without copying."""
        ...

    async def put(
        self, key: str, data: AsyncIterator[bytes] | bytes, *, sha256: str | None = None
    ) -> StoredObject:
        """Stores `data`. With `sha256`, data with another digest is rejected."""
        ...

    async def put_file(self, key: str, path: Path, *, sha256: str) -> StoredObject:
        """Stores the file at `path`, which has that digest. The file is removed, also when this fails."""
        ...

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Yields the object's bytes, or `length` of them from `start`; fewer at its end. Raises
        ObjectNotFound.

        The last bytes of a whole object are only yielded when the digest is right.
        """
        ...

    async def head(self, key: str) -> StoredObject | None: ...

    async def copy(self, source: str, target: str) -> StoredObject:
        """Copies an object with its digest within the store. Raises ObjectNotFound."""
        ...

    async def concatenate(self, sources: Sequence[str], target: str) -> StoredObject:
        """Stores the concatenated objects as another one. Raises ObjectNotFound."""
        ...

    async def delete(self, key: str) -> None:
        """Deletes an object, if there is one."""
        ...

    def list(self, prefix: str) -> AsyncIterator[StoredObject]:
        """Yields objects below `prefix`, unordered and without digests. `prefix` consists of whole segments,
        with or without a trailing slash; empty for all objects.
        """
        ...

    async def fetch(self, key: str, path: Path, *, sha256: str | None = None) -> None:
        """Writes the object to a file, which appears completely or not at all. Raises ObjectNotFound."""
        ...

    async def sweep(self, before: datetime) -> int:
        """Removes files that interrupted transfers left on this machine before then; returns how many."""
        ...


def checked_key(key: str) -> str:
    """Returns `key` if it is valid: segments of letters, digits, `.`, `_` and `-`, none starting with a dot.

    Raises:
        ValueError: it is not. That is a bug: names given by clients never become part of a key.
    """
    if len(key) > _MAX_KEY or not all(_SEGMENT.fullmatch(segment) for segment in key.split("/")):
        raise ValueError(f"not an object's key: {key[:200]!r}")
    return key


async def put_stream(
    store: ObjectStore, key: str, data: AsyncIterator[bytes] | bytes, sha256: str | None
) -> StoredObject:
    """Implements a store's `put` with its `put_file`."""
    checked_key(key)
    try:
        received = await receive(data, fresh_path(store.scratch))
    except OSError as error:
        raise StorageUnavailable(f"{key}: {error.strerror or error}") from error
    if sha256 is not None and received.sha256 != sha256:
        await on_disk(received.path.unlink)
        raise DigestMismatch(key, sha256, received.sha256)
    return await store.put_file(key, received.path, sha256=received.sha256)


async def joined(store: ObjectStore, keys: Sequence[str]) -> AsyncIterator[bytes]:
    """Yields the bytes of several objects, one after the other."""
    for key in keys:
        async for piece in store.get(key):
            yield piece
