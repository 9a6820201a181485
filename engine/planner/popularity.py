"""Models how requests spread over adapters: Zipf's law, distinct adapters per batch, and cache misses.

Requests ask for the k-th most popular of n adapters in proportion to 1 / k^exponent. The adapters of the tail
are taken together in groups of nearly equal popularity, so that a million of them cost as much as a thousand.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

_SINGLE = 1000
"""So many of the most popular adapters are counted one by one."""
_GROUPS_PER_DOUBLING = 64


class Popularity:
    """Zipf's law over `count` adapters."""

    def __init__(self, count: int, exponent: float) -> None:
        self.count = count
        edges = _edges(count)
        self._sizes = np.diff(edges).astype(np.float64)
        middles = (edges[:-1] + edges[1:] - 1) / 2 + 1
        weights = middles**-exponent
        total = float((weights * self._sizes).sum())
        self._shares = weights / total if count else weights

    @property
    def largest_share(self) -> float:
        """Returns the share of requests that the most popular adapter gets."""
        return float(self._shares[0]) if self.count else 0.0

    def distinct(self, rows: ArrayLike) -> NDArray[np.float64]:
        """Returns how many different adapters `rows` requests use, on average."""
        wanted = np.atleast_1d(np.asarray(rows, dtype=np.float64))
        if not self.count:
            return np.zeros_like(wanted)
        missed = np.exp(np.outer(wanted, np.log1p(-np.minimum(self._shares, 1 - 1e-12))))
        return ((1 - missed) * self._sizes).sum(axis=1)

    def miss_share(self, capacity: float) -> float:
        """Returns the share of requests whose adapter an LRU cache of `capacity` adapters lacks.

        Che's approximation: an adapter stays for a characteristic time t after its last request, the same
        for all, at which the expected number of cached adapters is the capacity.
        """
        if self.count <= capacity:
            return 0.0
        if capacity <= 0:
            return 1.0
        low, high = 0.0, 1.0
        while self._cached(high) < capacity:
            high *= 2
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self._cached(middle) < capacity else (low, middle)
        return float((self._sizes * self._shares * np.exp(-self._shares * high)).sum())

    def _cached(self, characteristic_time: float) -> float:
        return float((self._sizes * -np.expm1(-self._shares * characteristic_time)).sum())


def _edges(count: int) -> NDArray[np.int64]:
    """Returns the places at which groups begin, and `count`."""
    singles = np.arange(min(count, _SINGLE) + 1)
    if count <= _SINGLE:
        return singles
    num_groups = int(np.ceil(_GROUPS_PER_DOUBLING * np.log2(count / _SINGLE)))
    groups = np.unique(np.rint(np.geomspace(_SINGLE, count, num_groups + 1)).astype(np.int64))
    return np.concatenate([singles[:-1], groups])
