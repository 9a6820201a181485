"""Stores packed adapters in the object store under the digest of their content.

The key has no tenant in it: engines know adapters by digest alone, equal weights are stored once, and a key
of the store that can read `packed/` can read no tenant's uploads. An engine asks for a digest only when the
API, which has checked the tenant's right to it, has named it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

from adapters.storage import ObjectStore
from adapters.storage.receiving import CHUNK, on_disk
from engine.lora.artifact import SUFFIX


def published_key(digest: str) -> str:
    """Returns the key of a packed adapter's object."""
    return f"packed/{digest[:2]}/{digest}{SUFFIX}"


async def publish_copy(store: ObjectStore, key: str, digest: str) -> None:
    """Publishes the packed adapter in another object. Raises ObjectNotFound, StorageUnavailable.

    It is copied even if it is there already: a copy is as young as the last job that needs it, which
    `withdraw` goes by.
    """
    await store.copy(key, published_key(digest))


async def publish_file(store: ObjectStore, path: Path, digest: str) -> None:
    """Publishes the packed adapter in a file. Raises DigestMismatch, OSError, StorageUnavailable."""
    await store.put(published_key(digest), read_pieces(path), sha256=digest)


async def publish_folder(store: ObjectStore, folder: Path) -> tuple[int, int]:
    """Publishes the packed adapters in the engines' folder that are not published yet. Returns how many
    those were, and how many there are. Raises DigestMismatch for a damaged file, OSError, StorageUnavailable.
    """
    paths = await asyncio.to_thread(lambda: sorted(folder.glob(f"??/[!.]*{SUFFIX}")))
    num_sent = 0
    for path in paths:
        digest = path.name.removesuffix(SUFFIX)
        stored = await store.head(published_key(digest))
        if stored is None or stored.sha256 != digest:
            await publish_file(store, path, digest)
            num_sent += 1
    return num_sent, len(paths)


async def withdraw(store: ObjectStore, digest: str, before: datetime) -> None:
    """Removes a packed adapter that no version needs, unless it was published since `before`. Raises
    StorageUnavailable.
    """
    key = published_key(digest)
    stored = await store.head(key)
    if stored is not None and stored.modified_at < before:
        await store.delete(key)


async def read_pieces(path: Path) -> AsyncIterator[bytes]:
    """Yields a file's bytes."""
    with await on_disk(lambda: path.open("rb")) as opened:
        while piece := await on_disk(opened.read, CHUNK):
            yield piece
