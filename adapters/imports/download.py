"""Downloads one file into a partial file that may hold its beginning already, and verifies the whole.

A connection that breaks is followed by a request for the rest (`Range`). After the end of this process, by
whatever cause, the next attempt on this machine goes on at the byte that was reached.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import BinaryIO

import structlog

from adapters.imports.client import ImportClient, SourceRequest
from adapters.imports.remote import Pinned, Remote, RemoteFile
from adapters.jobs.errors import JobFailed
from adapters.storage.receiving import CHUNK, on_disk
from tenants.outbound.errors import AddressRefused, EndpointUnreachable
from tenants.outbound.pinned import StreamedAnswer

log = structlog.get_logger(__name__)

PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds before each retry in a row that brought no byte. After the last one the import fails."""
WRITTEN_AT_ONCE = 128 * 1024
"""Bytes gathered before they are written: a killed process loses at most these."""
GRACE = 60.0
"""Seconds beside those that the lowest rate allows."""
_CONTENT_RANGE = re.compile(r"bytes ([0-9]+)-[0-9]+/([0-9]+)")

Progress = Callable[[int], None]
"""Receives the bytes of the file that are here."""


@dataclass(frozen=True, slots=True)
class Digests:
    sha256: str
    git_sha1: str
    """As git names a blob."""


class FileDownload:
    """One file of an import.

    Args:
        opened: the partial file, in mode "a+b".
        pauses: see PAUSES.
    """

    def __init__(
        self,
        client: ImportClient,
        remote: Remote,
        file: RemoteFile,
        pinned: Pinned,
        opened: BinaryIO,
        on_progress: Progress,
        pauses: tuple[float, ...] = PAUSES,
    ) -> None:
        self._client = client
        self._remote = remote
        self._file = file
        self._pinned = pinned
        self._opened = opened
        self._on_progress = on_progress
        self._pauses = pauses
        self._present = 0

    async def run(self) -> str:
        """Downloads what is missing and returns the file's hex SHA-256. Raises JobFailed, OSError."""
        seconds = GRACE + self._file.size / self._client.policy.min_rate
        try:
            async with asyncio.timeout(seconds):
                return await self._verified()
        except TimeoutError as error:
            message = (
                f"The download of {self._file.name} took more than {seconds:.0f} s: {self._present} of "
                f"{self._file.size} bytes arrived."
            )
            raise JobFailed("source_too_slow", message, self._file.name) from error

    async def _verified(self) -> str:
        self._present = await on_disk(_length, self._opened)
        had_some = self._present > 0
        while True:
            await self._complete()
            found = await on_disk(_digests, self._opened)
            if self._is_expected(found):
                await on_disk(os.fsync, self._opened.fileno())
                return found.sha256
            await self._restart()
            if not had_some:
                raise self._damaged(found)
            log.warning("an import's file is downloaded again: its beginning is wrong", file=self._file.name)
            had_some = False

    async def _complete(self) -> None:
        """Requests the rest until all of it is here. Raises JobFailed when retries bring nothing."""
        self._on_progress(self._present)
        num_fruitless = 0
        while self._present != self._file.size:
            if self._present > self._file.size:  # of another version, or from another time
                await self._restart()
            before, reason = self._present, "the connection ended early"
            try:
                await self._receive()
            except AddressRefused as error:
                raise JobFailed(
                    "source_refused", f"{self._file.name} cannot be downloaded: {error.reason}."
                ) from error
            except EndpointUnreachable as error:
                reason = error.reason
            if self._present == self._file.size:
                return
            num_fruitless = 0 if self._present > before else num_fruitless + 1
            if num_fruitless > len(self._pauses):
                message = (
                    f"{self._file.name} cannot be downloaded at the moment: {reason}. Add the version again."
                )
                raise JobFailed("source_unavailable", message, self._file.name)
            log.info("an import goes on after a pause", file=self._file.name, at=self._present, reason=reason)
            await asyncio.sleep(self._pauses[max(0, num_fruitless - 1)] if self._pauses else 0)

    async def _receive(self) -> None:
        """Makes one request and appends what it brings."""
        request = self._remote.request(self._file, self._pinned)
        if self._present:
            request = _from_byte(request, self._present)
        async with self._client.send(request) as answer:
            self._check_status(answer)
            if answer.status == 200 and self._present:
                await self._restart()  # the server knows no ranges
            gathered = bytearray()
            try:
                async for piece in answer.pieces():
                    self._check_size(self._present + len(gathered) + len(piece))
                    gathered += piece
                    if len(gathered) >= WRITTEN_AT_ONCE:
                        await self._append(gathered)
            finally:
                await self._append(gathered)

    def _check_status(self, answer: StreamedAnswer) -> None:
        """Raises EndpointUnreachable for a range that was not asked for, JobFailed for other faults."""
        if answer.status not in (200, 206):
            raise self._remote.refusal(answer.status, answer.headers, self._file.name)
        if answer.status == 206:
            found = _CONTENT_RANGE.fullmatch(answer.headers.get("content-range", ""))
            if found is None or int(found[1]) != self._present:
                raise EndpointUnreachable("it answered with another range")
            self._check_size(int(found[2]), is_whole=True)
        length = answer.headers.get("content-length", "")
        if answer.status == 200 and length.isdigit():
            self._check_size(int(length), is_whole=True)

    def _check_size(self, size: int, *, is_whole: bool = False) -> None:
        if size > self._file.size or (is_whole and size != self._file.size):
            message = (
                f"{self._file.name} has {size} bytes or more, not {self._file.size} as its source stated."
            )
            raise JobFailed("source_damaged", message, self._file.name)

    async def _append(self, gathered: bytearray) -> None:
        if gathered:
            data = bytes(gathered)
            gathered.clear()
            await on_disk(_write, self._opened, data)
            self._present += len(data)
            self._on_progress(self._present)

    async def _restart(self) -> None:
        await on_disk(self._opened.truncate, 0)
        self._present = 0

    def _is_expected(self, found: Digests) -> bool:
        wanted = self._file
        return wanted.sha256 in (None, found.sha256) and wanted.git_sha1 in (None, found.git_sha1)

    def _damaged(self, found: Digests) -> JobFailed:
        wanted = self._file
        stated = f"the SHA-256 {wanted.sha256}" if wanted.sha256 else f"the git object id {wanted.git_sha1}"
        has = found.sha256 if wanted.sha256 else found.git_sha1
        message = f"{wanted.name} was damaged on its way or at its source: it has {has}, not {stated}."
        return JobFailed("source_damaged", message, wanted.name)


def _from_byte(request: SourceRequest, start: int) -> SourceRequest:
    return replace(request, headers={**request.headers, "range": f"bytes={start}-"})


def _length(opened: BinaryIO) -> int:
    return os.fstat(opened.fileno()).st_size


def _write(opened: BinaryIO, data: bytes) -> None:
    opened.write(data)
    opened.flush()


def _digests(opened: BinaryIO) -> Digests:
    size = _length(opened)
    sha256 = hashlib.sha256()
    git = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
    opened.seek(0)
    while piece := opened.read(CHUNK):
        sha256.update(piece)
        git.update(piece)
    return Digests(sha256.hexdigest(), git.hexdigest())
