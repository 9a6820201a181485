"""Stores objects as files below one directory, which all processes of a service share.

A file consists of the object's bytes and a 48-byte seal (mark, size, SHA-256), so that bytes and digest
become visible by one rename, and a file that was truncated or changed on disk is detected.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import struct
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from adapters.storage.errors import DigestMismatch, ObjectNotFound, StorageUnavailable
from adapters.storage.objects import StoredObject, checked_key, joined, put_stream
from adapters.storage.receiving import CHUNK, fresh_path, on_disk, replace_with_stream, verified

_SEAL = struct.Struct(">8sQ32s")
_MARK = b"rootobj1"
_ATTEMPTS = 100
"""Attempts to put a file into a folder that other processes keep removing."""


@dataclass(frozen=True, slots=True)
class _Seal:
    size: int
    sha256: str


class LocalStore:
    """An ObjectStore in `root`, which is created if needed.

    Incoming files lie in `scratch`, on the same file system, and are renamed into place. The default is a
    hidden folder of `root`: no key starts with a dot.
    """

    def __init__(self, root: Path, scratch: Path | None = None) -> None:
        self._objects = root
        self.scratch = scratch or root / ".incoming"

    async def put(
        self, key: str, data: AsyncIterator[bytes] | bytes, *, sha256: str | None = None
    ) -> StoredObject:
        return await put_stream(self, key, data, sha256)

    async def put_file(self, key: str, path: Path, *, sha256: str) -> StoredObject:
        target = self._path(key)
        with _disk_errors(key):
            size, modified_at = await asyncio.shield(on_disk(self._adopt, path, target, sha256))
        return StoredObject(key, size, sha256, modified_at)

    async def get(self, key: str, *, start: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        path = self._path(key)
        if start < 0 or (length is not None and length < 0):
            raise ValueError(f"no range of an object: {length} bytes from {start}")
        with _disk_errors(key):
            file = await on_disk(_open, path, key)
            try:
                seal = await on_disk(_read_seal, file, key)
                end = seal.size if length is None else min(seal.size, start + length)
                pieces = _read(file, start, end)
                if start == 0 and end == seal.size:
                    pieces = verified(pieces, key, seal.sha256)
                async for piece in pieces:
                    yield piece
            finally:
                file.close()

    async def head(self, key: str) -> StoredObject | None:
        path = self._path(key)
        try:
            with _disk_errors(key):
                return await on_disk(_look_at, path, key)
        except ObjectNotFound:
            return None

    async def copy(self, source: str, target: str) -> StoredObject:
        """Links a second name to the same file: objects are replaced, never changed."""
        with _disk_errors(source):
            await asyncio.shield(on_disk(self._link, self._path(source), self._path(target), source))
        copied = await self.head(target)
        if copied is None:
            raise ObjectNotFound(target)
        return copied

    async def concatenate(self, sources: Sequence[str], target: str) -> StoredObject:
        return await self.put(target, joined(self, sources))

    async def delete(self, key: str) -> None:
        path = self._path(key)
        with _disk_errors(key):
            await on_disk(self._delete, path)

    async def list(self, prefix: str) -> AsyncIterator[StoredObject]:
        folder = self._path(prefix.removesuffix("/")) if prefix else self._objects
        walk = self._walk(folder)
        with _disk_errors(prefix):
            while batch := await on_disk(_next_batch, walk):
                for listed in batch:
                    yield listed

    async def fetch(self, key: str, path: Path, *, sha256: str | None = None) -> None:
        if sha256 is not None:
            found = await self.head(key)
            if found is not None and found.sha256 != sha256:
                raise DigestMismatch(key, sha256, found.sha256)
        with _disk_errors(key):
            await replace_with_stream(self.get(key), path)

    async def sweep(self, before: datetime) -> int:
        with _disk_errors(""):
            return await on_disk(remove_older, self.scratch, before)

    def _path(self, key: str) -> Path:
        return self._objects / checked_key(key)

    def _adopt(self, path: Path, target: Path, sha256: str) -> tuple[int, datetime]:
        """Seals the file and renames it into place; both are on disk when this returns."""
        size = path.stat().st_size
        try:
            if path.parent != self.scratch:
                moved = fresh_path(self.scratch)
                self.scratch.mkdir(parents=True, exist_ok=True)
                try:
                    shutil.move(path, moved)  # copies from another file system
                except OSError:
                    moved.unlink(missing_ok=True)
                    raise
                path = moved
            with open(path, "r+b", buffering=0) as file:
                file.seek(size)
                seal = _SEAL.pack(_MARK, size, bytes.fromhex(sha256))
                if file.write(seal) != len(seal):
                    raise OSError(errno.ENOSPC, "no room for an object's seal")
                os.fsync(file.fileno())
                modified = os.fstat(file.fileno()).st_mtime
            _rename(path, target)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        return size, datetime.fromtimestamp(modified, UTC)

    def _link(self, source: Path, target: Path, key: str) -> None:
        link = fresh_path(self.scratch)
        self.scratch.mkdir(parents=True, exist_ok=True)
        try:
            try:
                os.link(source, link)
            except FileNotFoundError:
                raise ObjectNotFound(key) from None
            except OSError:  # a file system without links, or a file with too many
                shutil.copyfile(source, link)
            # Age counts from the copy; since both names share one file, the original looks new too.
            os.utime(link)
            _rename(link, target)
        finally:
            link.unlink(missing_ok=True)

    def _delete(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        for folder in list(path.relative_to(self._objects).parents)[:-1]:
            # Empty folders are removed too; one that another process fills at this moment stays.
            try:
                (self._objects / folder).rmdir()
            except OSError:
                return

    def _walk(self, folder: Path) -> Iterator[StoredObject]:
        for place, folders, names in os.walk(folder):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in names:
                path = Path(place, name)
                with contextlib.suppress(FileNotFoundError):  # deleted since
                    seen = path.stat()
                    yield StoredObject(
                        path.relative_to(self._objects).as_posix(),
                        max(0, seen.st_size - _SEAL.size),
                        "",
                        datetime.fromtimestamp(seen.st_mtime, UTC),
                    )


def remove_older(folder: Path, before: datetime) -> int:
    """Removes files last written before `before`; returns how many. Blocks."""
    removed = 0
    for path in folder.iterdir() if folder.is_dir() else ():
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < before.timestamp():
                path.unlink()
                removed += 1
    return removed


def _next_batch(walk: Iterator[StoredObject]) -> list[StoredObject]:
    return [listed for _, listed in zip(range(500), walk, strict=False)]


def _rename(path: Path, target: Path) -> None:
    """Moves a file into place, durably: the folders are synced to disk."""
    for attempt in range(_ATTEMPTS):
        made = []
        for folder in target.parents:
            made.append(folder)
            if folder.exists():
                break
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
        except (FileNotFoundError, FileExistsError):
            # A folder on the way was empty, and another process's `delete` removed it.
            if attempt == _ATTEMPTS - 1 or not path.exists():
                raise
        else:
            break
    for folder in made:
        with contextlib.suppress(FileNotFoundError):  # the object was deleted again
            sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Writes a folder's names to disk. Blocks."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


async def _read(file: BinaryIO, start: int, end: int) -> AsyncIterator[bytes]:
    while start < end:
        piece = await on_disk(os.pread, file.fileno(), min(CHUNK, end - start), start)
        if not piece:
            raise OSError(errno.EIO, "the file became shorter")
        start += len(piece)
        yield piece


def _read_seal(file: BinaryIO, key: str) -> _Seal:
    size = os.fstat(file.fileno()).st_size - _SEAL.size
    if size >= 0:
        mark, promised, digest = _SEAL.unpack(os.pread(file.fileno(), _SEAL.size, size))
        if mark == _MARK and promised == size:
            return _Seal(size, digest.hex())
    raise DigestMismatch(key, "of its seal", "")


def _open(path: Path, key: str) -> BinaryIO:
    try:
        return open(path, "rb")
    except (FileNotFoundError, NotADirectoryError):
        raise ObjectNotFound(key) from None


def _look_at(path: Path, key: str) -> StoredObject:
    with _open(path, key) as file:
        seal = _read_seal(file, key)
        modified = os.fstat(file.fileno()).st_mtime
    return StoredObject(key, seal.size, seal.sha256, datetime.fromtimestamp(modified, UTC))


@contextlib.contextmanager
def _disk_errors(key: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageUnavailable(f"{key}: {error.strerror or error}") from error
