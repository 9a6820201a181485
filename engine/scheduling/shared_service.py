"""Counts what tenants are served by other engines of the base, so that shares hold over all engines together.

Each engine reports in its heartbeat how fast it serves its tenants (`rates`). An API process adds up, for
each engine, what its tenants are served by the others, and sends that (`note_elsewhere`). From then on the
queue charges a tenant for what it receives here as if it had received all of it here: a tenant that many
engines serve waits behind one that only this engine serves.

Reports are rates and not amounts, so that one that is lost, repeated, or sent by several API processes
changes nothing. Whatever is reported, a tenant keeps a share of `1 / MAX_FACTOR` of another one's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from engine.gauges import MAX_SERVED, TenantService
from engine.protocol import PriorityClass
from engine.scheduling.fairness import FairQueue

WINDOW_S = 1.0
"""Over which service is measured."""
VALID_S = 3.0
"""After which a report counts no more, if no other has come."""
MAX_FACTOR = 10.0

_Share = tuple[PriorityClass, str]


class SharedService:
    """Measures the service of a queue's tenants, and makes it dearer to those that are served elsewhere."""

    def __init__(self, queue: FairQueue, monotonic: Callable[[], float]) -> None:
        self._queue = queue
        self._monotonic = monotonic
        self._measured_at = monotonic()
        self._served_here: dict[_Share, float] = {}
        """When it was measured last, of the tenants that the queue knew then."""
        self._here: dict[_Share, float] = {}
        """Rates, of tenants that were served within the last window."""
        self._rates: list[TenantService] = []
        self._noted_at: dict[_Share, float] = {}
        """Of the tenants with a factor: when other engines were said to serve them."""

    def rates(self) -> list[TenantService]:
        """Returns the service that this engine gives its tenants per second, of at most MAX_SERVED tenants,
        those that receive most first. Measured anew once `WINDOW_S` has passed.
        """
        now = self._monotonic()
        if now - self._measured_at >= WINDOW_S:
            self._measure(now - self._measured_at)
            self._measured_at = now
            self._forget_old(now)
        return self._rates

    def note_elsewhere(self, rates: Iterable[TenantService]) -> None:
        """Takes the rates at which other engines serve this engine's tenants."""
        now = self._monotonic()
        for one in rates:
            try:
                share = PriorityClass(one.priority), one.tenant
            except ValueError:
                continue  # of a later release
            here, tenant = self._here.get(share), self._queue.tenants(share[0]).get(one.tenant)
            if here is None or tenant is None or not one.rate > 0:
                continue
            tenant.set_cost_factor(min(MAX_FACTOR, 1.0 + one.rate / here))
            self._noted_at[share] = now

    def _measure(self, seconds: float) -> None:
        before, self._served_here, self._here = self._served_here, {}, {}
        for priority in PriorityClass:
            for name, tenant in self._queue.tenants(priority).items():
                share = priority, name
                served = self._served_here[share] = tenant.served_here()
                gained = served - before.get(share, 0.0)
                if gained > 0:
                    self._here[share] = gained / seconds
        found = [TenantService(name, priority, rate) for (priority, name), rate in self._here.items()]
        found.sort(key=lambda one: -one.rate)
        self._rates = found[:MAX_SERVED]

    def _forget_old(self, now: float) -> None:
        for share in [share for share, noted_at in self._noted_at.items() if now - noted_at > VALID_S]:
            del self._noted_at[share]
            tenant = self._queue.tenants(share[0]).get(share[1])
            if tenant is not None:
                tenant.set_cost_factor(1.0)
