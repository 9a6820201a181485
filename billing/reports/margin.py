"""Reports the operator's margin: a month's revenue, and what serving it cost.

A GPU is busy while any request runs on its engine, by the ledger's timings. That time at the hourly price is
the cost of serving, and each tenant and service tier bears the share of the time its requests ran. Paid hours
that were not busy are a line of their own. Money is whole micro-USD, and the lines add up to the totals
exactly.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta
from typing import Any

from billing.earnings import EarningsBook
from billing.errors import InvalidReportQuery
from billing.months import span
from billing.reports.repository import OperatorLedger
from db.session import EVERY_TENANT, Database

HOUR = 3_600_000_000
"""Microseconds of an hour."""
OnProgress = Callable[[int, int], Awaitable[None]]
_MONTH = re.compile(r"(\d{4})-(0[1-9]|1[0-2])")
_EARLIEST, _LATEST = 2000, 2099


@dataclass(frozen=True, slots=True)
class MarginLine:
    """One tenant and service tier over the month. Charges besides requests have no service tier."""

    tenant_id: str
    service_tier: str
    num_requests: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    gpu_us: int
    """Its share of the busy GPU time, in microseconds."""
    revenue: int
    cost: int

    @property
    def margin(self) -> int:
        return self.revenue - self.cost


@dataclass(frozen=True, slots=True)
class AdapterLine:
    """One tenant's requests on one adapter over the month, or on base models."""

    tenant_id: str
    adapter_id: str
    """Empty for base models."""
    model: str
    """The name that requests used, without a version; empty for base models."""
    num_requests: int
    input_tokens: int
    output_tokens: int
    gpu_us: int
    """Its share of the busy GPU time, in microseconds."""
    revenue: int
    cost: int

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def per_million_tokens(self, amount: int) -> int | None:
        """Returns an amount by million tokens; None without tokens."""
        return _rounded(amount * 1_000_000, self.tokens) if self.tokens else None

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "margin": self.revenue - self.cost,
            "revenue_per_million_tokens": self.per_million_tokens(self.revenue),
            "cost_per_million_tokens": self.per_million_tokens(self.cost),
        }


@dataclass(frozen=True, slots=True)
class Margin:
    """The margin of a month, or of its part that has passed."""

    month: str
    until: datetime
    gpu_hour_price: int
    num_gpus: int
    lines: Sequence[MarginLine]
    busy_us: int
    paid_us: int
    revenue: int
    busy_cost: int
    idle_cost: int
    adapters: Sequence[AdapterLine] = ()
    """The same requests by adapter, the dearest first."""

    @property
    def tokens(self) -> int:
        return sum(line.input_tokens + line.output_tokens for line in self.lines)

    @property
    def margin(self) -> int:
        return self.revenue - self.busy_cost - self.idle_cost

    @property
    def tokens_per_busy_second(self) -> int | None:
        """Measured throughput; None when nothing ran."""
        return self.tokens * 1_000_000 // self.busy_us if self.busy_us else None

    def per_million_tokens(self, amount: int) -> int | None:
        return _rounded(amount * 1_000_000, self.tokens) if self.tokens else None

    def as_json(self) -> dict[str, Any]:
        return {
            "object": "billing.margin",
            "month": self.month,
            "until": self.until.isoformat(timespec="seconds"),
            "gpu_hour_price": self.gpu_hour_price,
            "num_gpus": self.num_gpus,
            "revenue": self.revenue,
            "busy_cost": self.busy_cost,
            "idle_cost": self.idle_cost,
            "margin": self.margin,
            "busy_seconds": self.busy_us // 1_000_000,
            "paid_seconds": self.paid_us // 1_000_000,
            "tokens": self.tokens,
            "tokens_per_busy_second": self.tokens_per_busy_second,
            "revenue_per_million_tokens": self.per_million_tokens(self.revenue),
            "cost_per_million_tokens": self.per_million_tokens(self.busy_cost),
            "cost_per_million_tokens_with_idle": self.per_million_tokens(self.busy_cost + self.idle_cost),
            "lines": [asdict(line) | {"margin": line.margin} for line in self.lines],
            "adapters": [line.as_json() for line in self.adapters],
        }


class MarginReports:
    """Reports the margin over all tenants, for the operator."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def report(
        self,
        month: str,
        gpu_hour_price: int,
        *,
        now: datetime,
        num_gpus: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> Margin:
        """Returns the margin of the month `YYYY-MM`, in UTC, as far as it has passed.

        Args:
            gpu_hour_price: micro-USD per GPU-hour.
            num_gpus: GPUs paid for over all that time; None means one per engine that served.
            heard: called with the number of days read and the number of all days.

        Raises InvalidReportQuery, DatabaseUnavailable.
        """
        start, end = _span(month, now)
        if gpu_hour_price < 0:
            raise InvalidReportQuery("gpu_hour_price", "must not be negative")
        if num_gpus is not None and num_gpus < 0:
            raise InvalidReportQuery("num_gpus", "must not be negative")
        busy: dict[str, int] = {}
        held: dict[tuple[str, str], int] = {}
        held_by_adapter: dict[tuple[str, str], int] = {}
        day = start
        while day < end:  # one day at a time, because the database sorts each on its own
            if on_progress is not None:
                await on_progress((day - start).days, -((start - end) // timedelta(days=1)))
            until = min(day + timedelta(days=1), end)
            async with self._database.read(EVERY_TENANT) as session:
                ledger = OperatorLedger(session)
                for engine_id, microseconds in await ledger.busy(day, until):
                    busy[engine_id] = busy.get(engine_id, 0) + microseconds
                for tenant_id, tier, adapter_id, microseconds in await ledger.held(day, until):
                    held[tenant_id, tier] = held.get((tenant_id, tier), 0) + microseconds
                    of_adapter = held_by_adapter.get((tenant_id, adapter_id), 0)
                    held_by_adapter[tenant_id, adapter_id] = of_adapter + microseconds
            day = until
        async with self._database.read(EVERY_TENANT) as session:
            ledger = OperatorLedger(session)
            used = {(row.tenant_id, row.service_tier): row for row in await ledger.used(start, end)}
            used_by_adapter = {
                (row.tenant_id, row.adapter_id): row for row in await ledger.used_by_adapter(start, end)
            }
            charged = await ledger.charged(start, end)
            for tenant_id, earned in (await EarningsBook(session).by_owner(start, end)).items():
                charged[tenant_id] = charged.get(tenant_id, 0) - earned  # it goes on to the adapter's owner
        busy_us = sum(busy.values())
        busy_cost = _rounded(busy_us * gpu_hour_price, HOUR)
        gpus = len(busy) if num_gpus is None else num_gpus
        paid_us = max(busy_us, gpus * ((end - start) // timedelta(microseconds=1)))
        lines = _lines(used, charged, held, busy_us, busy_cost)
        return Margin(
            month=month,
            until=end,
            gpu_hour_price=gpu_hour_price,
            num_gpus=gpus,
            lines=lines,
            busy_us=busy_us,
            paid_us=paid_us,
            revenue=sum(line.revenue for line in lines),
            busy_cost=busy_cost,
            idle_cost=_rounded(paid_us * gpu_hour_price, HOUR) - busy_cost,
            adapters=_adapter_lines(used_by_adapter, held_by_adapter, busy_us, busy_cost),
        )


def _lines(
    used: dict[tuple[str, str], Any],
    charged: dict[str, int],
    held: dict[tuple[str, str], int],
    busy_us: int,
    busy_cost: int,
) -> list[MarginLine]:
    keys = sorted({*used, *held})
    weights = [held.get(key, 0) for key in keys]
    times = apportion(busy_us, weights)
    costs = apportion(busy_cost, weights)
    lines = []
    for key, gpu_us, cost in zip(keys, times, costs, strict=True):
        row = used.get(key)
        counts = (
            (0, 0, 0, 0, 0)
            if row is None
            else (row.num_requests, row.prompt_tokens, row.cached_tokens, row.completion_tokens, row.cost)
        )
        requests, prompt, cached, completion, revenue = map(int, counts)
        lines.append(MarginLine(*key, requests, prompt, cached, completion, gpu_us, revenue, cost))
    lines += [
        MarginLine(tenant_id, "", 0, 0, 0, 0, 0, revenue, 0) for tenant_id, revenue in sorted(charged.items())
    ]
    return sorted(lines, key=lambda line: (line.tenant_id, line.service_tier))


def _adapter_lines(
    used: dict[tuple[str, str], Any], held: dict[tuple[str, str], int], busy_us: int, busy_cost: int
) -> list[AdapterLine]:
    keys = sorted({*used, *held})
    weights = [held.get(key, 0) for key in keys]
    lines = []
    for key, gpu_us, cost in zip(
        keys, apportion(busy_us, weights), apportion(busy_cost, weights), strict=True
    ):
        row = used.get(key)
        model, counts = "", (0, 0, 0, 0)
        if row is not None:
            model = row.model.partition("@")[0] if key[1] else ""
            counts = (row.num_requests, row.prompt_tokens, row.completion_tokens, row.cost)
        requests, prompt, completion, revenue = map(int, counts)
        lines.append(AdapterLine(*key, model, requests, prompt, completion, gpu_us, revenue, cost))
    return sorted(lines, key=lambda line: (-line.cost, line.tenant_id, line.adapter_id))


def apportion(amount: int, weights: Sequence[int]) -> list[int]:
    """Divides `amount` by `weights` into whole numbers that add up to it. The largest remainders are rounded
    up first. All shares are zero if all weights are.
    """
    total = sum(weights)
    if not total:
        return [0] * len(weights)
    shares = [amount * weight // total for weight in weights]
    losers = sorted(range(len(weights)), key=lambda place: (-(amount * weights[place] % total), place))
    for place in losers[: amount - sum(shares)]:
        shares[place] += 1
    return shares


def _rounded(amount: int, divisor: int) -> int:
    """Returns the quotient, rounded half up."""
    return (2 * amount + divisor) // (2 * divisor)


def _span(month: str, now: datetime) -> tuple[datetime, datetime]:
    match = _MONTH.fullmatch(month)
    if match is None or not _EARLIEST <= int(match[1]) <= _LATEST:
        raise InvalidReportQuery("month", "must be of the form YYYY-MM")
    start, following = span(date(int(match[1]), int(match[2]), 1))
    if start >= now:
        raise InvalidReportQuery("month", f"{month} has not begun")
    return start, min(following, now.replace(second=0, microsecond=0) + timedelta(minutes=1))
