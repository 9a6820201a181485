"""Adds up usage by bucket and by group, and builds the chart of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from admin.charts import layout
from admin.charts.layout import COUNT, USD, Chart, Point, Series
from admin.usage.labels import Label, Labels
from admin.usage.query import BY_ID, UsageQuery, day_words
from billing.reports.slices import REQUEST, UsageRow

TOP = 7
"""Groups with a series of their own in a chart; the rest are one series."""
CHARGES = {"adapter_storage": "Adapter storage", "calibration": "Calibration"}
TITLES = {"tokens": "Tokens", "requests": "Requests", "cost": "Cost"}

Group = tuple[str, str]
"""What kind of thing (`request`, or a charge), and its value of what is grouped by."""


@dataclass(slots=True)
class UsageTotals:
    """Totals of a group, of a bucket, or of both."""

    requests: int = 0
    input: int = 0
    """Cached tokens among them."""
    cached: int = 0
    output: int = 0
    cost: int = 0
    """Micro-USD."""

    @property
    def tokens(self) -> int:
        return self.input + self.output

    def of(self, measure: str) -> int:
        return int(getattr(self, measure))

    def count(self, row: UsageRow) -> None:
        self.requests += row.requests
        self.input += row.input_tokens
        self.cached += row.cached_tokens
        self.output += row.output_tokens
        self.cost += row.cost

    def add(self, other: UsageTotals) -> None:
        for name in ("requests", "input", "cached", "output", "cost"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(frozen=True, slots=True)
class Bucket:
    """An hour, a day or a month of the query's time range."""

    at: datetime
    """When it begins."""
    tick: str
    """Its label on the axis."""
    title: str
    """Its label in full."""
    query: str
    """Query string of the page narrowed to its days, or its hour."""


@dataclass(slots=True)
class UsageBreakdown:
    """Totals of a time range: of all of it, by bucket, by group, and by both."""

    total: UsageTotals = field(default_factory=UsageTotals)
    buckets: dict[datetime, UsageTotals] = field(default_factory=dict)
    groups: dict[Group, UsageTotals] = field(default_factory=dict)
    cells: dict[tuple[Group, datetime], UsageTotals] = field(default_factory=dict)

    def ranked(self, measure: str) -> list[Group]:
        """Returns the groups, the largest first; charges last."""
        return sorted(
            self.groups, key=lambda group: (group[0] != REQUEST, -self.groups[group].of(measure), group)
        )

    def at(self, group: Group, bucket: datetime) -> UsageTotals:
        return self.cells.get((group, bucket)) or UsageTotals()


def break_down(rows: Iterable[UsageRow], query: UsageQuery) -> UsageBreakdown:
    breakdown = UsageBreakdown()
    for row in rows:
        bucket = row.bucket.astimezone(UTC)
        if query.step == "month":
            bucket = bucket.replace(day=1)
        # What is charged besides requests is a group of its own; an adapter's storage is the adapter's.
        group = (REQUEST if row.group else row.kind, row.group)
        breakdown.total.count(row)
        breakdown.buckets.setdefault(bucket, UsageTotals()).count(row)
        breakdown.groups.setdefault(group, UsageTotals()).count(row)
        breakdown.cells.setdefault((group, bucket), UsageTotals()).count(row)
    return breakdown


def total_of(parts: Iterable[UsageTotals]) -> UsageTotals:
    total = UsageTotals()
    for part in parts:
        total.add(part)
    return total


def buckets_of(query: UsageQuery) -> list[Bucket]:
    """Returns the buckets, in order."""
    return [
        Bucket(at, _tick(at, query), _title(at, query), _narrowed(at, query).query_string)
        for at in _starts(query)
    ]


def _starts(query: UsageQuery) -> list[datetime]:
    if query.step == "month":
        found, at = [], query.first.replace(day=1)
        while at <= query.last:
            found.append(datetime(at.year, at.month, 1, tzinfo=UTC))
            at = (at + timedelta(days=31)).replace(day=1)
        return found
    width = timedelta(hours=1) if query.step == "hour" else timedelta(days=1)
    return [query.start + number * width for number in range((query.end - query.start) // width)]


def _tick(at: datetime, query: UsageQuery) -> str:
    if query.step == "hour":
        return f"{at:%H}:00"
    return f"{at:%b} {at.day}" if query.step == "day" else f"{at:%b %Y}"


def _title(at: datetime, query: UsageQuery) -> str:
    if query.step == "month":
        return f"{at:%B %Y}"
    if query.step == "hour":
        return f"{at:%b} {at.day}, {at:%H}:00"
    return f"{at:%a}, {day_words(at.date())}"


def _narrowed(at: datetime, query: UsageQuery) -> UsageQuery:
    if query.step == "hour":
        return query.of_hour(at)
    if query.step == "day":
        return query.of_days(at.date(), at.date())
    month = query.of_month(at.date())
    return query.of_days(max(month.first, query.first), min(month.last, query.last))


def group_label(group: Group, query: UsageQuery, labels: Labels) -> Label:
    kind, value = group
    return labels.of(query.group, value) if kind == REQUEST else Label(CHARGES[kind], "Not request-based")


def tones(ranked: Sequence[Group]) -> dict[Group, str]:
    """Returns the colours of the groups with a series of their own."""
    return dict(zip(ranked[:TOP], layout.TONES, strict=False))


def chart_of(
    breakdown: UsageBreakdown, buckets: Sequence[Bucket], query: UsageQuery, labels: Labels
) -> Chart:
    if query.group:
        series = _by_group(breakdown, buckets, query, labels)
    elif query.show == "tokens":
        series = _by_kind(breakdown, buckets)
    elif query.show == "requests":
        series = [Series("Requests", "input", _values(breakdown, buckets, "requests"))]
    else:
        series = _by_charge(breakdown, buckets)
    points = [_point(bucket, query) for bucket in buckets]
    by = f" by {BY_ID[query.group].noun}" if query.group else ""
    caption = f"{TITLES[query.show]}{by}, {query.days_words}"
    return layout.bars(caption, points, series, USD if query.show == "cost" else COUNT)


def _values(breakdown: UsageBreakdown, buckets: Sequence[Bucket], measure: str) -> list[float]:
    return [(breakdown.buckets.get(bucket.at) or UsageTotals()).of(measure) for bucket in buckets]


def _by_kind(breakdown: UsageBreakdown, buckets: Sequence[Bucket]) -> list[Series]:
    cached, output = _values(breakdown, buckets, "cached"), _values(breakdown, buckets, "output")
    fresh = [whole - known for whole, known in zip(_values(breakdown, buckets, "input"), cached, strict=True)]
    return [
        Series("Input", "input", fresh),
        Series("Cached input", "cached", cached),
        Series("Output", "output", output),
    ]


def _by_charge(breakdown: UsageBreakdown, buckets: Sequence[Bucket]) -> list[Series]:
    names = {(REQUEST, ""): ("Requests", "input")} | {
        (kind, ""): (title, tone) for (kind, title), tone in zip(CHARGES.items(), ("c1", "c2"), strict=True)
    }
    return [
        Series(title, tone, [breakdown.at(group, bucket.at).cost for bucket in buckets])
        for group, (title, tone) in names.items()
        if group in breakdown.groups or group == (REQUEST, "")
    ]


def _by_group(
    breakdown: UsageBreakdown, buckets: Sequence[Bucket], query: UsageQuery, labels: Labels
) -> list[Series]:
    ranked = [group for group in breakdown.ranked(query.show) if breakdown.groups[group].of(query.show)]
    coloured = tones(breakdown.ranked(query.show))
    series = [
        Series(
            group_label(group, query, labels).text,
            coloured[group],
            [breakdown.at(group, bucket.at).of(query.show) for bucket in buckets],
        )
        for group in ranked
        if group in coloured
    ]
    rest = [group for group in ranked if group not in coloured]
    if rest:
        values = [sum(breakdown.at(group, bucket.at).of(query.show) for group in rest) for bucket in buckets]
        series.append(Series(f"{len(rest)} more", "rest", values))
    return series


def _point(bucket: Bucket, query: UsageQuery) -> Point:
    if bucket.at.date() > query.today:
        return Point(bucket.tick, bucket.title)
    path = "usage/requests" if query.step == "hour" else "usage"
    return Point(bucket.tick, bucket.title, f"{path}?{bucket.query}")
