"""Stores a base model's files in the object store, then the manifest that makes them a base.

Files that the store has already are not sent again: a publication that was interrupted goes on at the first
file it lacks, and one that was complete changes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import structlog

from adapters.published_bases.errors import InvalidBase
from adapters.published_bases.manifest import BaseFile, BaseManifest, check, digest_of, file_key, manifest_key
from adapters.storage import DigestMismatch, ObjectStore
from adapters.storage.receiving import CHUNK, on_disk

log = structlog.get_logger(__name__)


async def publish(store: ObjectStore, folder: Path, *, verify: bool = False) -> str:
    """Returns the digest of the base in `folder`, once all of it is stored. Subfolders and hidden files are
    left out.

    Args:
        verify: read what the store has already, and replace what is damaged.

    Raises:
        InvalidBase: the folder is not a base in Hugging Face layout, or changes while it is read.
        StorageUnavailable: the store is.
    """
    manifest = await on_disk(read_folder, folder)
    for file in manifest.files:
        if await _is_stored(store, file, verify=verify):
            continue
        try:
            await store.put(file_key(file.sha256), _read(folder / file.name), sha256=file.sha256)
        except DigestMismatch:
            raise InvalidBase(f"{file.name} changed while it was published: publish again") from None
        log.info("file of base published", file=file.name, bytes=file.size)
    encoded = manifest.encode()
    digest = digest_of(encoded)
    await store.put(manifest_key(digest), encoded, sha256=digest)
    return digest


def read_folder(folder: Path) -> BaseManifest:
    """Returns the manifest of the files in `folder`. Raises InvalidBase."""
    try:
        paths = sorted(path for path in folder.iterdir() if path.is_file() and path.name[0] != ".")
        manifest = BaseManifest(tuple(BaseFile(path.name, *_measure(path)) for path in paths))
    except OSError as error:
        raise InvalidBase(f"{folder} cannot be read: {error.strerror}: name the base's directory") from None
    check(manifest)
    return manifest


async def _is_stored(store: ObjectStore, file: BaseFile, *, verify: bool) -> bool:
    found = await store.head(file_key(file.sha256))
    if found is None or (found.size, found.sha256) != (file.size, file.sha256):
        return False
    if verify:
        try:
            async for _ in store.get(found.key):
                pass
        except DigestMismatch:
            return False
    return True


def _measure(path: Path) -> tuple[int, str]:
    with path.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
        return opened.tell(), digest


async def _read(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as opened:
        while piece := await on_disk(opened.read, CHUNK):
            yield piece
