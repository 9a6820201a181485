"""Gathers the capacity page: what fits now, trends with their forecasts, and what would help."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from admin import formatting
from admin.badge import Badge
from admin.charts import layout
from admin.charts.layout import COUNT, Chart, Point, Series, Unit
from admin.operator.engines.report import EngineReport
from engine.gauges import EngineView, SlotView
from sla.capacity.reading import Advice, Outlook
from sla.capacity.resources import SHARED, Kind

SOON = timedelta(days=30)
MIN_DAYS = 2
"""Days of samples below which a plot has nothing to show."""
MEMORY = {
    "weights": "Weights",
    "kv": "KV blocks",
    "adapters": "Adapters",
    "scratch": "Scratch",
    "rest": "Unused",
}


def _bytes(value: float | None) -> str:
    return formatting.NOTHING if value is None else formatting.size(round(value))


def _rate(value: float | None) -> str:
    return formatting.NOTHING if value is None else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


_UNITS: Mapping[Kind, Unit] = {
    "count": COUNT,
    "rate": Unit(_rate, formatting.compact),
    "bytes": Unit(_bytes, _bytes),
}


@dataclass(frozen=True)
class Row:
    """A resource: what is used of it, and when it ends."""

    title: str
    now: str
    limit: str
    share: str
    reached: Badge
    window: str
    """The earliest and the latest day, of 90 %."""
    chart: Chart | None


@dataclass(frozen=True)
class Ranks:
    """Resident adapters of a rank, and how many more of them fit."""

    rank: int
    resident: int
    size: str
    more: str


@dataclass(frozen=True)
class Fits:
    """What an engine has room for now."""

    engine: str
    blocks: str
    slots: str
    ranks: list[Ranks]
    memory: list[tuple[str, str]]


@dataclass(frozen=True)
class BasePart:
    """One base model; without a name what all share."""

    name: str
    rows: list[Row]
    fits: list[Fits]
    advice: Advice | None


@dataclass(frozen=True)
class CapacityPage:
    parts: list[BasePart]
    soonest: tuple[str, str, str] | None
    """(resource, whose, day) of the first limit that is reached."""


def capacity(
    outlooks: Sequence[Outlook], reports: Sequence[EngineReport], advice: Mapping[str, Advice], now: datetime
) -> CapacityPage:
    bases = sorted(
        {one.subject for one in outlooks if one.subject}
        | {report.info.base for report in reports if report.info is not None}
    )
    parts = [
        BasePart(
            base,
            [_row(one, now) for one in outlooks if one.subject == base],
            [
                _fits(report.key, report.view)
                for report in reports
                if report.info is not None and report.info.base == base and report.view is not None
            ],
            advice.get(base),
        )
        for base in bases
    ]
    shared = [_row(one, now) for one in outlooks if one.resource in SHARED]
    if shared:
        parts.append(BasePart("", shared, [], None))
    return CapacityPage(parts, _soonest(outlooks, now))


def _soonest(outlooks: Sequence[Outlook], now: datetime) -> tuple[str, str, str] | None:
    ends = [
        (one.reached.expected, one)
        for one in outlooks
        if one.reached is not None and one.reached.expected is not None
    ]
    if not ends:
        return None
    hours, one = min(ends, key=lambda end: end[0])
    return one.resource.title, one.subject, formatting.day(now + timedelta(hours=hours))


def _row(one: Outlook, now: datetime) -> Row:
    unit = _UNITS[one.resource.kind]
    share = formatting.percent(one.now / one.limit) if one.limit else formatting.NOTHING
    return Row(
        one.resource.title,
        unit.exact(one.now),
        unit.exact(one.limit),
        share,
        _reached(one, now),
        _window(one, now),
        _chart(one, unit),
    )


def _reached(one: Outlook, now: datetime) -> Badge:
    if not one.is_known:
        return Badge("Too few samples", "off")
    if one.reached is None:
        return Badge("No limit known", "off")
    if one.reached.expected is None:
        return Badge("Not within a year", "good")
    if one.reached.expected == 0:
        return Badge("Reached", "bad")
    day = formatting.day(now + timedelta(hours=one.reached.expected))
    return Badge(day, "bad" if timedelta(hours=one.reached.expected) <= SOON else "warn")


def _window(one: Outlook, now: datetime) -> str:
    if one.reached is None or one.reached.earliest is None:
        return ""
    first = formatting.day(now + timedelta(hours=one.reached.earliest))
    if one.reached.latest is None:
        return f"{first} at the earliest"
    return f"{first} to {formatting.day(now + timedelta(hours=one.reached.latest))}"


def _chart(one: Outlook, unit: Unit) -> Chart | None:
    if sum(day.peak is not None for day in one.days) < MIN_DAYS:
        return None
    points = [Point(f"{day.day:%-d %b}", formatting.day(day.day)) for day in one.days]
    series = [
        Series("Peak", "output", [day.peak for day in one.days]),
        Series("Mean", "cached", [day.mean for day in one.days]),
    ]
    if one.is_known:
        series += [
            Series("90 % low", "rest", [day.low for day in one.days]),
            Series("90 % high", "rest", [day.high for day in one.days]),
            Series("Forecast", "c1", [day.expected for day in one.days]),
        ]
    top = max([0.0, *(day.high or day.peak or 0.0 for day in one.days)])
    if one.limit is not None and one.limit <= 3 * top:  # a limit that is far away would flatten the rest
        series.append(Series("Limit", "bad", [one.limit] * len(one.days)))
    return layout.lines(f"{one.resource.title} by day", points, series, unit)


def _fits(engine: str, view: EngineView) -> Fits:
    stats = view.stats
    free = stats.blocks_total - stats.blocks_used
    slots = stats.slots_total - stats.slots_resident
    total = sum(view.memory.values())
    memory = [
        (MEMORY.get(name, name), f"{formatting.size(used)} ({formatting.percent(used / total)})")
        for name, used in view.memory.items()
        if used
    ]
    return Fits(
        engine,
        f"{free:,} of {stats.blocks_total:,} blocks free, {free * view.block_size:,} tokens",
        f"{slots:,} of {stats.slots_total:,} slots empty",
        _ranks(view),
        memory,
    )


def _ranks(view: EngineView) -> list[Ranks]:
    stats = view.stats
    by_rank: dict[int, list[SlotView]] = {}
    for slot in view.slots:
        by_rank.setdefault(slot.rank, []).append(slot)
    counted = Counter({rank: len(slots) for rank, slots in by_rank.items()})
    found = []
    for rank in sorted(counted):
        size = max(slot.num_bytes for slot in by_rank[rank])
        more = stats.slots_total - stats.slots_resident
        if size and stats.adapter_bytes_total:
            more = min(more, max(0, stats.adapter_bytes_total - stats.adapter_bytes_used) // size)
        found.append(
            Ranks(rank, counted[rank], formatting.size(size) if size else formatting.NOTHING, f"{more:,}")
        )
    return found
