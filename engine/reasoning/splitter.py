"""Separates a choice's thinking from its answer, in a stream of bytes, however the stream is cut into tokens.

The engine and the API use the same splitter, so that both agree on where the answer begins.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Markers(NamedTuple):
    """The texts between which a model thinks, such as `<think>` and `</think>`. Neither is empty."""

    start: bytes
    end: bytes


class Split(NamedTuple):
    """What is certain after some more bytes. Thinking comes first; markers are in neither."""

    thinking: bytes
    answer: bytes


class Phase(Enum):
    UNDECIDED = "undecided"
    """Nothing, or only white space and a part of the start marker, has been read."""
    THINKING = "thinking"
    ANSWERING = "answering"


_NOTHING = Split(b"", b"")


class ThinkingSplitter:
    """Reads one choice. A model thinks at most once, before its answer.

    White space around the thinking is dropped; white space before the answer is, too, unless `is_exact`.
    """

    __slots__ = ("_at_edge", "_held", "_is_exact", "_markers", "has_thought", "phase")

    def __init__(self, markers: Markers, is_open: bool, is_exact: bool = False) -> None:
        """`is_open`: the prompt ends within thinking. `is_exact`: every byte after the end marker belongs to
        the answer.
        """
        self._markers = markers
        self._is_exact = is_exact
        self._held = b""
        self._at_edge = True
        """White space that comes next is dropped."""
        self.phase = Phase.THINKING if is_open else Phase.UNDECIDED
        self.has_thought = is_open

    @property
    def held(self) -> bytes:
        """Bytes that may be part of a marker, or white space before one."""
        return self._held

    def push(self, data: bytes) -> Split:
        """Reads `data`. Returns what has become certain."""
        if self.phase is Phase.ANSWERING and not self._at_edge:
            return Split(b"", data)
        data, self._held = self._held + data, b""
        if self.phase is Phase.UNDECIDED:
            begun = data.lstrip()
            start = self._markers.start
            if not begun.startswith(start):
                if start.startswith(begun):
                    self._held = data
                    return _NOTHING
                self.phase, self._at_edge = Phase.ANSWERING, False
                return Split(b"", data)
            self.phase, self.has_thought = Phase.THINKING, True
            data = begun[len(start) :]
        thinking = b""
        if self.phase is Phase.THINKING:
            thinking, data = self._read_thinking(data)
        if self.phase is Phase.ANSWERING:
            data = self._read_answer(data)
        return Split(thinking, data)

    def finish(self) -> Split:
        """Returns the bytes that were held: nothing follows."""
        held, self._held = self._held, b""
        return Split(held, b"") if self.phase is Phase.THINKING else Split(b"", held)

    def _read_thinking(self, data: bytes) -> tuple[bytes, bytes]:
        """Returns (thinking that is certain, what follows its end)."""
        if self._at_edge:
            data = data.lstrip()
            self._at_edge = not data
        end = self._markers.end
        place = data.find(end)
        if place >= 0:
            self.phase, self._at_edge = Phase.ANSWERING, not self._is_exact
            return data[:place].rstrip(), data[place + len(end) :]
        certain = data[: len(data) - begun_len(data, end)].rstrip()
        self._held = data[len(certain) :]
        return certain, b""

    def _read_answer(self, data: bytes) -> bytes:
        if self._at_edge:
            data = data.lstrip()
            self._at_edge = not data
        return data


def begun_len(data: bytes, marker: bytes) -> int:
    """Returns how many bytes at the end of `data` may begin `marker`, which is not in `data`."""
    longest = min(len(data), len(marker) - 1)
    if marker[0] not in data[len(data) - longest :]:
        return 0  # nearly every token
    for length in range(longest, 0, -1):
        if data.endswith(marker[:length]):
            return length
    return 0
