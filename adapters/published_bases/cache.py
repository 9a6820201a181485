"""Keeps published bases in a folder of this host: fetches them by digest, and removes unused ones for room.

A base arrives in `.DIGEST.partial` and appears as `DIGEST` by one rename, when every file has its size and
SHA-256. A fetch that was interrupted, kill -9 included, goes on at the byte it had reached. While a process
uses a base it holds a shared lock on `DIGEST.lock`; one process at a time fetches or removes (`.lock`).
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import structlog

from adapters.published_bases.errors import BaseNotPublished, DamagedBase, NoRoomForBase
from adapters.published_bases.manifest import BaseFile, BaseManifest, decode, file_key, manifest_key
from adapters.storage import DigestMismatch, ObjectNotFound, ObjectStore
from adapters.storage.local import sync_folder
from adapters.storage.locks import locked
from adapters.storage.receiving import on_disk
from adapters.storage.resuming import fetch_rest

log = structlog.get_logger(__name__)

_PROGRESS_S = 10.0
"""Seconds between two lines in the log."""


class FetchedBase:
    """A complete base on this host: a context in which it is not removed, unless the process ends first."""

    def __init__(self, path: Path, lock: BinaryIO) -> None:
        self.path = path
        self._lock = lock

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self._lock.close()


class BaseCache:
    """The bases of one host in `root`, shared by its processes."""

    def __init__(self, root: Path, store: ObjectStore, max_bytes: int | None = None) -> None:
        """`max_bytes`: of all bases together; None: as many as the disk has free."""
        self._root = root
        self._store = store
        self._max_bytes = max_bytes

    async def fetch(self, digest: str) -> FetchedBase:
        """Returns the base, from this host if it is complete here, else from the store.

        Raises:
            BaseNotPublished: the store does not have it.
            DamagedBase: one of its files is not what its manifest says.
            NoRoomForBase: the disk or the cache's limit is too small.
            StorageUnavailable: the store is; what arrived is kept.
        """
        await on_disk(lambda: self._root.mkdir(parents=True, exist_ok=True))
        # A thread of its own: it may wait as long as another process fetches.
        with await asyncio.to_thread(locked, self._root / ".lock", fcntl.LOCK_EX):
            in_use = await asyncio.to_thread(locked, self._root / f"{digest}.lock", fcntl.LOCK_SH)
            try:
                path = self._root / digest
                if not path.is_dir():
                    await self._complete(digest, path)
                await on_disk(os.utime, path)  # the least recently used base is removed first
            except BaseException:
                in_use.close()
                raise
            return FetchedBase(path, in_use)

    async def _complete(self, digest: str, path: Path) -> None:
        manifest = await self._manifest(digest)
        partial = self._root / f".{digest}.partial"
        await on_disk(lambda: partial.mkdir(exist_ok=True))
        await on_disk(self._make_room, digest, manifest.size)
        log.info("base is fetched", digest=digest, bytes=manifest.size, present=_size(partial))
        for file in manifest.files:
            await self._fetch_file(file, partial / file.name)
        await on_disk(sync_folder, partial)
        await on_disk(os.rename, partial, path)
        await on_disk(sync_folder, self._root)
        log.info("base is complete", digest=digest)

    async def _manifest(self, digest: str) -> BaseManifest:
        try:
            encoded = b"".join([piece async for piece in self._store.get(manifest_key(digest))])
        except ObjectNotFound:
            raise BaseNotPublished(digest) from None
        except DigestMismatch as error:
            raise DamagedBase("the manifest", error.expected, error.found) from None
        return decode(encoded, digest)

    async def _fetch_file(self, file: BaseFile, path: Path) -> None:
        """Appends what is missing, then verifies all of it."""
        said = time.monotonic()

        def note(present: int) -> None:
            nonlocal said
            if time.monotonic() - said >= _PROGRESS_S:
                said = time.monotonic()
                log.info("base is fetched", file=file.name, present=present, bytes=file.size)

        key = file_key(file.sha256)
        with path.open("a+b") as opened:
            try:
                await fetch_rest(
                    self._store, key, opened, size=file.size, sha256=file.sha256, on_progress=note
                )
            except ObjectNotFound:
                raise DamagedBase(file.name, file.sha256, "of nothing") from None
            except DigestMismatch as error:
                raise DamagedBase(file.name, file.sha256, error.found) from None

    def _make_room(self, digest: str, size: int) -> None:
        """Removes unused bases, least recently used first, until `size` bytes fit. Raises NoRoomForBase."""
        mine = self._root / f".{digest}.partial"
        needed = size - _size(mine)
        others = [path for path in self._root.iterdir() if path.is_dir() and path != mine]
        for other in sorted(others, key=lambda path: path.stat().st_mtime):
            if self._room(mine) >= needed:
                return
            self._remove_unused(other)
        if (room := self._room(mine)) < needed:
            raise NoRoomForBase(self._root, needed, room)

    def _room(self, mine: Path) -> int:
        free = shutil.disk_usage(self._root).free
        if self._max_bytes is None:
            return free
        used = sum(_size(path) for path in self._root.iterdir() if path.is_dir())
        return min(free, self._max_bytes - used)

    def _remove_unused(self, path: Path) -> None:
        lock = self._root / f"{path.name.removeprefix('.').removesuffix('.partial')}.lock"
        with suppress(BlockingIOError), locked(lock, fcntl.LOCK_EX | fcntl.LOCK_NB):
            # Renamed first: a folder that is removed in part must not look complete.
            leaving = path if path.name.endswith(".partial") else path.with_name(f".{path.name}.partial")
            if leaving != path:
                shutil.rmtree(leaving, ignore_errors=True)
                path.rename(leaving)
            shutil.rmtree(leaving)
            log.info("unused base is removed", digest=path.name)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
