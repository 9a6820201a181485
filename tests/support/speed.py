"""Time held against time: what a piece of code takes as a multiple of another, measured in the same run.

A bar in microseconds is about the machine too; a ratio is about our code alone. Both pieces run in turns and
the best of each counts, so that a slow machine slows both and a busy moment harms neither.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

BENCHMARKS_SECONDS = 0.0045
"""What 100 000 calls of nothing take on the machine of the benchmarks."""


def times_as_long(
    piece: Callable[[], object], than: Callable[[], object], rounds: int = 100, enough: float = 0.0
) -> float:
    """How many times as long `piece` takes as `than`; measured no more once it is not above `enough`."""
    best = yardstick = float("inf")
    for _ in range(rounds):
        best = min(best, _seconds(piece))
        yardstick = min(yardstick, _seconds(than))
        if best <= enough * yardstick:
            break
    return best / yardstick


async def awaited_times_as_long(
    piece: Callable[[], Awaitable[object]], than: Callable[[], object], rounds: int = 100, enough: float = 0.0
) -> float:
    """The same of what is awaited."""
    best = yardstick = float("inf")
    for _ in range(rounds):
        began = time.perf_counter()
        await piece()
        best = min(best, time.perf_counter() - began)
        yardstick = min(yardstick, _seconds(than))
        if best <= enough * yardstick:
            break
    return best / yardstick


def calls_of_nothing(num_calls: int) -> Callable[[], None]:
    """A loop of calls that do nothing: the yardstick for what Python does per row or byte."""

    def nothing(_first: int, _second: int) -> None:
        pass

    def calls() -> None:
        for number in range(num_calls):
            nothing(number, 1)

    return calls


@functools.cache
def slowness() -> float:
    """How many times as long as the machine of the benchmarks this one takes for the same Python; at least 1.

    What is promised in seconds is promised of that machine. Measured once, which takes a tenth of a second.
    """
    return max(1.0, min(_seconds(calls_of_nothing(100_000)) for _ in range(20)) / BENCHMARKS_SECONDS)


def seconds_kept_waiting(processes: Iterable[int]) -> float:
    """How long the main threads of these processes have been ready to run so far while others had the
    processors. Linux says so: the second figure of `/proc/PID/schedstat`, in nanoseconds.
    """
    return sum(_kept_waiting(process) for process in processes)


def _kept_waiting(process: int) -> float:
    try:
        return int(Path(f"/proc/{process}/schedstat").read_text().split()[1]) / 10**9
    except FileNotFoundError:  # it has ended
        return 0.0


def _seconds(piece: Callable[[], object]) -> float:
    began = time.perf_counter()
    piece()
    return time.perf_counter() - began
