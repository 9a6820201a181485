"""The in-flight table: what would be owed if the process died this instant.

Owns one memory-mapped file of fixed-size rows, one per open request: the request's UsageEvent as it stood at
admission, and counters bumped in place each step. Pages of a shared mapping belong to the kernel, so they
outlive a `kill -9`; the next incarnation reads the rows left behind and journals them. A machine that loses
power loses the table's last seconds: durability against that is the journal's task, not this file's.

Every store that decides something is one aligned 8-byte word, written after what it vouches for: a row is
live once its state word says so, and a counter is either its old value or its new one. Refuses to know
clients, Redis and steps.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import structlog

from engine.protocol import Usage, UsageEvent

log = structlog.get_logger(__name__)

MAGIC = b"RSINFL01"
HEADER_LEN = 4096
ROW_LEN = 2048
INITIAL_ROWS = 512

_WORD = 8
_ROW_WORDS = ROW_LEN // _WORD
_HEADER_WORDS = HEADER_LEN // _WORD
# Words of a row. Times are stored as float bits, so that one view serves all.
_STATE, _COMPLETION, _PROMPT, _CACHED, _SCHEDULED_AT, _FIRST_TOKEN_AT, _PREEMPTIONS, _BODY = range(8)
_BODY_START = 64
MAX_BODY_LEN = ROW_LEN - _BODY_START
_FREE, _LIVE = 0, 1
_TOUCHED_AT_WORD = 2  # of the header: magic, row length, then when a counter last moved

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(UsageEvent)


class InflightTable:
    """Open requests' usage in a file that survives the process.

    `admit`, `add` and `update` belong to the step loop; `free` may be called by another thread for a row that
    the loop no longer touches. Nothing here waits: no call but `admit` on a full table makes a system call.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the table at `path`. A file that is no table is logged and moved aside.

        Raises: OSError when the file cannot be created or its disk space not be reserved.
        """
        self._path = path
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not _is_table(path):
            aside = path.with_name(f"{path.name}.corrupt-{time.time_ns()}")
            path.rename(aside)
            log.error(
                "in-flight table is corrupt; kept aside, starting an empty one",
                path=str(path),
                kept=str(aside),
            )
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        size = os.fstat(self._fd).st_size
        num_rows = (size - HEADER_LEN) // ROW_LEN if size else INITIAL_ROWS
        self._map(num_rows)
        if not size:
            self._words[1] = ROW_LEN
            self._bytes[:8] = MAGIC
        self._free = [row for row in range(num_rows - 1, -1, -1) if self._words[self._word(row)] == _FREE]

    @property
    def num_rows(self) -> int:
        return self._num_rows

    @property
    def num_live(self) -> int:
        return self._num_rows - len(self._free)

    def admit(self, event: UsageEvent) -> int:
        """Write a request's row and return its index. Raises ValueError when the event does not fit a row."""
        body = _encoder.encode(event)
        if len(body) > MAX_BODY_LEN:
            raise ValueError(
                f"labels: the usage event takes {len(body)} bytes, at most {MAX_BODY_LEN} are kept"
            )
        with self._lock:
            if not self._free:
                self._grow()
            row = self._free.pop()
        at, word = self._offset(row), self._word(row)
        words = self._words
        self._bytes[at + _BODY_START : at + _BODY_START + len(body)] = body
        words[word + _COMPLETION] = event.usage.completion_tokens
        words[word + _PROMPT] = event.usage.prompt_tokens
        words[word + _CACHED] = event.usage.cached_tokens
        words[word + _SCHEDULED_AT] = _bits(event.scheduled_at)
        words[word + _FIRST_TOKEN_AT] = _bits(event.first_token_at)
        words[word + _PREEMPTIONS] = event.preemptions
        words[word + _BODY] = len(body) << 32 | zlib.crc32(body)
        words[word + _STATE] = _LIVE
        return row

    def add(self, rows: Sequence[int], counts: Sequence[int]) -> None:
        """Count a step's completion tokens, after `touch`. Must come before anybody is given them.

        One call for all rows, since every step pays for it; a row may come several times, once per choice.
        """
        rows_N = np.array(rows, dtype=np.intp)
        np.add.at(self._completions, rows_N, np.array(counts, dtype=np.uint64))
        unseen_N = rows_N[self._first_token_times[rows_N] == 0]
        if len(unseen_N):
            self._first_token_times[unseen_N] = self._words[_TOUCHED_AT_WORD]

    def touch(self, now: float) -> None:
        """Note when counters move, in Unix seconds: a first token's time, or death's, should it come."""
        self._words[_TOUCHED_AT_WORD] = _bits(now)

    def update(self, row: int, event: UsageEvent) -> None:
        """Take over the counts and times of an event. Word by word: a torn update mixes two true states."""
        word, words = self._word(row), self._words
        words[word + _PROMPT] = event.usage.prompt_tokens
        words[word + _CACHED] = event.usage.cached_tokens
        words[word + _COMPLETION] = max(event.usage.completion_tokens, words[word + _COMPLETION])
        words[word + _SCHEDULED_AT] = _bits(event.scheduled_at)
        words[word + _FIRST_TOKEN_AT] = _bits(event.first_token_at)
        words[word + _PREEMPTIONS] = event.preemptions

    def free(self, row: int) -> None:
        """Give a row back: its request's last event is in the journal, or it never ran."""
        with self._lock:
            assert self._words[self._word(row) + _STATE] == _LIVE, f"row {row} is freed twice"
            self._words[self._word(row) + _STATE] = _FREE
            self._free.append(row)

    def read(self) -> list[UsageEvent]:
        """Rows that are live, as events with the counts as of now and finish_reason "error".

        A row whose body does not match its checksum is logged with its counters and left out: nothing else
        can be done.
        """
        found: list[UsageEvent] = []
        touched_at = _time(self._words[_TOUCHED_AT_WORD])
        for row in range(self._num_rows):
            if self._words[self._word(row) + _STATE] != _FREE and (event := self._event(row, touched_at)):
                found.append(event)
        return found

    def clear(self) -> None:
        """Free every row, readable or not. For a start, once `read` has been journaled."""
        with self._lock:
            for row in range(self._num_rows):
                self._words[self._word(row) + _STATE] = _FREE
            self._free = list(range(self._num_rows - 1, -1, -1))

    def close(self) -> None:
        del self._completions, self._first_token_times  # a mapping that somebody looks into does not close
        self._words.release()
        self._bytes.release()
        self._mmap.close()
        os.close(self._fd)

    def _event(self, row: int, touched_at: float | None) -> UsageEvent | None:
        at, word, words = self._offset(row), self._word(row), self._words
        body_len, crc = words[word + _BODY] >> 32, words[word + _BODY] & 0xFFFFFFFF
        body = bytes(self._bytes[at + _BODY_START : at + _BODY_START + min(body_len, MAX_BODY_LEN)])
        completion_tokens = words[word + _COMPLETION]
        try:
            if words[word + _STATE] != _LIVE or body_len > MAX_BODY_LEN or zlib.crc32(body) != crc:
                raise msgspec.DecodeError("checksum does not match")
            event = _decoder.decode(body)
        except msgspec.DecodeError as error:
            log.error(
                "in-flight row is unreadable", row=row, completion_tokens=completion_tokens, reason=str(error)
            )
            return None
        return msgspec.structs.replace(
            event,
            usage=Usage(words[word + _PROMPT], words[word + _CACHED], completion_tokens),
            scheduled_at=_time(words[word + _SCHEDULED_AT]),
            first_token_at=_time(words[word + _FIRST_TOKEN_AT]),
            preemptions=words[word + _PREEMPTIONS],
            recorded_at=time.time(),
            finished_at=touched_at,
            finish_reason="error",
        )

    def _grow(self) -> None:
        """Double the table. The old mapping shows the same pages, so a `free` under way loses nothing."""
        num_rows = self._num_rows
        self._map(num_rows * 2)
        self._free.extend(range(num_rows * 2 - 1, num_rows - 1, -1))

    def _map(self, num_rows: int) -> None:
        size = HEADER_LEN + num_rows * ROW_LEN
        # Reserved, not sparse: a store into a hole on a full disk would be a SIGBUS.
        os.posix_fallocate(self._fd, 0, size)
        self._mmap = mmap.mmap(self._fd, size)
        self._bytes = memoryview(self._mmap)
        self._words = self._bytes.cast("Q")
        words_RW = np.frombuffer(self._mmap, dtype=np.uint64, offset=HEADER_LEN).reshape(num_rows, _ROW_WORDS)
        self._completions, self._first_token_times = words_RW[:, _COMPLETION], words_RW[:, _FIRST_TOKEN_AT]
        self._num_rows = num_rows

    @staticmethod
    def _offset(row: int) -> int:
        return HEADER_LEN + row * ROW_LEN

    @staticmethod
    def _word(row: int) -> int:
        return _HEADER_WORDS + row * _ROW_WORDS


def _is_table(path: Path) -> bool:
    """An empty file is a table not begun; one without a magic and without a row was torn while it began."""
    size = path.stat().st_size
    if size == 0:
        return True
    with path.open("rb") as file:
        header = file.read(16)
    return (
        size > HEADER_LEN
        and (size - HEADER_LEN) % ROW_LEN == 0
        and header[:8] == MAGIC
        and struct.unpack_from("=Q", header, 8)[0] == ROW_LEN
    )


def _bits(seconds: float | None) -> int:
    return 0 if seconds is None else struct.unpack("=Q", struct.pack("=d", seconds))[0]


def _time(bits: int) -> float | None:
    return struct.unpack("=d", struct.pack("=Q", bits))[0] if bits else None
