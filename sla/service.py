"""Reports a tenant's service levels: a month by service tier, and the last 24 hours."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, TypedDict

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
from tenants.tier_terms import MILLION, Terms, read

_MONTH = re.compile(r"([0-9]{4})-(0[1-9]|1[0-2])")

Shares = list[dict[str, tuple[int, int]]]


class Promise(TypedDict):
    """Shares from 0 to 1."""

    promised: float | None
    """Null where nothing is promised."""
    delivered: float | None
    """Null where nothing was measured."""


class FirstTokenReport(TypedDict):
    """Time to first token."""

    target_ms: int | None
    in_time: float | None
    """The share of requests, from 0 to 1, that met the target."""
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None


class OutputRateReport(Promise):
    """Output tokens per second of a response. Half of the responses are faster than p50, 95 % than p95."""

    tokens_per_second: int | None
    """The rate that is promised."""
    p50_tokens_per_second: float | None
    p95_tokens_per_second: float | None
    p99_tokens_per_second: float | None


class ErrorBudgetReport(TypedDict):
    """Failed requests."""

    allowed: float
    spent: float
    remaining: float


class BurnWindow(TypedDict):
    minutes: int
    rate: float | None
    """How fast the error budget is spent: at 1 it lasts exactly until the month ends."""


class BurnRates(TypedDict):
    """How fast the error budget is spent at the moment."""

    windows: list[BurnWindow]
    alert: str | None
    """The severity of the alert that this raises, if any."""


class SlaClassReport(TypedDict):
    """Service levels of one service tier."""

    object: Literal["sla.class_report"]
    service_tier: str
    requests: int
    failed: int
    availability: Promise
    time_to_first_token: FirstTokenReport
    output_rate: OutputRateReport
    error_budget: ErrorBudgetReport | None
    burn_rates: BurnRates | None
    """Null for a month that is over."""
    credit_percent: int
    """The share of the month's price that is credited."""
    kept: bool
    """Whether everything promised was delivered."""


class SlaReport(TypedDict):
    """Service levels of a month."""

    object: Literal["sla.report"]
    month: str
    """As `2026-11`, in UTC."""
    start_time: int
    """Unix seconds."""
    end_time: int
    """Unix seconds, exclusive."""
    final: bool
    """Whether the month is over."""
    plan: str
    """The plan in force, the latest where it changed."""
    data: list[SlaClassReport]
    """One report for each service tier."""


LATEST_MINUTES = 60
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class RecentLevels:
    """The service levels of one tier within the last 24 hours."""

    tier: PriorityClass
    requests: int
    failed: int
    first_token: tuple[float | None, float | None]
    """p50 and p95 of seconds to the first token, of the last `LATEST_MINUTES` minutes that had any."""
    output_rate: float | None
    """Tokens per second that half of the responses exceeded."""


class SlaReports:
    """Reports the service levels of one tenant per call."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def report(
        self, tenant_id: str, month: str | None = None, *, now: datetime | None = None
    ) -> SlaReport:
        """Returns the report of the month `YYYY-MM`, in UTC, by default the current one. Each part of it is
        judged by the terms in force at that time.

        Raises InvalidMonth, TenantNotFound, DatabaseUnavailable.
        """
        now = now or datetime.now(UTC)
        start, end = _span(now.strftime("%Y-%m") if month is None else month)
        if start > now:
            raise InvalidMonth(f"month: {month} has not begun")
        minute = now.replace(second=0, microsecond=0)
        async with self._database.read(tenant_id) as session:
            repository = SlaRepository(session, tenant_id)
            periods = await repository.terms_between(start, end)
            if not periods:
                raise TenantNotFound(tenant_id)
            judged = [
                (read(period.terms), await repository.totals(period.start, period.end))
                for period in periods
                if period.start <= now
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
            "plan": periods[len(judged) - 1].plan,
            "data": [
                _class_report(
                    tier, [(then[tier], totals.get(tier.value, Counts())) for then, totals in judged], shares
                )
                for tier in PriorityClass
                if terms[tier].allowed or any(tier.value in totals for _, totals in judged)
            ],
        }

    async def recent(self, tenant_id: str, *, now: datetime | None = None) -> list[RecentLevels]:
        """Returns the tiers with requests within a day. Raises DatabaseUnavailable."""
        now = now or datetime.now(UTC)
        since = now - _DAY
        async with self._database.read(tenant_id) as session:
            repository = SlaRepository(session, tenant_id)
            [shares] = await repository.shares([since], now)
            latest = await repository.latest(since, LATEST_MINUTES) if shares else {}
        return [
            RecentLevels(
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


def _class_report(tier: PriorityClass, parts: list[Part], shares: Shares | None) -> SlaClassReport:
    """Returns a tier's report. The promised values are those of the latest terms."""
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
            "p50_ms": _first_token_ms(counts, 50),
            "p95_ms": _first_token_ms(counts, 95),
            "p99_ms": _first_token_ms(counts, 99),
        },
        "output_rate": {
            "tokens_per_second": terms.min_output_tokens_per_second,
            **_promise(terms.output_rate_ppm, fast),
            "p50_tokens_per_second": _output_rate(counts, 50),
            "p95_tokens_per_second": _output_rate(counts, 95),
            "p99_tokens_per_second": _output_rate(counts, 99),
        },
        "error_budget": None
        if budget is None
        else {"allowed": budget.allowed, "spent": budget.spent, "remaining": budget.remaining},
        "burn_rates": None if shares is None else _burn_rates(tier, terms, shares),
        "credit_percent": credit_over(parts),
        "kept": all(kept(then, theirs) for then, theirs in parts),
    }


def _first_token_ms(counts: Counts, percent: int) -> float | None:
    return _scaled(percentile(counts.first_token_histogram, FIRST_TOKEN_EDGES, percent / 100), 1000)


def _output_rate(counts: Counts, percent: int) -> float | None:
    """The rate that so many percent of responses exceed: a promise is about the slow ones."""
    return _scaled(percentile(counts.output_rate_histogram, OUTPUT_RATE_EDGES, 1 - percent / 100), 1)


def _promise(promised_ppm: int, delivered: int | None) -> Promise:
    return {"promised": _share(promised_ppm or None), "delivered": _share(delivered)}


def _share(ppm: int | None) -> float | None:
    return None if ppm is None else ppm / MILLION


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else round(value * factor, 3)


def _burn_rates(tier: PriorityClass, terms: Terms, shares: Shares) -> BurnRates:
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
