"""Time held against time: what a piece of code takes as a multiple of another, measured in the same run.

A bar in microseconds is about the machine too; a ratio is about our code alone. Both pieces run in turns and
the best of each counts, so that a slow machine slows both and a busy moment harms neither.
"""

from __future__ import annotations

import time
from collections.abc import Callable


def times_as_long(piece: Callable[[], object], than: Callable[[], object], rounds: int = 100) -> float:
    """How many times as long `piece` takes as `than`."""
    best, yardstick = best_seconds(piece, than, rounds=rounds)
    return best / yardstick


def best_seconds(*pieces: Callable[[], object], rounds: int = 100) -> list[float]:
    """The least that each piece took, in its turn."""
    best = [float("inf")] * len(pieces)
    for _ in range(rounds):
        for number, piece in enumerate(pieces):
            began = time.perf_counter()
            piece()
            best[number] = min(best[number], time.perf_counter() - began)
    return best


def calls_of_nothing(num_calls: int) -> Callable[[], None]:
    """A loop of calls that do nothing: the yardstick for what Python does per row."""

    def nothing(_first: int, _second: int) -> None:
        pass

    def calls() -> None:
        for number in range(num_calls):
            nothing(number, 1)

    return calls
