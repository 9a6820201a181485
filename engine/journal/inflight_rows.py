"""Defines the layout of the in-flight table's file, and reads rows from a file that may be damaged.

What decides about a row is stored twice, at its beginning and at its end, so that damage to one place costs
nothing: whether it is live, its counters, and the length and checksum of its body, which is the request's
UsageEvent as of admission. Rows lie at fixed offsets, so that each is read by itself: a damaged header or a
truncated file costs only the rows that are gone.
"""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog

from engine.protocol import Usage, UsageEvent

log = structlog.get_logger(__name__)

MAGIC = b"RSINFL02"
OLD_MAGIC = b"RSINFL01"
"""Of releases that stored everything once. Their rows are read; nothing more is written to them."""
HEADER_LEN = 4096
ROW_LEN = 2048
WORD = 8
ROW_WORDS = ROW_LEN // WORD
HEADER_WORDS = HEADER_LEN // WORD

# Words of a row. Times are stored as float bits, so that one view serves all.
STATE, COMPLETION, JOURNALED, CACHED, SCHEDULED_AT, FIRST_TOKEN_AT, PREEMPTIONS, BODY = range(8)
REASONING, STATE_AGAIN, COMPLETION_AGAIN, CACHED_AGAIN, BODY_AGAIN = range(ROW_WORDS - 5, ROW_WORDS)
# REASONING came later, once: no cost depends on it. In rows of older releases it is 0, or part of a body too
# long for it, and then no plausible count.
BODY_START = 64
MAX_BODY_LEN = ROW_LEN - BODY_START - 5 * WORD
FREE, LIVE = 0, 0x4556494C574F5254
_OLD_LIVE = 1
ROW_LEN_WORD, TOUCHED_AT_WORD = 1, 2
"""In the header, behind the magic: the length of rows; when a counter last moved."""

_MAX_TOKENS = 1 << 40
_LATEST = 4_102_444_800.0
"""The year 2100: a later time is damage."""
_ROW = struct.Struct(f"={ROW_WORDS}Q")
_decoder = msgspec.msgpack.Decoder(UsageEvent)


class LeftoverRow(NamedTuple):
    """A request that was open when its engine died."""

    event: UsageEvent
    """With the counts at that time and finish_reason "error"."""
    journaled: int
    """Of its completion tokens, those that an event in the journal has."""

    @property
    def owed(self) -> int:
        """Completion tokens that no event has."""
        return max(0, self.event.usage.completion_tokens - self.journaled)


class RecoveredTable(NamedTuple):
    """What can be read of a dead engine's file."""

    rows: list[LeftoverRow]
    damage: str = ""
    """What is wrong with the file; empty: nothing."""
    is_current: bool = True
    """Whether it has this release's layout, so that the next engine can use it."""


def recover_table(path: Path) -> RecoveredTable:
    """Reads everything readable in a table's file, without changing it. Raises OSError."""
    data = path.read_bytes() if path.exists() else b""
    if not data:
        return RecoveredTable([])
    damages = []
    is_old = data[:8] == OLD_MAGIC
    if data[:8] not in (MAGIC, OLD_MAGIC) or data[8:16] != struct.pack("=Q", ROW_LEN):
        damages.append("its header is unreadable")
    if len(data) <= HEADER_LEN or (len(data) - HEADER_LEN) % ROW_LEN:
        damages.append(f"its length of {len(data)} bytes is not that of whole rows")
    rows, num_unreadable = read_rows(data)
    if num_unreadable:
        damages.append(f"{num_unreadable} rows are unreadable")
    return RecoveredTable(rows, "; ".join(damages), not damages and not is_old)


def read_rows(data: bytes | memoryview) -> tuple[list[LeftoverRow], int]:
    """Returns the live rows, and how many more cannot be read."""
    touched_at = _time_at(data, TOUCHED_AT_WORD)
    found: list[LeftoverRow] = []
    num_unreadable = 0
    for number, (words, row) in enumerate(_rows(data)):
        if not _is_live(words):
            continue
        left = _left_row(words, row, touched_at)
        if left is None:
            num_unreadable += 1
            log.error("in-flight row is unreadable", row=number, completion_tokens=words[COMPLETION])
        else:
            found.append(left)
    return found, num_unreadable


def bits(seconds: float | None) -> int:
    """Returns a time as it is stored."""
    return 0 if seconds is None else struct.unpack("=Q", struct.pack("=d", seconds))[0]


def _rows(data: bytes | memoryview) -> Iterator[tuple[tuple[int, ...], bytes]]:
    """Yields words and bytes of each row; missing bytes of the last one read as zeros."""
    for at in range(HEADER_LEN, len(data), ROW_LEN):
        row = bytes(data[at : at + ROW_LEN]).ljust(ROW_LEN, b"\0")
        yield _ROW.unpack(row), row


def _is_live(words: tuple[int, ...]) -> bool:
    """Returns whether either place says so, or neither is readable, which would take damage in both."""
    first, again = words[STATE], words[STATE_AGAIN]
    return LIVE in (first, again) or first == _OLD_LIVE or FREE not in (first, again)


def _left_row(words: tuple[int, ...], row: bytes, touched_at: float | None) -> LeftoverRow | None:
    event = _body(words[BODY], row) or _body(words[BODY_AGAIN], row)
    counts = _counts(words, COMPLETION, COMPLETION_AGAIN, _MAX_TOKENS)
    if event is None or not counts:
        return None
    completion_tokens = min(counts)
    prompt_tokens = event.usage.prompt_tokens
    cached_tokens = max(_counts(words, CACHED, CACHED_AGAIN, prompt_tokens), default=0)
    journaled = words[JOURNALED] if words[STATE] == LIVE else 0
    reasoning_tokens = words[REASONING] if words[REASONING] <= completion_tokens else 0
    return LeftoverRow(
        msgspec.structs.replace(
            event,
            usage=Usage(prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens),
            scheduled_at=_time(words[SCHEDULED_AT]),
            first_token_at=_time(words[FIRST_TOKEN_AT]),
            preemptions=words[PREEMPTIONS] if words[PREEMPTIONS] < 1 << 31 else 0,
            recorded_at=time.time(),
            finished_at=touched_at,
            finish_reason="error",
        ),
        min(journaled, completion_tokens),
    )


def _body(word: int, row: bytes) -> UsageEvent | None:
    length, crc = word >> 32, word & 0xFFFFFFFF
    body = row[BODY_START : BODY_START + length]
    if not length or len(body) < length or zlib.crc32(body) != crc:
        return None
    try:
        return _decoder.decode(body)
    except msgspec.DecodeError:
        return None


def _counts(words: tuple[int, ...], first: int, again: int, most: int) -> list[int]:
    """Returns a counter as stored at the readable ends of the row, where plausible.

    If both are readable and differ, the engine died between two stores, or one is damaged. Then the smaller
    one is billed; the totals beside the table (`engine.journal.counters`) show what that leaves out.
    """
    counts = []
    if words[STATE] in (LIVE, _OLD_LIVE) or words[STATE_AGAIN] != LIVE:
        counts.append(words[first])
    if words[STATE_AGAIN] == LIVE:
        counts.append(words[again])
    return [count for count in counts if count <= most]


def _time_at(data: bytes | memoryview, word: int) -> float | None:
    at = word * WORD
    return _time(int.from_bytes(data[at : at + WORD], "little")) if len(data) >= at + WORD else None


def _time(stored: int) -> float | None:
    seconds: float = struct.unpack("=d", struct.pack("=Q", stored))[0]
    return seconds if 0 < seconds <= _LATEST else None
