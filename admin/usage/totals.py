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
class Sums:
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

    def count(self, used: UsageRow) -> None:
        self.requests += used.requests
        self.input += used.input_tokens
        self.cached += used.cached_tokens
        self.output += used.output_tokens
        self.cost += used.cost

    def add(self, other: Sums) -> None:
        for name in ("requests", "input", "cached", "output", "cost"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(frozen=True, slots=True)
class Bucket:
    """A step of the time that is asked for."""

    at: datetime
    """Where it begins."""
    tick: str
    """What it is called beneath an axis."""
    words: str
    """In full."""
    query: str
    """Of the page that is narrowed to its days, or its hour."""


@dataclass(slots=True)
class Gathered:
    whole: Sums = field(default_factory=Sums)
    buckets: dict[datetime, Sums] = field(default_factory=dict)
    groups: dict[Group, Sums] = field(default_factory=dict)
    both: dict[tuple[Group, datetime], Sums] = field(default_factory=dict)

    def ranked(self, measure: str) -> list[Group]:
        """The groups, that with most first; charges last."""
        return sorted(
            self.groups, key=lambda group: (group[0] != REQUEST, -self.groups[group].of(measure), group)
        )

    def at(self, group: Group, bucket: datetime) -> Sums:
        return self.both.get((group, bucket)) or Sums()


def gathered(found: Iterable[UsageRow], asked: UsageQuery) -> Gathered:
    sums = Gathered()
    for used in found:
        bucket = used.bucket.astimezone(UTC)
        if asked.step == "month":
            bucket = bucket.replace(day=1)
        # What is charged besides requests is a group of its own; an adapter's storage is the adapter's.
        group = (REQUEST if used.group else used.kind, used.group)
        sums.whole.count(used)
        sums.buckets.setdefault(bucket, Sums()).count(used)
        sums.groups.setdefault(group, Sums()).count(used)
        sums.both.setdefault((group, bucket), Sums()).count(used)
    return sums


def added(found: Iterable[Sums]) -> Sums:
    total = Sums()
    for one in found:
        total.add(one)
    return total


def buckets_of(asked: UsageQuery) -> list[Bucket]:
    """The steps, in order."""
    return [
        Bucket(at, _tick(at, asked), _words(at, asked), _narrowed(at, asked).query) for at in _starts(asked)
    ]


def _starts(asked: UsageQuery) -> list[datetime]:
    if asked.step == "month":
        found, at = [], asked.first.replace(day=1)
        while at <= asked.last:
            found.append(datetime(at.year, at.month, 1, tzinfo=UTC))
            at = (at + timedelta(days=31)).replace(day=1)
        return found
    width = timedelta(hours=1) if asked.step == "hour" else timedelta(days=1)
    return [asked.start + number * width for number in range((asked.end - asked.start) // width)]


def _tick(at: datetime, asked: UsageQuery) -> str:
    if asked.step == "hour":
        return f"{at:%H}:00"
    return f"{at:%b} {at.day}" if asked.step == "day" else f"{at:%b %Y}"


def _words(at: datetime, asked: UsageQuery) -> str:
    if asked.step == "month":
        return f"{at:%B %Y}"
    if asked.step == "hour":
        return f"{at:%b} {at.day}, {at:%H}:00"
    return f"{at:%a}, {day_words(at.date())}"


def _narrowed(at: datetime, asked: UsageQuery) -> UsageQuery:
    if asked.step == "hour":
        return asked.of_hour(at)
    if asked.step == "day":
        return asked.of_days(at.date(), at.date())
    month = asked.of_month(at.date())
    return asked.of_days(max(month.first, asked.first), min(month.last, asked.last))


def group_label(group: Group, asked: UsageQuery, labels: Labels) -> Label:
    kind, value = group
    return labels.of(asked.group, value) if kind == REQUEST else Label(CHARGES[kind], "Not request-based")


def tones(ranked: Sequence[Group]) -> dict[Group, str]:
    """Returns the colours of the groups with a series of their own."""
    return dict(zip(ranked[:TOP], layout.TONES, strict=False))


def chart_of(sums: Gathered, buckets: Sequence[Bucket], asked: UsageQuery, labels: Labels) -> Chart:
    if asked.group:
        series = _by_group(sums, buckets, asked, labels)
    elif asked.show == "tokens":
        series = _by_kind(sums, buckets)
    elif asked.show == "requests":
        series = [Series("Requests", "input", _values(sums, buckets, "requests"))]
    else:
        series = _by_charge(sums, buckets)
    points = [_point(bucket, asked) for bucket in buckets]
    by = f" by {BY_ID[asked.group].noun}" if asked.group else ""
    caption = f"{TITLES[asked.show]}{by}, {asked.days_words}"
    return layout.bars(caption, points, series, USD if asked.show == "cost" else COUNT)


def _values(sums: Gathered, buckets: Sequence[Bucket], measure: str) -> list[float]:
    return [(sums.buckets.get(bucket.at) or Sums()).of(measure) for bucket in buckets]


def _by_kind(sums: Gathered, buckets: Sequence[Bucket]) -> list[Series]:
    cached, output = _values(sums, buckets, "cached"), _values(sums, buckets, "output")
    fresh = [whole - known for whole, known in zip(_values(sums, buckets, "input"), cached, strict=True)]
    return [
        Series("Input", "input", fresh),
        Series("Cached input", "cached", cached),
        Series("Output", "output", output),
    ]


def _by_charge(sums: Gathered, buckets: Sequence[Bucket]) -> list[Series]:
    names = {(REQUEST, ""): ("Requests", "input")} | {
        (kind, ""): (title, tone) for (kind, title), tone in zip(CHARGES.items(), ("c1", "c2"), strict=True)
    }
    return [
        Series(title, tone, [sums.at(group, bucket.at).cost for bucket in buckets])
        for group, (title, tone) in names.items()
        if group in sums.groups or group == (REQUEST, "")
    ]


def _by_group(sums: Gathered, buckets: Sequence[Bucket], asked: UsageQuery, labels: Labels) -> list[Series]:
    ranked = [group for group in sums.ranked(asked.show) if sums.groups[group].of(asked.show)]
    coloured = tones(sums.ranked(asked.show))
    series = [
        Series(
            group_label(group, asked, labels).text,
            coloured[group],
            [sums.at(group, bucket.at).of(asked.show) for bucket in buckets],
        )
        for group in ranked
        if group in coloured
    ]
    rest = [group for group in ranked if group not in coloured]
    if rest:
        values = [sum(sums.at(group, bucket.at).of(asked.show) for group in rest) for bucket in buckets]
        series.append(Series(f"{len(rest)} more", "rest", values))
    return series


def _point(bucket: Bucket, asked: UsageQuery) -> Point:
    if bucket.at.date() > asked.today:
        return Point(bucket.tick, bucket.words)
    path = "usage/requests" if asked.step == "hour" else "usage"
    return Point(bucket.tick, bucket.words, f"{path}?{bucket.query}")
