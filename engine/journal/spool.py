"""Spools usage events to local disk while the journal's Redis is unreachable.

One append-only file of checksummed records. An append returns once the bytes are on the disk (fsync); a file
cut short by a crash loses only the record that was being written, whose append had not returned. Damage costs
the records that it lies in: those behind it are read, and the damaged bytes are set aside.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Iterable, Iterator
from mmap import ACCESS_READ, mmap
from pathlib import Path

import structlog

from engine.files import sync_folder
from engine.journal.records import (
    MAX_RECORD_LEN,
    PREFIX,
    encode_record,
    file_parts,
    is_unfinished,
    write_private,
)
from engine.journal.set_aside import set_aside

log = structlog.get_logger(__name__)


class Spool:
    """Records in order: appended durably, read from the front, emptied at once.

    One thread writes; `page` may be called by another.
    """

    def __init__(self, path: Path) -> None:
        """Opens or creates the file. A torn tail is cut off, and damage is set aside, so that later appends
        can be read.

        Raises: OSError when the file cannot be opened or written.
        """
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = _open(path)
        _repair(path, self._fd)
        os.close(self._fd)
        self._fd = _open(path)  # another file, where damage was taken out
        sync_folder(path.parent)
        self._lock = threading.Lock()
        """Held while record offsets change, not while waiting for the disk."""
        self._end = 0
        self._front = 0
        """Offset at which reading begins: records before it have been consumed."""
        self._emptied = 0
        """Bytes that were in the file whenever it was emptied, summed: so no position ever means
        two records."""
        self._is_damaged = False
        """Whether some of it has become unreadable since it was opened."""
        self._num_records = 0
        for _, end in self._records(0, os.fstat(self._fd).st_size):
            self._num_records += 1
            self._end = end

    def __len__(self) -> int:
        return self._num_records

    def append(self, payloads: Iterable[bytes]) -> None:
        """Writes records and waits for the disk. All or none. Raises OSError (disk full, I/O error)."""
        data = bytearray()
        count = 0
        for payload in payloads:
            data += encode_record(payload)
            count += 1
        view, at = memoryview(data), self._end
        try:
            while view:
                written = os.pwrite(self._fd, view, at)
                view, at = view[written:], at + written
            os.fsync(self._fd)
        except OSError:
            os.ftruncate(self._fd, self._end)
            raise
        with self._lock:
            self._end = at
            self._num_records += count

    def page(self, position: int, limit: int) -> tuple[list[bytes], int | None]:
        """Returns at most `limit` records from a position on, and the position of the next page; None at the
        end.

        0 is the front, and so is any position before it. Positions are valid while the spool is open.
        """
        with self._lock:
            at = max(position - self._emptied, self._front)
            payloads: list[bytes] = []
            for payload, after in self._records(at, self._end):  # behind it: on its way to the disk
                payloads.append(payload)
                at = after
                if len(payloads) == limit:
                    break
            return payloads, self._emptied + at if at < self._end else None

    def peek(self, limit: int) -> list[bytes]:
        """Returns the first records not yet consumed, at most `limit`."""
        return [payload for payload, _ in self._first_records(limit)]

    def consume(self, count: int) -> None:
        """Removes the first `count` records; the file is emptied once all are consumed.

        A crash before that brings them back: readers of the journal must accept events twice.
        """
        assert count <= self._num_records
        front = self._front
        for _, end in self._first_records(count):
            front = end
        is_empty = next(self._records(front, self._end), None) is None
        if is_empty and self._is_damaged:
            set_aside(self._path, os.pread(self._fd, self._end, 0))
            self._is_damaged = False
        with self._lock:
            self._front = front
            self._num_records = 0 if is_empty else max(1, self._num_records - count)
            if is_empty:
                os.ftruncate(self._fd, 0)
                self._emptied += self._end
                self._end = self._front = 0
        if is_empty:
            os.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)

    def _first_records(self, limit: int) -> Iterator[tuple[bytes, int]]:
        records = self._records(self._front, self._end)
        for _, record in zip(range(min(limit, self._num_records)), records, strict=False):
            yield record

    def _records(self, at: int, until: int) -> Iterator[tuple[bytes, int]]:
        """Yields each whole record in [at, until): its payload, and the offset behind it."""
        while at < until:
            payload = self._payload_at(at)
            if payload is None:
                yield from self._records_behind_damage(at, until)
                return
            at += PREFIX.size + len(payload)
            if at <= until:
                yield payload, at

    def _payload_at(self, at: int) -> bytes | None:
        prefix = os.pread(self._fd, PREFIX.size, at)
        if len(prefix) < PREFIX.size:
            return None
        length, crc = PREFIX.unpack(prefix)
        if not 0 < length <= MAX_RECORD_LEN:
            return None
        payload = os.pread(self._fd, length, at + PREFIX.size)
        return payload if len(payload) == length and zlib.crc32(payload) == crc else None

    def _records_behind_damage(self, at: int, until: int) -> Iterator[tuple[bytes, int]]:
        """Yields the records behind damage that occurred since the file was opened."""
        self._is_damaged = True
        for part in file_parts(os.pread(self._fd, until, 0), at):
            if part.payload is not None:
                yield part.payload, part.end


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _repair(path: Path, fd: int) -> None:
    """Cuts off a torn tail and sets damaged stretches aside. Leaves a file of whole records alone.

    A crash in between leaves the file as it was, or as it will be.
    """
    if os.fstat(fd).st_size == 0:
        return
    with mmap(fd, 0, access=ACCESS_READ) as data:
        bad = [part for part in file_parts(data) if part.payload is None]
        torn = bad.pop() if bad and is_unfinished(data, bad[-1]) else None
        if bad:
            kept = set_aside(path, b"".join(data[one.start : one.end] for one in bad))
            log.error(
                "spool is damaged; some usage may be lost, readable records were kept",
                stretches=len(bad),
                bytes=sum(one.end - one.start for one in bad),
                kept=str(kept),
            )
            anew = path.with_name(f"{path.name}.new")
            whole = (part for part in file_parts(data) if part.payload is not None)
            write_private(anew, (data[part.start : part.end] for part in whole))
            anew.rename(path)
    if torn is not None and not bad:
        log.warning("spool ends in an unfinished record; cut off", bytes=torn.end - torn.start)
        os.ftruncate(fd, torn.start)
        os.fsync(fd)
