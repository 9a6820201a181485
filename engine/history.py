"""What the steps of the last minutes were like, second by second.

Owns a ring of seconds and the times of steps. What it keeps is bounded, and what it costs a step is a few
additions; percentiles are found once a second, from counts by logarithm. Refuses to know requests, and who
asks.
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
"""That are kept: five minutes."""

_PER_E = 20.0
"""Buckets of times for each factor of e: 5 % wide, so that a bucket's middle is within 3 % of the truth."""
_NO_CLASS = (0,) * len(PriorityClass)


class Totals(NamedTuple):
    """Counters kept elsewhere: a second is told by how they changed in it."""

    completion_tokens: int
    prompt_tokens: int
    cached_tokens: int
    preemptions: int
    shed: int
    adapter_loads: int
    adapter_evictions: int


class Levels(NamedTuple):
    """Gauges kept elsewhere: a second is told by what they were at its end."""

    blocks_used: int
    waiting: list[int]


class StepHistory:
    """One thread's. A step is `planned`; then, before what it came to is counted, `ending`; then `ended`."""

    def __init__(
        self,
        totals: Callable[[], Totals],
        levels: Callable[[], Levels],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock` gives Unix seconds."""
        self.last_prefill = list(_NO_CLASS)
        """Tokens of the step planned last, by class."""
        self.last_decode = list(_NO_CLASS)
        """Rows of it that decoded."""
        self._totals = totals
        self._levels = levels
        self._clock = clock
        self._kept: deque[tuple[StepSecond, dict[int, int]]] = deque()
        self._all_times: dict[int, int] = {}
        """Steps kept, by bucket of their time."""
        self._second = int(clock())
        self._before = totals()
        self._clear()

    def planned(self, prefill: list[int], decode: list[int]) -> None:
        """A step with so many tokens of prompts and so many rows that decode, by class."""
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
        """What is counted from here on counts to this second."""
        now = int(self._clock())
        if now != self._second:
            self._close(now)

    def ended(self, seconds: float) -> None:
        """It took so long."""
        self._steps += 1
        self._step_seconds += seconds
        bucket = math.floor(math.log(seconds) * _PER_E) if seconds > 0.0 else -1000
        times = self._times
        times[bucket] = times.get(bucket, 0) + 1

    def seconds(self) -> list[StepSecond]:
        """Those that are over, in order; without those in which no step ended."""
        self.ending()
        return [second for second, _ in self._kept]

    def percentiles(self, *shares: float) -> list[float]:
        """Of the times of all steps that are kept, in seconds; 0 where there are none."""
        return _percentiles(self._all_times, shares)

    def _clear(self) -> None:
        self._steps = 0
        self._step_seconds = 0.0
        self._prefill = list(_NO_CLASS)
        self._decode = list(_NO_CLASS)
        self._times: dict[int, int] = {}

    def _close(self, now: int) -> None:
        """The second is over: keep it, and let go of what is too old."""
        totals, before, times = self._totals(), self._before, self._times
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
            self._kept.append((second, times))
            for bucket, count in times.items():
                self._all_times[bucket] = self._all_times.get(bucket, 0) + count
        self._second, self._before = now, totals
        self._clear()
        kept = self._kept
        while kept and (kept[0][0].at < now - NUM_SECONDS or len(kept) > NUM_SECONDS):
            self._forget(kept.popleft()[1])

    def _forget(self, times: dict[int, int]) -> None:
        for bucket, count in times.items():
            self._all_times[bucket] -= count
            if not self._all_times[bucket]:
                del self._all_times[bucket]


def _percentiles(times: dict[int, int], shares: Sequence[float]) -> list[float]:
    """Of times counted by bucket, each to within half a bucket."""
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
