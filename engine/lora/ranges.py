"""Allocates ranges of one block of memory, and plans the moves that make a range of a given size free.

Bookkeeping only: callers move the bytes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import NamedTuple

ALIGNMENT = 256
"""Bytes. Every range begins and ends on a multiple, which makes copies between ranges as fast as possible."""


class Move(NamedTuple):
    """Bytes to be copied to a lower address; source and target may overlap."""

    source: int
    target: int
    size: int


def rounded(size: int) -> int:
    """Returns the bytes that a range of `size` bytes takes."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class Ranges:
    """Used and free ranges. Invariants: they tile [0, capacity); no two free ones touch."""

    def __init__(self, capacity: int) -> None:
        """Raises ValueError when negative. Bytes beyond a multiple of `ALIGNMENT` stay unused."""
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
        """Allocates a range in the smallest free one that fits. Returns its start, or None when none fits."""
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
        """Frees a range and joins it with its free neighbours. Returns its size."""
        size = self._remove_used(start)
        self._join(start, size)
        return size

    def plan(self, size: int) -> list[Move]:
        """Returns the moves of the fewest bytes after which `take(size)` succeeds; empty if it does already.

        A run of ranges moves down, in order of address, onto the free bytes among it; what is left free at
        its end is one range. There must be `size` free bytes in all.
        """
        size = rounded(size)
        assert size <= self.num_free, f"{size} bytes requested, {self.num_free} free"
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
        """Records a planned move as done. Moves of a plan are done in order."""
        size = self._remove_used(move.source)
        have = self._remove_free(move.target)
        assert size == move.size
        assert move.target + have == move.source, "a range slides down onto the free bytes before it"
        self._insert_used(move.target, size)
        self._join(move.target + size, have)

    def size(self, start: int) -> int:
        """Returns the size of the range that begins at `start`."""
        return self._used[start]

    def check_integrity(self) -> None:
        """Asserts the invariants. Linear in the number of ranges."""
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
        """Adds a free range, merged with those it touches."""
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
