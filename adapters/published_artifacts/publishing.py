"""Stores packed adapters in the object store under the digest of their content.

The key has no tenant in it: engines know adapters by digest alone, equal weights are stored once, and a key
of the store that can read `packed/` can read no tenant's uploads. An engine asks for a digest only when the
API, which has checked the tenant's right to it, has named it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

from adapters.storage import ObjectStore
from adapters.storage.receiving import CHUNK, on_disk
from engine.lora.artifact import SUFFIX
from engine.lora.draft_adapters import NOTE_SUFFIX, note_path
from engine.lora.signatures import SIGNATURE_SUFFIX, signature_path


def published_key(digest: str) -> str:
    """Returns the key of a packed adapter's object."""
    return f"packed/{digest[:2]}/{digest}{SUFFIX}"


def published_signature_key(digest: str) -> str:
    """Returns the key of the object with a packed adapter's signature."""
    return published_key(digest).removesuffix(SUFFIX) + SIGNATURE_SUFFIX


def published_note_key(digest: str) -> str:
    """Returns the key of the object that says which draft adapter guesses for a packed adapter."""
    return published_key(digest).removesuffix(SUFFIX) + NOTE_SUFFIX


async def publish_signature(store: ObjectStore, digest: str, content: bytes) -> None:
    """Publishes a packed adapter's signature, in place of an earlier one. Raises StorageUnavailable."""
    await store.put(published_signature_key(digest), content)


async def publish_copy(store: ObjectStore, key: str, digest: str) -> None:
    """Publishes the packed adapter in another object. Raises ObjectNotFound, StorageUnavailable.

    It is copied even if it is there already: a copy is as young as the last job that needs it, which
    `withdraw` goes by.
    """
    await store.copy(key, published_key(digest))


async def publish_file(store: ObjectStore, path: Path, digest: str) -> None:
    """Publishes the packed adapter in a file. Raises DigestMismatch, OSError, StorageUnavailable."""
    await store.put(published_key(digest), read_pieces(path), sha256=digest)


async def publish_note(store: ObjectStore, folder: Path, digest: str) -> None:
    """Publishes the note of a packed adapter's draft adapter, in place of an earlier one, if there is one in
    the folder. Raises OSError, StorageUnavailable.
    """
    await _publish_small(store, note_path(folder, digest), published_note_key(digest))


async def publish_folder(store: ObjectStore, folder: Path) -> tuple[int, int]:
    """Publishes the packed adapters in the engines' folder that are not published yet, with their signatures
    and the notes of their draft adapters. Returns how many those were, and how many there are. Raises
    DigestMismatch for a damaged file, OSError, StorageUnavailable.
    """
    paths = await asyncio.to_thread(lambda: sorted(folder.glob(f"??/[!.]*{SUFFIX}")))
    num_sent = 0
    for path in paths:
        digest = path.name.removesuffix(SUFFIX)
        stored = await store.head(published_key(digest))
        if stored is None or stored.sha256 != digest:
            await publish_file(store, path, digest)
            num_sent += 1
        await _publish_small(store, signature_path(folder, digest), published_signature_key(digest))
        await publish_note(store, folder, digest)
    return num_sent, len(paths)


async def _publish_small(store: ObjectStore, path: Path, key: str) -> None:
    """Stores what a file has, if there is one, unless that is stored already."""
    try:
        content = await asyncio.to_thread(path.read_bytes)
    except FileNotFoundError:
        return
    stored = await store.head(key)
    if stored is None or stored.sha256 != hashlib.sha256(content).hexdigest():
        await store.put(key, content)


async def withdraw(store: ObjectStore, digest: str, before: datetime) -> None:
    """Removes a packed adapter that no version needs, unless it was published since `before`. Raises
    StorageUnavailable.
    """
    key = published_key(digest)
    stored = await store.head(key)
    if stored is not None and stored.modified_at < before:
        await store.delete(key)
        await store.delete(published_signature_key(digest))
        await store.delete(published_note_key(digest))


async def read_pieces(path: Path) -> AsyncIterator[bytes]:
    """Yields a file's bytes."""
    with await on_disk(lambda: path.open("rb")) as opened:
        while piece := await on_disk(opened.read, CHUNK):
            yield piece
