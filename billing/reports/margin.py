"""The operator's margin: what a month brought in, and what it took to serve it.

Owns how the GPUs' price is shared out. A GPU is busy while any request runs on its engine, which the ledger's
own timings say; that time, at the price of an hour, is what serving cost, and each tenant and class bears it
by the time its requests held rows of the batch. The hours that are paid and not busy are a line of their own.
Money is whole micro-USD, and the lines add up to the totals exactly.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta
from typing import Any

from billing.errors import InvalidReportQuery
from billing.months import span
from billing.reports.repository import OperatorLedger
from db.session import EVERY_TENANT, Database

HOUR = 3_600_000_000
"""Microseconds."""
Heard = Callable[[int, int], Awaitable[None]]
_MONTH = re.compile(r"(\d{4})-(0[1-9]|1[0-2])")
_EARLIEST, _LATEST = 2000, 2099


@dataclass(frozen=True, slots=True)
class MarginLine:
    """Of one tenant and class of service, over the month. What is charged besides requests has no class."""

    tenant_id: str
    service_tier: str
    num_requests: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    gpu_us: int
    """Microseconds of the busy GPUs that are its share."""
    revenue: int
    cost: int

    @property
    def margin(self) -> int:
        return self.revenue - self.cost


@dataclass(frozen=True, slots=True)
class Margin:
    """Of a month, or of what has passed of it."""

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

    @property
    def tokens(self) -> int:
        return sum(line.input_tokens + line.output_tokens for line in self.lines)

    @property
    def margin(self) -> int:
        return self.revenue - self.busy_cost - self.idle_cost

    @property
    def tokens_per_busy_second(self) -> int | None:
        """Throughput as measured; None when nothing ran."""
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
        }


class MarginReports:
    """Over all tenants: for the operator alone."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def report(
        self,
        month: str,
        gpu_hour_price: int,
        *,
        now: datetime,
        num_gpus: int | None = None,
        heard: Heard | None = None,
    ) -> Margin:
        """The month `YYYY-MM`, in UTC, as far as it has come.

        Args:
            gpu_hour_price: micro-USD that an hour of one GPU costs.
            num_gpus: how many were paid for all of that time; as many as engines have served, when None.
            heard: is told how many days of how many are looked through.

        Raises InvalidReportQuery, DatabaseUnavailable.
        """
        start, end = _span(month, now)
        if gpu_hour_price < 0:
            raise InvalidReportQuery("gpu_hour_price", "must not be negative")
        if num_gpus is not None and num_gpus < 0:
            raise InvalidReportQuery("num_gpus", "must not be negative")
        busy: dict[str, int] = {}
        held: dict[tuple[str, str], int] = {}
        day = start
        while day < end:  # one at a time: the database sorts each by itself
            if heard is not None:
                await heard((day - start).days, -((start - end) // timedelta(days=1)))
            until = min(day + timedelta(days=1), end)
            async with self._database.read(EVERY_TENANT) as session:
                ledger = OperatorLedger(session)
                for engine_id, microseconds in await ledger.busy(day, until):
                    busy[engine_id] = busy.get(engine_id, 0) + microseconds
                for tenant_id, tier, microseconds in await ledger.held(day, until):
                    held[tenant_id, tier] = held.get((tenant_id, tier), 0) + microseconds
            day = until
        async with self._database.read(EVERY_TENANT) as session:
            ledger = OperatorLedger(session)
            used = {(row.tenant_id, row.service_tier): row for row in await ledger.used(start, end)}
            charged = await ledger.charged(start, end)
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
    times = shared_out(busy_us, weights)
    costs = shared_out(busy_cost, weights)
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


def shared_out(amount: int, weights: Sequence[int]) -> list[int]:
    """`amount` by `weights`, in whole numbers that add up to it: who lost most by rounding down gets the rest
    first. Nobody bears anything where nobody weighs anything.
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
    """Half up."""
    return (2 * amount + divisor) // (2 * divisor)


def _span(month: str, now: datetime) -> tuple[datetime, datetime]:
    match = _MONTH.fullmatch(month)
    if match is None or not _EARLIEST <= int(match[1]) <= _LATEST:
        raise InvalidReportQuery("month", "must be of the form YYYY-MM")
    start, following = span(date(int(match[1]), int(match[2]), 1))
    if start >= now:
        raise InvalidReportQuery("month", f"{month} has not begun")
    return start, min(following, now.replace(second=0, microsecond=0) + timedelta(minutes=1))
