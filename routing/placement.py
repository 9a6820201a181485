"""Assigns adapters to replicas by weighted rendezvous hashing: the replicas that hold an adapter are its
homes.

Every router computes the same order of replicas for an adapter, without agreement and without a table of all
adapters. An adapter's homes are the first of that order, as many as it has copies. When a replica leaves,
only the adapters that it held move, each to the next in its order; when it returns, they move back.

Orders are computed for partitions, not for adapters: there are few enough partitions to remember their
orders, so a look-up costs as much as its copies, however many replicas there are. An order that is remembered
is computed anew only if a replica that left is in it, or one that joined belongs into it.
"""

from __future__ import annotations

import heapq
import math
import zlib
from collections.abc import Mapping
from hashlib import blake2b

from routing.demand import AdapterDemand

PARTITIONS = 1 << 16
ORDER_LEN = 4
"""Replicas of an order that are remembered at least."""
MAX_CHANGES = 256
"""Changes of the replicas after which orders that were not used since are computed anew."""
_MASK = (1 << 64) - 1


def _partition(adapter: str) -> int:
    return zlib.crc32(adapter.encode()) % PARTITIONS


def _seed(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest())


def _distance(seed: int, weight: float, partition: int) -> float:
    """Returns an exponentially distributed number with rate `weight`, fixed by seed and partition: the
    replica with the smallest comes first, which happens in proportion to the weights.

    The mixing function is SplitMix64's.
    """
    mixed = (seed + partition * 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    mixed ^= mixed >> 31
    return -math.log((mixed + 1) / (_MASK + 2)) / weight


class _Order:
    """The first replicas of a partition's order."""

    __slots__ = ("names", "num_changes")

    def __init__(self, names: tuple[str, ...], num_changes: int) -> None:
        self.names = names
        self.num_changes = num_changes
        """Changes of the replicas that it takes into account."""


class Placement:
    """The homes of adapters on the replicas that are live."""

    def __init__(self, demand: AdapterDemand) -> None:
        self._demand = demand
        # Seed and weight by name.
        self._live: dict[str, tuple[int, float]] = {}
        self._orders: dict[int, _Order] = {}
        # The latest changes: the replica, its seed and its weight; weight 0: it left.
        self._changes: list[tuple[str, int, float]] = []
        self._num_changes = 0
        self._pinned: dict[str, int] = {}

    @property
    def live(self) -> Mapping[str, tuple[int, float]]:
        """The live replicas, by name."""
        return self._live

    def join(self, name: str, weight: float = 1.0) -> None:
        """Adds a live replica. Raises ValueError for a weight that is not positive."""
        if weight <= 0:
            raise ValueError(f"weight of replica {name!r} is {weight:g}: give a positive number")
        if name not in self._live:
            seed = _seed(name)
            self._live[name] = seed, weight
            self._changed(name, seed, weight)

    def leave(self, name: str) -> None:
        """Removes a replica, if it is live."""
        if self._live.pop(name, None) is not None:
            self._changed(name, 0, 0.0)

    def pin(self, adapter: str, copies: int) -> None:
        """Gives the adapter at least this many homes, whatever its demand; 0 ends that."""
        if copies > 0:
            self._pinned[adapter] = copies
        else:
            self._pinned.pop(adapter, None)

    def copies(self, adapter: str) -> int:
        """Returns how many homes the adapter has."""
        wanted = max(self._demand.copies(adapter), self._pinned.get(adapter, 0))
        return min(wanted, len(self._live))

    def homes(self, adapter: str) -> tuple[str, ...]:
        """Returns the adapter's homes, in its order; none without live replicas."""
        return self.order(adapter, self.copies(adapter))

    def would_hold(self, name: str, adapter: str, weight: float = 1.0) -> bool:
        """Returns whether a replica that is not live would be a home of the adapter if it joined."""
        wanted = max(self._demand.copies(adapter), self._pinned.get(adapter, 0))
        homes = self.order(adapter, wanted)
        if len(homes) < wanted:
            return True
        partition = _partition(adapter)
        return _distance(_seed(name), weight, partition) < _distance(*self._live[homes[-1]], partition)

    def order(self, adapter: str, count: int) -> tuple[str, ...]:
        """Returns the first `count` live replicas in the adapter's order, or all."""
        partition = _partition(adapter)
        order = self._orders.get(partition)
        count = min(count, len(self._live))
        if order is None or len(order.names) < count or not self._still_holds(partition, order):
            order = self._computed(partition, max(count, ORDER_LEN))
            self._orders[partition] = order
        return order.names[:count]

    def _computed(self, partition: int, length: int) -> _Order:
        nearest = heapq.nsmallest(
            length, self._live, key=lambda name: _distance(*self._live[name], partition)
        )
        return _Order(tuple(nearest), self._num_changes)

    def _still_holds(self, partition: int, order: _Order) -> bool:
        """Returns whether no change since the order was computed concerns it."""
        num_missed = self._num_changes - order.num_changes
        if not num_missed:
            return True
        if num_missed > len(self._changes) or len(order.names) < ORDER_LEN:
            return False
        last: float | None = None
        for name, seed, weight in self._changes[-num_missed:]:
            if name in order.names:
                return False
            if weight:
                if last is None:
                    last = self._last_distance(partition, order)
                if last is None or _distance(seed, weight, partition) < last:
                    return False
        order.num_changes = self._num_changes
        return True

    def _last_distance(self, partition: int, order: _Order) -> float | None:
        """Returns the distance of the last replica of the order; None if it is not live."""
        last = self._live.get(order.names[-1])
        return None if last is None else _distance(*last, partition)

    def _changed(self, name: str, seed: int, weight: float) -> None:
        self._num_changes += 1
        self._changes.append((name, seed, weight))
        if len(self._changes) > MAX_CHANGES:
            del self._changes[: MAX_CHANGES // 2]
