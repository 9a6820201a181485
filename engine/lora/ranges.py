"""Ranges of one block of memory: who has which, which are free, and what to move so that a range fits.

Owns the bookkeeping alone. Refuses to know what lies in the memory, and moves nothing itself.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import NamedTuple

ALIGNMENT = 256
"""Bytes. Every range begins and ends on a multiple: a copy between ranges is then as fast as it can be."""


class Move(NamedTuple):
    """Bytes to be copied to a lower address; source and target may overlap."""

    source: int
    target: int
    size: int


def rounded(size: int) -> int:
    """What a range of `size` bytes takes."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class Ranges:
    """Invariants: used and free ranges tile [0, capacity); no two free ones touch."""

    def __init__(self, capacity: int) -> None:
        """Raises ValueError when negative. What is over a multiple of `ALIGNMENT` is left unused."""
        if capacity < 0:
            raise ValueError(f"capacity must not be negative, not {capacity}")
        self.capacity = capacity // ALIGNMENT * ALIGNMENT
        self.num_free = 0
        self._used: dict[int, int] = {}
        """Size by start."""
        self._starts: list[int] = []
        """Of used ranges, in order."""
        self._free: dict[int, int] = {}
        self._free_starts: list[int] = []
        if self.capacity:
            self._insert_free(0, self.capacity)

    def take(self, size: int) -> int | None:
        """Start of a new range in the smallest free one that fits, or None when none does."""
        size = rounded(size)
        assert size > 0, "a range has at least one byte"
        best = min(((have, start) for start, have in self._free.items() if have >= size), default=None)
        if best is None:
            return None
        have, start = best
        self._remove_free(start)
        self._insert_used(start, size)
        if have > size:
            self._insert_free(start + size, have - size)
        return start

    def give(self, start: int) -> int:
        """Free a range, joined with its free neighbours. Returns its size."""
        size = self._remove_used(start)
        self._join(start, size)
        return size

    def plan(self, size: int) -> list[Move]:
        """The moves of least bytes after which `take(size)` succeeds; empty if it does already.

        A run of ranges slides down, in order of address, onto the free bytes among it; what is left free at
        its end is one range. There must be `size` free bytes in all.
        """
        size = rounded(size)
        assert size <= self.num_free, f"{size} bytes asked, {self.num_free} free"
        if any(have >= size for have in self._free.values()):
            return []
        holes = self._free_starts
        best: tuple[int, int, int] | None = None
        first, free = 0, 0
        for last, hole in enumerate(holes):
            free += self._free[hole]
            while free - self._free[holes[first]] >= size:
                free -= self._free[holes[first]]
                first += 1
            if free >= size:
                moved = hole + self._free[hole] - holes[first] - free
                candidate = (moved, first, last)
                best = candidate if best is None else min(best, candidate)
        assert best is not None
        _, first, last = best
        target = holes[first]
        moves = []
        for start in self._starts[bisect_left(self._starts, target) : bisect_left(self._starts, holes[last])]:
            moves.append(Move(start, target, self._used[start]))
            target += self._used[start]
        return moves

    def move(self, move: Move) -> None:
        """Take a planned move as done: the first of a plan, or the one after the last done."""
        size = self._remove_used(move.source)
        have = self._remove_free(move.target)
        assert size == move.size
        assert move.target + have == move.source, "a range slides down onto the free bytes before it"
        self._insert_used(move.target, size)
        self._join(move.target + size, have)

    def size(self, start: int) -> int:
        """Of the range that begins there."""
        return self._used[start]

    def check_integrity(self) -> None:
        """Assert the invariants. Linear in the number of ranges."""
        assert self._starts == sorted(self._used)
        assert self._free_starts == sorted(self._free)
        tiles = [(start, size, True) for start, size in self._used.items()]
        tiles += [(start, size, False) for start, size in self._free.items()]
        end, was_free = 0, False
        for start, size, used in sorted(tiles):
            assert start == end, "ranges overlap or leave a gap"
            assert size > 0
            assert size % ALIGNMENT == 0
            assert used or not was_free, "two free ranges touch"
            end, was_free = start + size, not used
        assert end == self.capacity
        assert self.num_free == sum(self._free.values())

    def _join(self, start: int, size: int) -> None:
        """A new free range, as one with those it touches."""
        index = bisect_left(self._free_starts, start)
        if index and (before := self._free_starts[index - 1]) + self._free[before] == start:
            size += self._remove_free(before)
            start = before
        if start + size in self._free:
            size += self._remove_free(start + size)
        self._insert_free(start, size)

    def _insert_free(self, start: int, size: int) -> None:
        self._free[start] = size
        insort(self._free_starts, start)
        self.num_free += size

    def _remove_free(self, start: int) -> int:
        size = self._free.pop(start)
        del self._free_starts[bisect_left(self._free_starts, start)]
        self.num_free -= size
        return size

    def _insert_used(self, start: int, size: int) -> None:
        self._used[start] = size
        insort(self._starts, start)

    def _remove_used(self, start: int) -> int:
        size = self._used.pop(start)
        del self._starts[bisect_left(self._starts, start)]
        return size
