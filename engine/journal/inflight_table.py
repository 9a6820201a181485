"""Keeps a table of open requests on disk: what each would owe if the process died now.

One memory-mapped file of fixed-size rows, one per open request: the request's UsageEvent as of admission, and
counters that each step increments in place. Pages of a shared mapping belong to the kernel, so they outlive a
`kill -9`; the next incarnation reads the rows left behind (`engine.journal.inflight_rows`) and journals them.
A machine that loses power loses what was counted since the last `sync`.

Every store that decides something is one aligned 8-byte word, written after what it vouches for: a row is
live once its state word says so, and a counter is either its old value or its new one.
"""

from __future__ import annotations

import mmap
import os
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from engine.journal.inflight_rows import (
    BODY,
    BODY_AGAIN,
    BODY_START,
    CACHED,
    CACHED_AGAIN,
    COMPLETION,
    COMPLETION_AGAIN,
    FIRST_TOKEN_AT,
    FREE,
    HEADER_LEN,
    HEADER_WORDS,
    JOURNALED,
    LIVE,
    MAGIC,
    MAX_BODY_LEN,
    PREEMPTIONS,
    REASONING,
    ROW_LEN,
    ROW_LEN_WORD,
    ROW_WORDS,
    SCHEDULED_AT,
    STATE,
    STATE_AGAIN,
    TOUCHED_AT_WORD,
    LeftoverRow,
    bits,
    read_rows,
)
from engine.protocol import UsageEvent

INITIAL_ROWS = 512

_encoder = msgspec.msgpack.Encoder()


class InflightTable:
    """Counts open requests' usage in a file that survives the process.

    `admit`, `add` and `update` belong to the step loop; `free` may be called by another thread for a row that
    the loop no longer touches. No call blocks, and only `admit` on a full table makes a system call.
    """

    def __init__(self, path: Path) -> None:
        """Opens or creates the table at `path`: an existing file must be whole and of this layout.

        Raises: OSError when the file cannot be created or its disk space cannot be reserved.
        """
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        size = os.fstat(self._fd).st_size
        num_rows = (size - HEADER_LEN) // ROW_LEN if size else INITIAL_ROWS
        self._map(num_rows)
        if not size:
            self._words[ROW_LEN_WORD] = ROW_LEN
            self._bytes[:8] = MAGIC
        self._free = [row for row in range(num_rows - 1, -1, -1) if self._words[self._word(row)] == FREE]

    @property
    def num_rows(self) -> int:
        return self._num_rows

    @property
    def num_live(self) -> int:
        return self._num_rows - len(self._free)

    def admit(self, event: UsageEvent) -> int:
        """Writes a request's row and returns its index. Raises ValueError when the event does not fit."""
        body = _encoder.encode(event)
        if len(body) > MAX_BODY_LEN:
            raise ValueError(
                f"labels: the usage event takes {len(body)} bytes, more than the {MAX_BODY_LEN} that fit"
            )
        with self._lock:
            if not self._free:
                self._grow()
            row = self._free.pop()
        at, word = self._offset(row), self._word(row)
        words = self._words
        self._bytes[at + BODY_START : at + BODY_START + len(body)] = body
        words[word + JOURNALED] = 0
        words[word + COMPLETION] = words[word + COMPLETION_AGAIN] = event.usage.completion_tokens
        words[word + CACHED] = words[word + CACHED_AGAIN] = event.usage.cached_tokens
        words[word + REASONING] = event.usage.reasoning_tokens
        words[word + SCHEDULED_AT] = bits(event.scheduled_at)
        words[word + FIRST_TOKEN_AT] = bits(event.first_token_at)
        words[word + PREEMPTIONS] = event.preemptions
        words[word + BODY] = words[word + BODY_AGAIN] = len(body) << 32 | zlib.crc32(body)
        words[word + STATE] = words[word + STATE_AGAIN] = LIVE
        return row

    def add(self, rows: Sequence[int], counts: Sequence[int]) -> None:
        """Counts a step's completion tokens, after `touch` and before they are sent.

        One call for all rows, because every step pays for it; a row may come several times, once per choice.
        """
        rows_N = np.array(rows, dtype=np.intp)
        np.add.at(self._completions, rows_N, np.array(counts, dtype=np.uint64))
        self._completions_again[rows_N] = self._completions[rows_N]
        unseen_N = rows_N[self._first_token_times[rows_N] == 0]
        if len(unseen_N):
            self._first_token_times[unseen_N] = self._words[TOUCHED_AT_WORD]

    def touch(self, now: float) -> None:
        """Stores when counters move, in Unix seconds: the time of first tokens, or of a crash."""
        self._words[TOUCHED_AT_WORD] = bits(now)

    def update(self, row: int, event: UsageEvent) -> int:
        """Takes over the counts and times of an event. Word by word: a torn update mixes two true states.

        Returns how many completion tokens the event has beyond those counted.
        """
        word, words = self._word(row), self._words
        counted = words[word + COMPLETION]
        completion_tokens = max(event.usage.completion_tokens, counted)
        words[word + CACHED] = words[word + CACHED_AGAIN] = event.usage.cached_tokens
        words[word + COMPLETION] = words[word + COMPLETION_AGAIN] = completion_tokens
        words[word + REASONING] = event.usage.reasoning_tokens
        words[word + SCHEDULED_AT] = bits(event.scheduled_at)
        words[word + FIRST_TOKEN_AT] = bits(event.first_token_at)
        words[word + PREEMPTIONS] = event.preemptions
        return int(completion_tokens - counted)

    def journaled(self, row: int, completion_tokens: int) -> None:
        """Stores how many of the row's tokens an event in the journal has."""
        self._words[self._word(row) + JOURNALED] = completion_tokens

    def free(self, row: int) -> None:
        """Frees a row: its request's last event is in the journal, or it never ran."""
        with self._lock:
            word = self._word(row)
            assert self._words[word + STATE] == LIVE, f"row {row} is freed twice"
            self._words[word + STATE] = self._words[word + STATE_AGAIN] = FREE
            self._free.append(row)

    def read(self) -> list[LeftoverRow]:
        """Returns the live rows, as they would be found if the process died now.

        A row that cannot be read is logged with its counters and left out.
        """
        return read_rows(self._bytes)[0]

    def sync(self) -> None:
        """Waits until the table's current content is on the disk. For a thread of its own. Raises OSError."""
        os.fsync(self._fd)

    def clear(self) -> None:
        """Frees every row, readable or not. For a start, once `read` has been journaled."""
        with self._lock:
            for row in range(self._num_rows):
                word = self._word(row)
                self._words[word + STATE] = self._words[word + STATE_AGAIN] = FREE
            self._free = list(range(self._num_rows - 1, -1, -1))

    def close(self) -> None:
        # A mapping with open views cannot be closed.
        del self._completions, self._completions_again, self._first_token_times
        self._words.release()
        self._bytes.release()
        self._mmap.close()
        os.close(self._fd)

    def _grow(self) -> None:
        """Doubles the table. The old mapping shows the same pages, so a concurrent `free` loses nothing."""
        num_rows = self._num_rows
        self._map(num_rows * 2)
        self._free.extend(range(num_rows * 2 - 1, num_rows - 1, -1))

    def _map(self, num_rows: int) -> None:
        size = HEADER_LEN + num_rows * ROW_LEN
        # Reserved, not sparse: a store into a hole on a full disk would raise SIGBUS.
        os.posix_fallocate(self._fd, 0, size)
        self._mmap = mmap.mmap(self._fd, size)
        self._bytes = memoryview(self._mmap)
        self._words = self._bytes.cast("Q")
        words_RW = np.frombuffer(self._mmap, dtype=np.uint64, offset=HEADER_LEN).reshape(num_rows, ROW_WORDS)
        self._completions, self._first_token_times = words_RW[:, COMPLETION], words_RW[:, FIRST_TOKEN_AT]
        self._completions_again = words_RW[:, COMPLETION_AGAIN]
        self._num_rows = num_rows

    @staticmethod
    def _offset(row: int) -> int:
        return HEADER_LEN + row * ROW_LEN

    @staticmethod
    def _word(row: int) -> int:
        return HEADER_WORDS + row * ROW_WORDS
