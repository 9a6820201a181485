"""Writes a stream to a local file and computes its digest on the way; verifies streams that are read back.

Disk access runs on threads of its own, never on the event loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any, TypeVar

from adapters.storage.errors import DigestMismatch

T = TypeVar("T")

CHUNK = 1024 * 1024
"""Bytes written, read or digested per call to a thread: large enough that the thread's overhead is
negligible.
"""

_DISK = ThreadPoolExecutor(4, thread_name_prefix="disk")
"""Separate from the event loop's default threads: a slow disk must not delay the encoding of prompts
there.
"""


class TooManyBytes(ValueError):
    """The stream is longer than allowed. The caller knows what the limit applies to."""


@dataclass(frozen=True, slots=True)
class Received:
    """A received file; its holder moves or removes it."""

    path: Path
    size: int
    sha256: str
    md5: str
    """Empty unless requested."""


async def on_disk(work: Callable[..., T], *arguments: Any) -> T:
    """Runs `work` on a disk thread."""
    return await asyncio.get_running_loop().run_in_executor(_DISK, work, *arguments)


def fresh_path(folder: Path) -> Path:
    return folder / f"{token_hex(16)}.partial"


async def receive(
    data: AsyncIterator[bytes] | bytes, path: Path, *, max_bytes: int | None = None, md5: bool = False
) -> Received:
    """Writes `data` to the new file `path`. After any error, the file is removed.

    While one chunk is written the next may arrive; memory stays at two of them.

    Raises:
        TooManyBytes: the stream is longer than `max_bytes`.
        OSError: the disk fails.
    """
    file = await on_disk(_DigestedFile, path, md5)
    writing: asyncio.Future[None] | None = None
    size = 0
    try:
        async for piece in _gathered(data):
            size += len(piece)
            if max_bytes is not None and size > max_bytes:
                raise TooManyBytes(f"more than {max_bytes} bytes")
            if writing is not None:
                await writing
            writing = asyncio.ensure_future(on_disk(file.write, piece))
        if writing is not None:
            await writing
        return await on_disk(file.finish)
    except BaseException:
        if writing is not None:
            writing.cancel()  # if it runs already, `discard` waits for it
        await asyncio.shield(on_disk(file.discard))
        raise


async def _gathered(data: AsyncIterator[bytes] | bytes) -> AsyncIterator[bytes]:
    """Yields the same bytes in chunks of at least CHUNK, except the last."""
    if isinstance(data, bytes):
        yield data
        return
    pieces: list[bytes] = []
    size = 0
    async for piece in data:
        pieces.append(piece)
        size += len(piece)
        if size >= CHUNK:
            yield b"".join(pieces) if len(pieces) > 1 else piece
            pieces, size = [], 0
    if pieces:
        yield b"".join(pieces)


class _DigestedFile:
    """A file being written; its methods block and may be called from different threads."""

    def __init__(self, path: Path, md5: bool) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._sha256 = hashlib.sha256()
        self._md5 = hashlib.md5(usedforsecurity=False) if md5 else None
        self._size = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        # Unbuffered: a write to a full disk fails here, not when the file is closed.
        self._file = open(path, "xb", buffering=0, opener=_private)  # noqa: SIM115

    def write(self, data: bytes) -> None:
        with self._lock:
            if self._file.closed:  # discarded while this waited for a thread
                return
            view = memoryview(data)
            while view:
                view = view[self._file.write(view) :]
            self._sha256.update(data)
            if self._md5 is not None:
                self._md5.update(data)
            self._size += len(data)

    def finish(self) -> Received:
        with self._lock:
            self._file.close()
            md5 = "" if self._md5 is None else self._md5.hexdigest()
            return Received(self._path, self._size, self._sha256.hexdigest(), md5)

    def discard(self) -> None:
        with self._lock:
            self._file.close()
            self._path.unlink(missing_ok=True)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


async def verified(pieces: AsyncIterator[bytes], key: str, sha256: str) -> AsyncIterator[bytes]:
    """Yields the same bytes, of the object `key`; the last ones only when their digest is right. Raises
    DigestMismatch.
    """
    digest = hashlib.sha256()
    last: bytes | None = None
    async for piece in pieces:
        await on_disk(digest.update, piece)
        if last is not None:
            yield last
        last = piece
    if digest.hexdigest() != sha256:
        raise DigestMismatch(key, sha256, digest.hexdigest())
    if last is not None:
        yield last


async def replace_with_stream(pieces: AsyncIterator[bytes], path: Path) -> Received:
    """Writes the stream to a file beside `path` and renames it into place when it is complete."""
    received = await receive(pieces, path.with_name(f".{path.name}.{token_hex(8)}"))
    await on_disk(os.replace, received.path, path)
    return received
