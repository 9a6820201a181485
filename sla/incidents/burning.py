"""Computes how fast the service as a whole burns the standard plan's error budget, by service tier.

The windows and thresholds are those of alerts (`sla.objectives`); each tenant's own are in its reports.
Results are cached for some seconds, because consoles reload often during an incident.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from db.session import EVERY_TENANT, Database
from sla.incidents.repository import ServedToAll
from sla.objectives import BURN_ALERTS, WINDOWS, burn_rate
from tenants.tier_terms import DEFAULTS

KEPT_S = 10.0


@dataclass(frozen=True, slots=True)
class Burn:
    """The burn rates of one service tier."""

    service_tier: str
    windows: Sequence[tuple[int, int, int, float | None]]
    """(minutes, requests, failed, how many times too fast the budget burns); the last is None without
    requests or a promise.
    """
    alert: str | None
    """The severity of the alert, if one fires."""


class ServiceBurn:
    """Computes the burn rates over all tenants."""

    def __init__(self, database: Database, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._database = database
        self._clock = clock
        self._kept: tuple[float, list[Burn]] = (0.0, [])

    async def now(self) -> list[Burn]:
        """Returns the current burn rates. Raises DatabaseUnavailable."""
        until, burns = self._kept
        if time.monotonic() < until:
            return burns
        now = self._clock()
        minute = now.replace(second=0, microsecond=0)
        async with self._database.read(EVERY_TENANT) as session:
            since = [minute - timedelta(minutes=width) for width in WINDOWS]
            shares = await ServedToAll(session).shares(since, now)
        burns = [_burn(tier.value, [found.get(tier.value, (0, 0)) for found in shares]) for tier in DEFAULTS]
        self._kept = (time.monotonic() + KEPT_S, burns)
        return burns


def _burn(service_tier: str, shares: Sequence[tuple[int, int]]) -> Burn:
    terms = next(found for tier, found in DEFAULTS.items() if tier.value == service_tier)
    rates = {
        width: burn_rate(terms, requests, failed)
        for width, (requests, failed) in zip(WINDOWS, shares, strict=True)
    }
    alert = next(
        (
            alert.severity
            for alert in BURN_ALERTS
            if (rates[alert.long_minutes] or 0) > alert.factor
            and (rates[alert.short_minutes] or 0) > alert.factor
        ),
        None,
    )
    windows = [(width, *share, rates[width]) for width, share in zip(WINDOWS, shares, strict=True)]
    return Burn(service_tier, windows, alert)
