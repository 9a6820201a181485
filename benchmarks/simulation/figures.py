"""Collects the figures of a simulated run in bounded memory: histograms of first tokens by second."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LOWEST_S = 1e-3
_BINS_PER_DECADE = 40
_DECADES = 6
_NUM_BINS = _BINS_PER_DECADE * _DECADES
RECOVERED_RATIO = 1.25
"""A second counts as recovered when its p99 is at most so many times that of before the failure."""
RECOVERED_SECONDS = 3
"""So many of them in a row."""
BEFORE_SECONDS = 10
"""A failure is compared with so many seconds before it."""


class FirstTokens:
    """Times to first tokens by the second in which their requests arrived; exact to 6 %."""

    def __init__(self, seconds: float) -> None:
        self._counts: NDArray[np.int64] = np.zeros((math.ceil(seconds) + 1, _NUM_BINS), dtype=np.int64)

    def add(self, arrived_at: float, seconds: float) -> None:
        place = int(_BINS_PER_DECADE * math.log10(max(seconds, _LOWEST_S) / _LOWEST_S))
        self._counts[int(arrived_at), min(place, _NUM_BINS - 1)] += 1

    def quantile_ms(self, share: float, begin: float, end: float) -> float | None:
        """Returns a quantile over requests that arrived in [begin, end); None: there are none."""
        return _quantile(self._counts[int(begin) : math.ceil(end)].sum(axis=0), share)

    def recovery_seconds(self, failed_at: float, end: float) -> float | None:
        """Returns the seconds after a failure until p99 is what it was before; None: not until `end`."""
        before = self.quantile_ms(0.99, max(0.0, failed_at - BEFORE_SECONDS), failed_at)
        if before is None:
            return None
        in_a_row = 0
        for second in range(int(failed_at), int(end)):
            p99 = _quantile(self._counts[second], 0.99)
            in_a_row = in_a_row + 1 if p99 is not None and p99 <= RECOVERED_RATIO * before else 0
            if in_a_row == RECOVERED_SECONDS:
                return float(second - RECOVERED_SECONDS + 1) - failed_at
        return None


def _quantile(counts: NDArray[np.int64], share: float) -> float | None:
    sums = np.cumsum(counts)
    if not sums[-1]:
        return None
    place = int(np.searchsorted(sums, share * sums[-1]))
    return round(1e3 * _LOWEST_S * 10 ** ((place + 0.5) / _BINS_PER_DECADE), 1)


def described(values: dict[str, Any]) -> dict[str, Any]:
    """Rounds what a report shows."""
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in values.items()}
