"""The spool: usage events on local disk while the journal's Redis is away.

Owns one append-only file of checksummed records. An append returns once the bytes are on the disk (fsync); a
file cut short by a crash loses only the record that was being written, which nobody had been promised.
Refuses to know what a record means and where it goes.
"""

from __future__ import annotations

import os
import struct
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)

_PREFIX = struct.Struct("<II")  # payload length, CRC-32 of the payload
MAX_RECORD_LEN = 1 << 20


class Spool:
    """Records in order, appended durably, read from the front, emptied at once.

    One thread writes; `page` may be called by another.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the file. A torn tail is cut off, so that what is appended later can be read.

        Raises: OSError when the file cannot be opened or written.
        """
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        _sync_folder(path.parent)
        self._lock = threading.Lock()
        """Held while it is said where records are, not while the disk is waited for."""
        self._end = 0
        self._front = 0
        """Where reading begins: records before it have been handed on."""
        self._emptied = 0
        """Bytes that were in it when it was emptied, all times together: no position means two records."""
        self._num_records = 0
        for _, end in self._records(0):
            self._num_records += 1
            self._end = end
        size = os.fstat(self._fd).st_size
        if size > self._end:
            self._cut_tail(size)

    def __len__(self) -> int:
        return self._num_records

    def append(self, payloads: Iterable[bytes]) -> None:
        """Write records and wait for the disk. All or none. Raises OSError (disk full, I/O error)."""
        data = bytearray()
        count = 0
        for payload in payloads:
            assert len(payload) <= MAX_RECORD_LEN
            data += _PREFIX.pack(len(payload), zlib.crc32(payload)) + payload
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
        """At most `limit` records from a position on, and the position to go on from; None at the end.

        0 is the front, and so is whatever has been consumed since. Positions are of this opening.
        """
        with self._lock:
            at = max(position - self._emptied, self._front)
            payloads: list[bytes] = []
            for payload, after in self._records(at):
                if after > self._end:
                    break  # on its way to the disk
                payloads.append(payload)
                at = after
                if len(payloads) == limit:
                    break
            return payloads, self._emptied + at if at < self._end else None

    def peek(self, limit: int) -> list[bytes]:
        """The first records not yet consumed, at most `limit`."""
        return [payload for payload, _ in self._some(limit)]

    def consume(self, count: int) -> None:
        """Forget the first `count` records; the file is emptied once all are gone.

        A crash before that brings them back: readers of the journal must not mind seeing an event again.
        """
        assert count <= self._num_records
        front = self._front
        for _, end in self._some(count):
            front = end
        with self._lock:
            self._front = front
            self._num_records -= count
            is_empty = self._num_records == 0
            if is_empty:
                os.ftruncate(self._fd, 0)
                self._emptied += self._end
                self._end = self._front = 0
        if is_empty:
            os.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)

    def _some(self, limit: int) -> Iterator[tuple[bytes, int]]:
        for _, record in zip(range(min(limit, self._num_records)), self._records(self._front), strict=False):
            yield record

    def _records(self, at: int) -> Iterator[tuple[bytes, int]]:
        """Each (payload, offset of the next record) from `at` on, up to the first that is not whole."""
        while True:
            prefix = os.pread(self._fd, _PREFIX.size, at)
            if len(prefix) < _PREFIX.size:
                return
            length, crc = _PREFIX.unpack(prefix)
            if length > MAX_RECORD_LEN:
                return
            payload = os.pread(self._fd, length, at + _PREFIX.size)
            if len(payload) < length or zlib.crc32(payload) != crc:
                return
            at += _PREFIX.size + length
            yield payload, at

    def _cut_tail(self, size: int) -> None:
        """Keep what cannot be read beside the file, then cut it off."""
        tail = os.pread(self._fd, size - self._end, self._end)
        aside = self._path.with_name(f"{self._path.name}.tail-{time.time_ns()}")
        aside.write_bytes(tail)
        log.error("spool ends in an unreadable record; kept aside", bytes=len(tail), kept=str(aside))
        os.ftruncate(self._fd, self._end)
        os.fsync(self._fd)


def _sync_folder(folder: Path) -> None:
    """Make a new file's name durable too."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
