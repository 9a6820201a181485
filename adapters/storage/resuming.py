"""Fetches an object into a file that may hold the beginning of it already, and verifies the whole."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import BinaryIO

import structlog

from adapters.storage.errors import DigestMismatch
from adapters.storage.objects import ObjectStore
from adapters.storage.receiving import CHUNK, on_disk

log = structlog.get_logger(__name__)


async def fetch_rest(
    store: ObjectStore,
    key: str,
    opened: BinaryIO,
    *,
    size: int,
    sha256: str,
    on_progress: Callable[[int], None] = lambda present: None,
) -> None:
    """Appends to the file what it lacks of the object, verifies all of it, and writes it to disk.

    A file that is wrong is emptied. If an earlier attempt had left a part of it, all is fetched once more.

    Args:
        opened: in mode "a+b".
        on_progress: receives the bytes that are there, after each piece.

    Raises:
        ObjectNotFound: the store does not have it.
        DigestMismatch: what the store has is something else.
        StorageUnavailable: the store is; what arrived stays in the file.
        OSError: the disk fails.
    """
    present = await on_disk(_length, opened)
    while True:
        found = await _append(store, key, opened, present, size, on_progress)
        found = found if found is not None else await on_disk(_sha256, opened)
        if found == sha256:
            await on_disk(os.fsync, opened.fileno())
            return
        await on_disk(opened.truncate, 0)
        if not present:
            raise DigestMismatch(key, sha256, found)
        log.warning("file is fetched again: what an earlier attempt left is wrong", key=key, kept=present)
        present = 0


async def _append(
    store: ObjectStore,
    key: str,
    opened: BinaryIO,
    present: int,
    size: int,
    on_progress: Callable[[int], None],
) -> str | None:
    """Appends the rest. Returns the object's digest if the store found it to be wrong."""
    if present >= size:
        return None
    try:
        async for piece in store.get(key, start=present):
            await on_disk(opened.write, piece)
            present += len(piece)
            if present > size:  # more than was announced; it must not fill the disk
                break
            on_progress(present)
    except DigestMismatch as error:
        return error.found
    finally:
        await on_disk(opened.flush)
    return None


def _length(opened: BinaryIO) -> int:
    return os.fstat(opened.fileno()).st_size


def _sha256(opened: BinaryIO) -> str:
    digest = hashlib.sha256()
    opened.seek(0)
    while piece := opened.read(CHUNK):
        digest.update(piece)
    return digest.hexdigest()
