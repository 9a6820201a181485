"""Reads and writes checksummed records in a file, and finds whole records in a damaged one.

A record is its payload's length and CRC-32, eight bytes, then the payload. Reading continues behind damage:
the next offset at which length and checksum match is the next record, so damage costs only the records it
lies in.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from mmap import mmap
from pathlib import Path
from typing import NamedTuple

from engine.files import sync_folder

PREFIX = struct.Struct("<II")
"""Payload length, CRC-32 of the payload."""
MAX_RECORD_LEN = 1 << 20

Buffer = bytes | mmap


class FilePart(NamedTuple):
    """A stretch of a file: one whole record, or everything between two of them."""

    start: int
    end: int
    payload: bytes | None
    """None: no record begins anywhere in it."""


def encode_record(payload: bytes) -> bytes:
    """Returns the record of a payload."""
    assert 0 < len(payload) <= MAX_RECORD_LEN  # zeros, as power cuts leave them, must not read as records
    return PREFIX.pack(len(payload), zlib.crc32(payload)) + payload


def file_parts(data: Buffer, at: int = 0) -> Iterator[FilePart]:
    """Yields the parts of a file from an offset on, in order and without gaps."""
    while at < len(data):
        payload = _payload_at(data, at)
        if payload is not None:
            end = at + PREFIX.size + len(payload)
        else:
            end = _next_record(data, at + 1)
        yield FilePart(at, end, payload)
        at = end


def is_unfinished(data: Buffer, part: FilePart) -> bool:
    """Returns whether the end of a file is what a crash leaves of a record being written: a beginning whose
    rest is missing, or space that was never filled. The append had not returned.
    """
    if part.payload is not None or part.end != len(data):
        return False
    left = part.end - part.start
    if left < PREFIX.size or not any(data[part.start : part.end]):
        return True
    length, _ = PREFIX.unpack_from(data, part.start)
    return bool(left - PREFIX.size < length <= MAX_RECORD_LEN)


def write_private(path: Path, parts: Iterable[bytes]) -> None:
    """Writes a file that only its owner may read, and waits for the disk. Raises OSError."""
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.writelines(parts)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)


def _payload_at(data: Buffer, at: int) -> bytes | None:
    if at + PREFIX.size > len(data):
        return None
    length, crc = PREFIX.unpack_from(data, at)
    start = at + PREFIX.size
    if not 0 < length <= MAX_RECORD_LEN or start + length > len(data):
        return None
    payload = bytes(data[start : start + length])
    return payload if zlib.crc32(payload) == crc else None


def _next_record(data: Buffer, at: int) -> int:
    """Returns the first offset from `at` on at which a whole record begins; the end of the file
    if none does.
    """
    for offset in range(at, len(data) - PREFIX.size):
        if _payload_at(data, offset) is not None:
            return offset
    return len(data)
