"""What an object store is to those who use one: objects by key, whole or not at all, digests verified.

Owns the interface, the form of keys, and what every store does alike. Knows no store.
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
"""S3 takes 1 024 bytes; the bucket's prefix comes on top."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    key: str
    size: int
    sha256: str
    """Hex. Empty where it is not known: in listings, and of objects that something else put there."""
    modified_at: datetime


class ObjectStore(Protocol):
    """Objects by key, such as `tenants/ten_1/files/file_2`; no key may lie below another one.

    An object appears whole or not at all, and replaces its predecessor in one moment. Whatever reads or
    writes the whole of one verifies its SHA-256 and raises DigestMismatch. Every method raises
    StorageUnavailable, and ValueError for a key that is not of the form of `checked_key`.
    """

    @property
    def scratch(self) -> Path:
        """A directory of this machine for files on their way in: `put_file` takes them from here at no
        cost."""
        ...

    async def put(
        self, key: str, data: AsyncIterator[bytes] | bytes, *, sha256: str | None = None
    ) -> StoredObject:
        """Store `data`. With `sha256`, bytes of any other digest are refused."""
        ...

    async def put_file(self, key: str, path: Path, *, sha256: str) -> StoredObject:
        """Store the file at `path`, which has that digest. It is gone afterwards, also when this fails."""
        ...

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """The object's bytes, or `length` of them from `start`; fewer where it ends. Raises ObjectNotFound.

        The last of a whole object's bytes are only handed out when the digest is right.
        """
        ...

    async def head(self, key: str) -> StoredObject | None: ...

    async def copy(self, source: str, target: str) -> StoredObject:
        """Within the store; the digest goes with the bytes. Raises ObjectNotFound."""
        ...

    async def concatenate(self, sources: Sequence[str], target: str) -> StoredObject:
        """Store the objects' bytes one after the other as another. Raises ObjectNotFound."""
        ...

    async def delete(self, key: str) -> None:
        """Also where there is none."""
        ...

    def list(self, prefix: str) -> AsyncIterator[StoredObject]:
        """Objects below `prefix`, in no order and without digests: of whole segments, with a slash at its end
        or without; empty for all."""
        ...

    async def fetch(self, key: str, path: Path, *, sha256: str | None = None) -> None:
        """Write the object to a file, which appears whole or not at all. Raises ObjectNotFound."""
        ...

    async def sweep(self, before: datetime) -> int:
        """Remove what transfers that were cut off before then left behind on this machine; how much."""
        ...


def checked_key(key: str) -> str:
    """`key`, if it is one: segments of letters, digits, `.`, `_` and `-`, none beginning with a dot.

    Raises:
        ValueError: it is not. That is a bug: nothing a client names becomes part of a key.
    """
    if len(key) > _MAX_KEY or not all(_SEGMENT.fullmatch(segment) for segment in key.split("/")):
        raise ValueError(f"not an object's key: {key[:200]!r}")
    return key


async def put_stream(
    store: ObjectStore, key: str, data: AsyncIterator[bytes] | bytes, sha256: str | None
) -> StoredObject:
    """A store's `put`, by its `put_file`."""
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
    """The objects' bytes, one after the other."""
    for key in keys:
        async for piece in store.get(key):
            yield piece
