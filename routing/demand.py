"""Measures how much each adapter is in demand, and how many replicas should hold it.

Demand is the number of requests on an adapter that are open at the same time, averaged over half a minute.
Each copy is to serve a share of a replica's rows; an adapter gets another copy when its copies have more than
that, and loses one only when it would do with half of them, so that copies do not come and go.
"""

from __future__ import annotations

import math
from collections import OrderedDict

AVERAGED_OVER = 30.0
"""Seconds, the time constant of the average."""
COPY_SHARE = 0.25
"""Share of a replica's rows that one copy of an adapter is to serve."""
SHRINK_FACTOR = 2.0
"""Copies are dropped once this many times the demand would need fewer."""
MAX_TRACKED = 65_536
"""Adapters that are tracked; others have one copy."""
EVICTIONS_TRIED = 8


class _Demand:
    """One adapter's."""

    __slots__ = ("at", "copies", "num_open", "rows")

    def __init__(self, now: float) -> None:
        self.num_open = 0
        self.rows = 0.0
        """`num_open`, averaged."""
        self.at = now
        self.copies = 1


class AdapterDemand:
    """Demand by adapter, in bounded memory: the adapters that were in demand last."""

    def __init__(self, max_tracked: int = MAX_TRACKED) -> None:
        self.rows_per_replica = 256
        self.scale = 1.0
        """All requests of the service, relative to those counted here: other routers have their own."""
        self._max_tracked = max_tracked
        self._tracked: OrderedDict[str, _Demand] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tracked)

    def began(self, adapter: str, now: float) -> None:
        """Counts a request on the adapter as open."""
        demand = self._tracked.get(adapter)
        if demand is None:
            self._make_room()
            demand = self._tracked[adapter] = _Demand(now)
        else:
            self._tracked.move_to_end(adapter)
        self._average(demand, now)
        demand.num_open += 1

    def ended(self, adapter: str, now: float) -> None:
        """Counts a request on the adapter as ended."""
        demand = self._tracked.get(adapter)
        if demand is not None and demand.num_open:
            self._average(demand, now)
            demand.num_open -= 1

    def copies(self, adapter: str) -> int:
        """Returns how many replicas should hold the adapter."""
        demand = self._tracked.get(adapter)
        return 1 if demand is None else demand.copies

    def _average(self, demand: _Demand, now: float) -> None:
        passed = max(0.0, now - demand.at)
        demand.rows += (demand.num_open - demand.rows) * (1.0 - math.exp(-passed / AVERAGED_OVER))
        demand.at = max(demand.at, now)
        needed = demand.rows * self.scale / max(1.0, COPY_SHARE * self.rows_per_replica)
        if needed > demand.copies:
            demand.copies = math.ceil(needed)
        elif SHRINK_FACTOR * needed < demand.copies - 1:
            demand.copies = max(1, math.ceil(SHRINK_FACTOR * needed))

    def _make_room(self) -> None:
        """Drops the adapter that was in demand the longest ago, if possible one without open requests."""
        if len(self._tracked) < self._max_tracked:
            return
        for _ in range(EVICTIONS_TRIED):
            adapter, demand = next(iter(self._tracked.items()))
            if not demand.num_open:
                break
            self._tracked.move_to_end(adapter)
        self._tracked.popitem(last=False)
