"""Reports of service levels: a month of one tenant, by class.

Owns which month is meant and the report's form. What counts is `sla.objectives`'.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from db.session import Database
from engine.protocol import PriorityClass
from sla.errors import InvalidMonth
from sla.measures import FIRST_TOKEN_EDGES, OUTPUT_RATE_EDGES, Counts, percentile
from sla.objectives import (
    BURN_ALERTS,
    WINDOWS,
    Part,
    budget_over,
    burn_rate,
    credit_over,
    delivered_ppm,
    kept,
)
from sla.repository import SlaRepository
from tenants.errors import TenantNotFound
from tenants.terms import MILLION, Terms, read

_MONTH = re.compile(r"([0-9]{4})-(0[1-9]|1[0-2])")
_PERCENTILES = (50, 95, 99)

Shares = list[dict[str, tuple[int, int]]]


LATEST_MINUTES = 60
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Lately:
    """Of one class, within the last 24 hours."""

    tier: PriorityClass
    requests: int
    failed: int
    first_token: tuple[float | None, float | None]
    """Seconds that half of the requests, and 95 of 100, waited at most: those of the last `LATEST_MINUTES`
    minutes that had any.
    """
    output_rate: float | None
    """Tokens a second that half of their answers exceeded."""


class SlaReports:
    """Of one tenant at a time."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def report(
        self, tenant_id: str, month: str | None = None, *, now: datetime | None = None
    ) -> dict[str, Any]:
        """The month `YYYY-MM`, in UTC; this one when None. Each part of it is judged by the terms that were
        in force then.

        Raises InvalidMonth, TenantNotFound, DatabaseUnavailable.
        """
        now = now or datetime.now(UTC)
        start, end = _span(now.strftime("%Y-%m") if month is None else month)
        if start > now:
            raise InvalidMonth(f"month: {month} has not begun")
        minute = now.replace(second=0, microsecond=0)
        async with self._database.read(tenant_id) as session:
            repository = SlaRepository(session, tenant_id)
            in_force = await repository.in_force(start, end)
            if not in_force:
                raise TenantNotFound(tenant_id)
            judged = [
                (read(stretch.terms), await repository.totals(stretch.start, stretch.end))
                for stretch in in_force
                if stretch.start <= now
            ]
            is_current = now < end
            shares = (
                await repository.shares([minute - timedelta(minutes=width) for width in WINDOWS], now)
                if is_current
                else None
            )
        terms = judged[-1][0]
        return {
            "object": "sla.report",
            "month": start.strftime("%Y-%m"),
            "start_time": int(start.timestamp()),
            "end_time": int(end.timestamp()),
            "final": not is_current,
            "plan": in_force[len(judged) - 1].plan,
            "data": [
                _class_report(
                    tier, [(then[tier], totals.get(tier.value, Counts())) for then, totals in judged], shares
                )
                for tier in PriorityClass
                if terms[tier].allowed or any(tier.value in totals for _, totals in judged)
            ],
        }

    async def lately(self, tenant_id: str, *, now: datetime | None = None) -> list[Lately]:
        """Of classes that were asked for anything within a day. Raises DatabaseUnavailable."""
        now = now or datetime.now(UTC)
        since = now - _DAY
        async with self._database.read(tenant_id) as session:
            repository = SlaRepository(session, tenant_id)
            [shares] = await repository.shares([since], now)
            latest = await repository.latest(since, LATEST_MINUTES) if shares else {}
        return [
            Lately(
                tier,
                *shares[tier.value],
                (
                    percentile(latest[tier.value].first_token_histogram, FIRST_TOKEN_EDGES, 0.5),
                    percentile(latest[tier.value].first_token_histogram, FIRST_TOKEN_EDGES, 0.95),
                ),
                percentile(latest[tier.value].output_rate_histogram, OUTPUT_RATE_EDGES, 0.5),
            )
            for tier in PriorityClass
            if tier.value in shares and tier.value in latest
        ]


def _class_report(tier: PriorityClass, parts: list[Part], shares: Shares | None) -> dict[str, Any]:
    """What is said to be promised are the latest terms."""
    terms, counts = parts[-1][0], Counts()
    for _, theirs in parts:
        counts.add(theirs)
    available = delivered_ppm(counts.requests - counts.failed, counts.requests)
    fast = delivered_ppm(counts.rated_fast, counts.rated)
    budget = budget_over(parts)
    return {
        "object": "sla.class_report",
        "service_tier": tier.value,
        "requests": counts.requests,
        "failed": counts.failed,
        "availability": _promise(terms.availability_ppm, available),
        "time_to_first_token": {
            "target_ms": terms.ttft_target_ms,
            "in_time": _share(delivered_ppm(counts.first_tokens_in_time, counts.first_tokens)),
            **{
                f"p{share}_ms": _scaled(
                    percentile(counts.first_token_histogram, FIRST_TOKEN_EDGES, share / 100), 1000
                )
                for share in _PERCENTILES
            },
        },
        "output_rate": {
            "tokens_per_second": terms.min_output_tokens_per_second,
            **_promise(terms.output_rate_ppm, fast),
            # Slow ones are what a promise is about: the rate that so many per cent of answers exceed.
            **{
                f"p{share}_tokens_per_second": _scaled(
                    percentile(counts.output_rate_histogram, OUTPUT_RATE_EDGES, 1 - share / 100), 1
                )
                for share in _PERCENTILES
            },
        },
        "error_budget": None
        if budget is None
        else {"allowed": budget.allowed, "spent": budget.spent, "remaining": budget.remaining},
        "burn_rates": None if shares is None else _burn_rates(tier, terms, shares),
        "credit_percent": credit_over(parts),
        "kept": all(kept(then, theirs) for then, theirs in parts),
    }


def _promise(promised_ppm: int, delivered: int | None) -> dict[str, float | None]:
    return {"promised": _share(promised_ppm or None), "delivered": _share(delivered)}


def _share(ppm: int | None) -> float | None:
    return None if ppm is None else ppm / MILLION


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else round(value * factor, 3)


def _burn_rates(tier: PriorityClass, terms: Terms, shares: Shares) -> dict[str, Any]:
    rates = {
        width: burn_rate(terms, *found.get(tier.value, (0, 0)))
        for width, found in zip(WINDOWS, shares, strict=True)
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
    return {
        "windows": [{"minutes": width, "rate": _scaled(rate, 1)} for width, rate in rates.items()],
        "alert": alert,
    }


def _span(month: str) -> tuple[datetime, datetime]:
    found = _MONTH.fullmatch(month)
    if found is None:
        raise InvalidMonth(f"month: must be YYYY-MM, not {month[:40]!r}")
    year, number = int(found[1]), int(found[2])
    if not 2000 <= year < 9999:
        raise InvalidMonth(f"month: {year} is out of range")
    after = (year, number + 1) if number < 12 else (year + 1, 1)
    return datetime(year, number, 1, tzinfo=UTC), datetime(*after, 1, tzinfo=UTC)
