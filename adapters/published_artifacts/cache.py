"""Keeps fetched packed adapters in a bounded folder of this host, which its engines share.

An artifact arrives in a hidden file, whose name says how large it will be, and appears by one rename when its
SHA-256 is right: `ab/.DIGEST.rsa.SIZE.partial`, then `ab/DIGEST.rsa`. A fetch that was interrupted, kill -9
included, goes on at the byte it had reached. Locks end with their process: a shared one on an artifact keeps
it while it is held, and one process at a time fetches into a folder (`ab/.lock`) or makes room (`.lock`).
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import structlog

from adapters.published_artifacts.errors import (
    ArtifactNotPublished,
    DamagedArtifact,
    DiskFailed,
    NoRoomForArtifact,
    StoreUnavailable,
)
from adapters.published_artifacts.publishing import (
    published_key,
    published_note_key,
    published_signature_key,
)
from adapters.storage import DigestMismatch, ObjectNotFound, ObjectStore, StorageUnavailable
from adapters.storage.local import sync_folder
from adapters.storage.locks import locked
from adapters.storage.receiving import on_disk
from adapters.storage.resuming import fetch_rest
from engine.lora.artifact import SUFFIX, artifact_path
from engine.lora.draft_adapters import MAX_NOTE, NOTE_SUFFIX, keep_note
from engine.lora.signatures import (
    MAX_SIGNED,
    SIGNATURE_SUFFIX,
    SignedReport,
    signature_path,
    write_signature,
)
from engine.signing.bundle import key_of
from engine.signing.errors import SignatureError
from engine.signing.keys import TrustedKeys

log = structlog.get_logger(__name__)

_LOCK = ".lock"
_PARTIAL = ".partial"
_RETRY_S = 0.02
"""Between two attempts to lock what another fetch has locked."""


@dataclass(frozen=True, slots=True)
class HeldArtifact:
    """An artifact on this host, which is not removed until this is closed or its process ends."""

    opened: BinaryIO
    fetched_bytes: int
    """0: it was here already."""

    def close(self) -> None:
        self.opened.close()


@dataclass(frozen=True, slots=True)
class _Entry:
    path: Path
    size: int
    """What it will have when it is complete."""
    used_at: float


class ArtifactCache:
    """The fetched artifacts of one host in `root`."""

    def __init__(
        self,
        root: Path,
        store: ObjectStore,
        max_bytes: int,
        min_free_bytes: int = 0,
        keys: TrustedKeys | None = None,
        *,
        with_notes: bool = False,
    ) -> None:
        """`max_bytes`: of all artifacts together; `min_free_bytes`: of the disk, that stay free. `keys`:
        whose signatures the engine accepts; without any, no signatures are fetched. `with_notes`: artifacts
        come with the notes of their draft adapters.
        """
        self.root = root
        self._keys = keys
        self._with_notes = with_notes
        self._store = store
        self._max_bytes = max_bytes
        self._min_free_bytes = min_free_bytes

    async def hold(self, digest: str) -> HeldArtifact:
        """Returns the artifact, from this host if it is here, else from the store. Its signature is beside
        it, if it has one, and the note of its draft adapter.

        Raises ArtifactNotFetched.
        """
        held = await self._hold(digest)
        if self._with_notes and held.fetched_bytes:
            await self._bring_note(digest)
        if self._keys:
            await self._bring_signature(digest, self._keys)
        return held

    async def _hold(self, digest: str) -> HeldArtifact:
        path = artifact_path(self.root, digest)
        try:
            held = await on_disk(_hold, path)
            if held is not None:
                return HeldArtifact(held, 0)
            await on_disk(lambda: path.parent.mkdir(parents=True, exist_ok=True))
            with await _locked_when_free(path.parent / _LOCK):
                held = await on_disk(_hold, path)  # another engine may have fetched it meanwhile
                if held is not None:
                    return HeldArtifact(held, 0)
                return await self._fetch(digest, path)
        except ObjectNotFound:
            raise ArtifactNotPublished(digest) from None
        except DigestMismatch as error:
            raise DamagedArtifact(digest, error.found) from None
        except StorageUnavailable as error:
            log.warning("packed adapter cannot be fetched", digest=digest, reason=error.reason)
            raise StoreUnavailable(digest) from error
        except OSError as error:
            raise DiskFailed(digest, error.strerror or type(error).__name__) from error

    async def drop_damaged(self, digest: str) -> None:
        """Removes the artifact if it is not what its digest says any more, and no engine holds it."""
        await on_disk(_drop_damaged, artifact_path(self.root, digest), digest)
        await on_disk(signature_path(self.root, digest).unlink, True)  # the next fetch brings it again

    async def _bring_signature(self, digest: str, keys: TrustedKeys) -> None:
        """Fetches the artifact's signature unless one of an accepted key is here. Without the store, what is
        here is used: the engine decides what it loads.
        """
        if not await on_disk(_is_signed, signature_path(self.root, digest), keys):
            key = published_signature_key(digest)
            await self._bring_beside(digest, "signature", key, MAX_SIGNED, write_signature)

    async def _bring_note(self, digest: str) -> None:
        """Fetches the note of the artifact's draft adapter. Without it the base's guesses."""
        key = published_note_key(digest)
        await self._bring_beside(digest, "note of the draft adapter", key, MAX_NOTE, keep_note)

    async def _bring_beside(
        self, digest: str, what: str, key: str, max_bytes: int, keep: Callable[[Path, str, bytes], None]
    ) -> None:
        """Fetches what may be stored beside the artifact. A failure is logged, and the artifact used
        without it.
        """
        try:
            content = b"".join([piece async for piece in self._store.get(key, length=max_bytes)])
            await on_disk(keep, self.root, digest, content)
        except ObjectNotFound:
            pass
        except (StorageUnavailable, DigestMismatch, OSError) as error:
            log.warning(
                "file beside a packed adapter cannot be fetched", file=what, digest=digest, reason=str(error)
            )

    async def _fetch(self, digest: str, path: Path) -> HeldArtifact:
        key = published_key(digest)
        stored = await self._store.head(key)
        if stored is None:
            raise ObjectNotFound(key)
        partial = path.with_name(f".{path.name}.{stored.size}{_PARTIAL}")
        with await _locked_when_free(self.root / _LOCK):
            await on_disk(self._make_room, digest, partial, stored.size)
        with await on_disk(lambda: partial.open("a+b")) as opened:
            await fetch_rest(self._store, key, opened, size=stored.size, sha256=digest)
        await on_disk(os.rename, partial, path)
        await on_disk(sync_folder, path.parent)
        held = await on_disk(_hold, path)
        if held is None:  # removed at once, for another one: there is no room for both
            raise NoRoomForArtifact(digest, stored.size, 0)
        return HeldArtifact(held, stored.size)

    def _make_room(self, digest: str, partial: Path, size: int) -> None:
        """Removes artifacts that are not held, the least recently used first, until `size` bytes fit; then
        makes `partial`, which counts as its full size. Raises NoRoomForArtifact.
        """
        others = sorted(
            (entry for entry in self._entries() if entry.path != partial), key=lambda entry: entry.used_at
        )
        used = sum(entry.size for entry in others)
        for entry in others:
            if self._room(used, partial) >= size:
                break
            if _remove(entry.path):
                for beside in (SIGNATURE_SUFFIX, NOTE_SUFFIX):
                    entry.path.with_suffix(beside).unlink(missing_ok=True)
                used -= entry.size
                log.info("unused packed adapter is removed", artifact=entry.path.name)
        if (room := self._room(used, partial)) < size:
            raise NoRoomForArtifact(digest, size, room)
        partial.touch()

    def _room(self, used: int, partial: Path) -> int:
        """Returns the bytes that the artifact may have, of which some may be on disk already."""
        present = partial.stat().st_size if partial.exists() else 0
        free = shutil.disk_usage(self.root).free + present - self._min_free_bytes
        return max(0, min(free, self._max_bytes - used))

    def _entries(self) -> Iterator[_Entry]:
        for path in self.root.glob(f"??/*{SUFFIX}*"):
            with suppress(FileNotFoundError):  # removed by another process
                seen = path.stat()
                is_partial = path.name.endswith(_PARTIAL)
                size = int(path.name.split(".")[-2]) if is_partial else seen.st_size
                yield _Entry(path, size, seen.st_mtime)


async def _locked_when_free(path: Path) -> BinaryIO:
    """Returns a lock file once no other fetch has it."""
    while True:
        try:
            return await on_disk(locked, path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            await asyncio.sleep(_RETRY_S)


def _hold(path: Path) -> BinaryIO | None:
    """Returns the artifact, locked against removal and marked as used now; None if it is not here."""
    try:
        opened = path.open("rb")
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(opened, fcntl.LOCK_SH)
        if os.fstat(opened.fileno()).st_nlink:
            now = time.time_ns()  # finer than the kernel's own
            os.utime(opened.fileno(), ns=(now, now))
            return opened
    except BaseException:
        opened.close()
        raise
    opened.close()  # removed between the two
    return None


def _remove(path: Path) -> bool:
    """Removes a file that no engine holds or fetches. Returns whether it is gone."""
    target = path.parent / _LOCK if path.name.endswith(_PARTIAL) else path
    try:
        with target.open("rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM):  # another account's: it stays, and counts
            return False
        raise
    return True


def _is_signed(path: Path, keys: TrustedKeys) -> bool:
    """Returns whether the file is there and says that it was made with one of the keys."""
    try:
        signed = SignedReport.decode(path.read_bytes())
    except (FileNotFoundError, SignatureError):
        return False
    key_id = key_of(signed.bundle.encode())
    return key_id is not None and keys.find(key_id) is not None


def _drop_damaged(path: Path, digest: str) -> None:
    with suppress(FileNotFoundError, BlockingIOError), path.open("rb") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if hashlib.file_digest(opened, "sha256").hexdigest() != digest:
            path.unlink()
            log.warning("damaged packed adapter is removed", digest=digest)
