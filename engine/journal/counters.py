"""Keeps the engine's totals on disk: how many usage events an incarnation has numbered, and their tokens.

The file is small, memory-mapped, beside the in-flight table. The next start reads from it what the journal
and the open requests must contain, so that a loss of either is found and counted. Each value is one aligned
word with a checksum, stored in two places.

Values are stored after what they count: after a kill they show less than there is, never more. Only the last
number given is stored before its event: no other event may be taken for the one that has it.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

SIZE = 4096
_PLACES = (0, SIZE // 2)
_ISSUED, _TOKENS, _COUNTED, _STAMPED = range(4)
_NAME_AT = 64
_NAME = struct.Struct("=32sI")
_CHECK_BITS = 16


class IncarnationTotals(NamedTuple):
    """What an incarnation counted before it ended."""

    incarnation: str
    issued: int
    """Usage events that it numbered and wrote."""
    tokens: int
    """Completion tokens in those, each counted in one event."""
    counted: int
    """Completion tokens that it was about to send, whether or not an event has them."""
    stamped: int
    """The last number that it gave to an event, written or not."""


class DiskCounters:
    """The totals of the running incarnation. Each method belongs to one thread."""

    def __init__(self, path: Path) -> None:
        """Opens or creates the file; `last` is its content. Raises OSError."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.posix_fallocate(self._fd, 0, SIZE)
        self._mmap = mmap.mmap(self._fd, SIZE)
        self._words = memoryview(self._mmap).cast("Q")
        self.last = self._read()
        """None: the file is new, or cannot be read."""

    def begin(self, incarnation: str) -> None:
        """Resets the totals for a new incarnation, once what the last one left is journaled."""
        name = incarnation.encode()
        for place in _PLACES:
            _NAME.pack_into(self._mmap, place + _NAME_AT, b"", 0)
        for word in (_ISSUED, _TOKENS, _COUNTED, _STAMPED):
            self._store(word, 0)
        for place in _PLACES:
            _NAME.pack_into(self._mmap, place + _NAME_AT, name, zlib.crc32(name))
        self._counted = 0

    def stamp(self, number: int) -> None:
        """Stores a number that is about to be written. For the journal's thread."""
        self._store(_STAMPED, number)

    def issue(self, issued: int, tokens: int) -> None:
        """Stores that events up to this number are written. For the journal's thread."""
        self._store(_TOKENS, tokens)
        self._store(_ISSUED, issued)

    def count(self, tokens: int) -> None:
        """Counts completion tokens that were added to the in-flight table. For the step loop."""
        self._counted += tokens
        self._store(_COUNTED, self._counted)

    def sync(self) -> None:
        """Waits for the disk. For a thread of its own. Raises OSError."""
        os.fsync(self._fd)

    def close(self) -> None:
        self._words.release()
        self._mmap.close()
        os.close(self._fd)

    def _store(self, word: int, value: int) -> None:
        stored = value << _CHECK_BITS | _check(value)
        for place in _PLACES:
            self._words[place // 8 + word] = stored

    def _read(self) -> IncarnationTotals | None:
        names = (_NAME.unpack_from(self._mmap, place + _NAME_AT) for place in _PLACES)
        name = next((name.rstrip(b"\0") for name, crc in names if zlib.crc32(name.rstrip(b"\0")) == crc), b"")
        issued, tokens, counted, stamped = map(self._value, (_ISSUED, _TOKENS, _COUNTED, _STAMPED))
        if not name or issued is None or tokens is None or counted is None or stamped is None:
            return None
        return IncarnationTotals(name.decode(errors="replace"), issued, tokens, counted, stamped)

    def _value(self, word: int) -> int | None:
        """Returns the larger of the two places: a kill may have come between their stores."""
        stored = (self._words[place // 8 + word] for place in _PLACES)
        whole = [one >> _CHECK_BITS for one in stored if one & 0xFFFF == _check(one >> _CHECK_BITS)]
        return max(whole, default=None)


def _check(value: int) -> int:
    return zlib.crc32(value.to_bytes(8, "little")) & 0xFFFF
