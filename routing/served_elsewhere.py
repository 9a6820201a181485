"""Adds up what tenants are served by all engines of a base but one, so that each engine can count it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from engine.protocol import TenantService

_Share = tuple[str, str]
"""Tenant and service class."""
_ROUNDING = 1e-6
"""What sums and differences of rates may leave of nothing."""


class ServedElsewhere:
    """The rates at which engines said that they serve tenants."""

    def __init__(self) -> None:
        self._rates: dict[str, dict[_Share, float]] = {}
        """By engine."""
        self._totals: dict[_Share, float] = {}

    def report(self, engine: str, served: Iterable[TenantService]) -> None:
        """Replaces what an engine said. Rates that are no amounts are ignored."""
        self.leave(engine)
        own = self._rates[engine] = {
            (one.tenant, one.priority): one.rate for one in served if 0 < one.rate < math.inf
        }
        for share, rate in own.items():
            self._totals[share] = self._totals.get(share, 0.0) + rate

    def leave(self, engine: str) -> None:
        """Forgets an engine. Unknown ones are ignored."""
        for share, rate in self._rates.pop(engine, {}).items():
            rest = self._totals.get(share, 0.0) - rate
            if rest > _ROUNDING:
                self._totals[share] = rest
            else:
                self._totals.pop(share, None)

    def of(self, engine: str) -> list[TenantService]:
        """Returns the rates at which the others serve the tenants that an engine serves; without tenants that
        no other serves.
        """
        return [
            TenantService(*share, elsewhere)
            for share, rate in self._rates.get(engine, {}).items()
            if (elsewhere := self._totals.get(share, 0.0) - rate) > _ROUNDING
        ]
