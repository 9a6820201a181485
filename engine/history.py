"""Keeps statistics of the last five minutes of steps, one record per second.

The record is bounded, and costs a step a few additions; percentiles are computed once a second from a
histogram with logarithmic buckets.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from engine.gauges import StepSecond
from engine.protocol import PriorityClass

NUM_SECONDS = 300
"""Seconds that are kept: five minutes."""

_PER_E = 20.0
"""Buckets per factor of e: each is 5 % wide, so that its middle is within 3 % of the true time."""
_NO_CLASS = (0,) * len(PriorityClass)


class Totals(NamedTuple):
    """Counters kept elsewhere: a second's record has the change during it."""

    completion_tokens: int
    prompt_tokens: int
    cached_tokens: int
    preemptions: int
    shed: int
    adapter_loads: int
    adapter_evictions: int


class Levels(NamedTuple):
    """Gauges kept elsewhere: a second's record has their value at its end."""

    blocks_used: int
    waiting: list[int]


class StepHistory:
    """Records steps, from one thread. Call `planned` for each step, `ending` before its results are counted,
    then `ended`.
    """

    def __init__(
        self,
        totals: Callable[[], Totals],
        levels: Callable[[], Levels],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock` returns Unix seconds."""
        self.last_prefill = list(_NO_CLASS)
        """Tokens of the last planned step, by class."""
        self.last_decode = list(_NO_CLASS)
        """Decoding rows of the last planned step, by class."""
        self._totals = totals
        self._levels = levels
        self._clock = clock
        self._seconds: deque[tuple[StepSecond, dict[int, int]]] = deque()
        self._all_times: dict[int, int] = {}
        """Number of kept steps by time bucket."""
        self._second = int(clock())
        self._last_totals = totals()
        self._clear()

    def planned(self, prefill: list[int], decode: list[int]) -> None:
        """Records a step with these numbers of prompt tokens and decoding rows, by class."""
        self.last_prefill, self.last_decode = prefill, decode
        sums = self._prefill
        sums[0] += prefill[0]
        sums[1] += prefill[1]
        sums[2] += prefill[2]
        sums = self._decode
        sums[0] += decode[0]
        sums[1] += decode[1]
        sums[2] += decode[2]

    def ending(self) -> None:
        """Closes the current second if it is over: what is counted from here on belongs to this second."""
        now = int(self._clock())
        if now != self._second:
            self._close(now)

    def ended(self, seconds: float) -> None:
        """Records how long the step took."""
        self._steps += 1
        self._step_seconds += seconds
        bucket = math.floor(math.log(seconds) * _PER_E) if seconds > 0.0 else -1000
        times = self._times
        times[bucket] = times.get(bucket, 0) + 1

    def seconds(self) -> list[StepSecond]:
        """Returns the completed seconds in which steps ended, in order."""
        self.ending()
        return [second for second, _ in self._seconds]

    def percentiles(self, *shares: float) -> list[float]:
        """Returns percentiles of the times of all kept steps, in seconds; 0 where there are none."""
        return _percentiles(self._all_times, shares)

    def _clear(self) -> None:
        self._steps = 0
        self._step_seconds = 0.0
        self._prefill = list(_NO_CLASS)
        self._decode = list(_NO_CLASS)
        self._times: dict[int, int] = {}

    def _close(self, now: int) -> None:
        """Records the second that is over, and drops seconds that are too old."""
        totals, before, times = self._totals(), self._last_totals, self._times
        if self._steps or totals != before:
            p50, p99 = _percentiles(times, (0.5, 0.99))
            levels = self._levels()
            changes = Totals(*(new - old for new, old in zip(totals, before, strict=True)))
            second = StepSecond(
                at=self._second,
                steps=self._steps,
                step_seconds=self._step_seconds,
                p50=p50,
                p99=p99,
                prefill_tokens=self._prefill,
                decode_rows=self._decode,
                blocks_used=levels.blocks_used,
                waiting=levels.waiting,
                **changes._asdict(),
            )
            self._seconds.append((second, times))
            for bucket, count in times.items():
                self._all_times[bucket] = self._all_times.get(bucket, 0) + count
        self._second, self._last_totals = now, totals
        self._clear()
        kept = self._seconds
        while kept and (kept[0][0].at < now - NUM_SECONDS or len(kept) > NUM_SECONDS):
            self._forget(kept.popleft()[1])

    def _forget(self, times: dict[int, int]) -> None:
        for bucket, count in times.items():
            self._all_times[bucket] -= count
            if not self._all_times[bucket]:
                del self._all_times[bucket]


def _percentiles(times: dict[int, int], shares: Sequence[float]) -> list[float]:
    """Returns percentiles of times counted by bucket, each to within half a bucket."""
    total = sum(times.values())
    if not total:
        return [0.0] * len(shares)
    ordered = sorted(times.items())
    found = []
    for share in shares:
        left = int(share * (total - 1))
        bucket = next(bucket for bucket, count in ordered if (left := left - count) < 0)
        found.append(math.exp((bucket + 0.5) / _PER_E))
    return found
