"""Chooses replicas in a simulation: by the service's own router, at random, or by open requests.

Every policy is one router process: it knows what replicas reported, and what it routed itself.
"""

from __future__ import annotations

import random
from typing import Protocol

from benchmarks.simulation.replica import FluidReplica
from benchmarks.simulation.traffic import SimulatedRequest


class Policy(Protocol):
    """Routes one process's requests."""

    def join(self, replica: FluidReplica, now: float) -> None: ...

    def leave(self, replica: FluidReplica) -> None: ...

    def report(self, replica: FluidReplica, now: float) -> None: ...

    def choose(self, request: SimulatedRequest, now: float) -> tuple[str, object]:
        """Returns the replica's name, and what `first_token` and `ended` are given."""
        ...

    def first_token(self, token: object, seconds: float, now: float) -> None: ...

    def ended(self, token: object, now: float) -> None: ...


class RandomPolicy:
    """Any replica, each as likely as the others."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._names: list[str] = []

    def join(self, replica: FluidReplica, now: float) -> None:
        self._names.append(replica.name)

    def leave(self, replica: FluidReplica) -> None:
        if replica.name in self._names:
            self._names.remove(replica.name)

    def report(self, replica: FluidReplica, now: float) -> None:
        """Needs none."""

    def choose(self, request: SimulatedRequest, now: float) -> tuple[str, object]:
        return self._random.choice(self._names), None

    def first_token(self, token: object, seconds: float, now: float) -> None:
        """Learns nothing."""

    def ended(self, token: object, now: float) -> None:
        """Learns nothing."""


class LeastOpenPolicy:
    """The replica with the fewest requests that this process has open there, as `least_conn` of a proxy."""

    def __init__(self) -> None:
        self._open: dict[str, int] = {}
        # By number of open requests: the replicas that have so many, in the order they came to it.
        self._by_open: list[dict[str, None]] = [{}]

    def join(self, replica: FluidReplica, now: float) -> None:
        self._move(replica.name, self._open.pop(replica.name, None), 0)

    def leave(self, replica: FluidReplica) -> None:
        self._move(replica.name, self._open.pop(replica.name, None), None)

    def report(self, replica: FluidReplica, now: float) -> None:
        """Needs none."""

    def choose(self, request: SimulatedRequest, now: float) -> tuple[str, object]:
        name = next(next(iter(names)) for names in self._by_open if names)
        count = self._open[name]
        self._move(name, count, count + 1)
        return name, name

    def first_token(self, token: object, seconds: float, now: float) -> None:
        """Learns nothing."""

    def ended(self, token: object, now: float) -> None:
        name = str(token)
        count = self._open.get(name, 0)
        if count:  # 0: it has restarted since
            self._move(name, count, count - 1)

    def _move(self, name: str, before: int | None, after: int | None) -> None:
        if before is not None:
            self._by_open[before].pop(name, None)
        if after is None:
            return
        while len(self._by_open) <= after:
            self._by_open.append({})
        self._by_open[after][name] = None
        self._open[name] = after
