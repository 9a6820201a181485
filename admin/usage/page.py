"""Gathers the usage page: figures, a chart and a table, by any grouping and filter.

The figures equal those that the API reports, but for requests that calibrated adapters: they have no price,
and count only if they are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from admin import formatting
from admin.charts.layout import Chart
from admin.usage.labels import Label, LabelLookup, Labels, May
from admin.usage.query import BY_ID, DIMENSIONS, MEASURES, NONE, RANGES, SORTABLE, Dimension, UsageQuery
from admin.usage.totals import (
    TITLES,
    Bucket,
    Gathered,
    Sums,
    added,
    buckets_of,
    chart_of,
    gathered,
    group_label,
    tones,
)
from admin.web.sorting import Column, Heading, headings, sort_rows
from billing.reports.slices import REQUEST, UsageSlices
from tenants.object_names import CALIBRATION_KEY

MAX_ROWS = 200
MAX_CHOICES = 50
MONTHS = 12


@dataclass(frozen=True, slots=True)
class Tile:
    """A measure: its figure, and the way to its chart."""

    id: str
    title: str
    figure: str
    exact: str
    hint: str
    query: str
    is_shown: bool


@dataclass(frozen=True, slots=True)
class Row:
    """Of the table: a group's, or a bucket's."""

    label: Label
    order: str
    """What sorting by the first column compares."""
    sums: Sums
    tone: str = ""
    """Of its colour in the chart."""
    narrower: str = ""
    """Query of the page that shows this alone."""
    behind: str = ""
    """Query of the list of its requests."""


@dataclass(frozen=True, slots=True)
class Choice:
    value: str
    """As in an address."""
    label: Label
    requests: int
    is_chosen: bool


@dataclass(frozen=True, slots=True)
class Filter:
    dimension: Dimension
    choices: list[Choice]
    num_left_out: int

    @property
    def num_chosen(self) -> int:
        return sum(choice.is_chosen for choice in self.choices)


@dataclass(frozen=True, slots=True)
class Chip:
    """A filter that is set, and the way to be rid of it."""

    title: str
    text: str
    query: str


@dataclass(frozen=True, slots=True)
class UsageView:
    asked: UsageQuery
    ranges: list[tuple[str, str, bool]]
    """(title, query, whether it is this)."""
    months: list[tuple[str, str]]
    groups: list[tuple[str, str]]
    tiles: list[Tile]
    chart: Chart
    headings: list[Heading]
    noun: str
    rows: list[Row]
    total: Sums
    rest: tuple[int, Sums] | None
    """The number of groups left out of the table, and their totals."""
    filters: list[Filter]
    chips: list[Chip]
    is_used: bool
    """Whether anything ever was."""
    has_calibration: bool
    """Whether adapters were calibrated in this time."""


class UsagePage:
    """Gathers it."""

    def __init__(self, slices: UsageSlices, labels: LabelLookup) -> None:
        self._slices = slices
        self._labels = labels

    async def gather(self, tenant_id: str, asked: UsageQuery, may: May) -> UsageView:
        """Raises InvalidReportQuery, DatabaseUnavailable."""
        column = BY_ID[asked.group].column if asked.group else None
        looked = await self._slices.look(
            tenant_id, asked.start, asked.end, unit=asked.unit, group_by=column, slice=asked.slice
        )
        values = looked.values
        sums = gathered(looked.used, asked)
        ranked = sums.ranked(asked.show)
        named = names_of(asked, values)
        if asked.group:
            named |= {(asked.group, value) for _, value in ranked[:MAX_ROWS]}
        labels = await self._labels.of(tenant_id, named, may)
        buckets = buckets_of(asked)
        left = ranked[MAX_ROWS:] if asked.group else []
        return UsageView(
            asked=asked,
            ranges=[(title, asked.over(id).query, asked.over(id) == asked) for id, title in RANGES.items()],
            months=months_of(asked),
            groups=[("", "None"), *((one.id, one.title) for one in DIMENSIONS)],
            tiles=[_tile(measure, sums.whole, asked) for measure in MEASURES],
            chart=chart_of(sums, buckets, asked, labels),
            headings=_headings(asked),
            noun=BY_ID[asked.group].noun if asked.group else asked.step,
            rows=_sorted(
                _group_rows(sums, asked, labels) if asked.group else _bucket_rows(sums, buckets, asked), asked
            ),
            total=sums.whole,
            rest=(len(left), added(sums.groups[group] for group in left)) if left else None,
            filters=filters_of(asked, values, labels),
            chips=chips_of(asked, labels),
            is_used=looked.has_any_usage,
            has_calibration=any(value == CALIBRATION_KEY for value, _ in values["api_key_id"]),
        )


def names_of(asked: UsageQuery, values: Mapping[str, list[tuple[str, int]]]) -> set[tuple[str, str]]:
    """Returns what the filters name, as `LabelLookup.of` takes it."""
    named = {(one.id, value) for one in DIMENSIONS for value, _ in values[one.column][:MAX_CHOICES]}
    return named | {(id, value) for id, chosen in asked.chosen.items() for value in chosen}


def filters_of(
    asked: UsageQuery, values: Mapping[str, list[tuple[str, int]]], labels: Labels
) -> list[Filter]:
    return [_filter(one, values[one.column], asked, labels) for one in DIMENSIONS]


def chips_of(asked: UsageQuery, labels: Labels) -> list[Chip]:
    return [
        Chip(BY_ID[id].title, labels.of(id, value).text, asked.without(id, value).query)
        for id, values in asked.chosen.items()
        for value in values
    ]


def _tile(measure: str, whole: Sums, asked: UsageQuery) -> Tile:
    value = whole.of(measure)
    if measure == "cost":
        figure, exact, hint = formatting.usd_roughly(value), formatting.usd(value), ""
        if whole.tokens > 0:
            hint = f"{formatting.usd_roughly(value * 1_000_000 / whole.tokens)} per 1M tokens"
    else:
        figure, exact = formatting.compact(value), formatting.count(value)
        per_day = f"{formatting.compact(value / asked.num_days)} per day"
        hint = per_day if asked.num_days > 1 else ""
        if measure == "tokens" and whole.input > 0:
            hint = f"{whole.cached / whole.input:.0%} of input from cache"
    return Tile(
        measure, TITLES[measure], figure, exact, hint, asked.showing(measure).query, asked.show == measure
    )


def _headings(asked: UsageQuery) -> list[Heading]:
    title = BY_ID[asked.group].title if asked.group else asked.step.capitalize()
    first = Column(title, "name", starts_descending=not asked.group)
    share = replace(SORTABLE[-1], title=f"Share of {asked.show}")
    return headings([first, *SORTABLE[1:-1], share], asked.sort)


def _sorted(rows: list[Row], asked: UsageQuery) -> list[Row]:
    def value(row: Row, column: str) -> str | int:
        if column == "name":
            return row.order
        return row.sums.of(asked.show if column == "share" else column)

    return rows if asked.sort is None else sort_rows(rows, asked.sort, value)


def _group_rows(sums: Gathered, asked: UsageQuery, labels: Labels) -> list[Row]:
    ranked = sums.ranked(asked.show)
    coloured = tones(ranked)
    rows = []
    for group in ranked[:MAX_ROWS]:
        kind, value = group
        narrower = asked.only(asked.group, value).query if kind == REQUEST else ""
        label = group_label(group, asked, labels)
        rows.append(
            Row(
                label,
                label.text.casefold(),
                sums.groups[group],
                coloured.get(group, "rest"),
                narrower,
                narrower,
            )
        )
    return rows


def _bucket_rows(sums: Gathered, buckets: Sequence[Bucket], asked: UsageQuery) -> list[Row]:
    """The latest first; those that nothing was used in are left out."""
    rows = []
    for bucket in reversed(buckets):
        if bucket.at in sums.buckets:
            narrower = "" if asked.step == "hour" else bucket.query
            rows.append(
                Row(
                    Label(bucket.words),
                    bucket.at.isoformat(),
                    sums.buckets[bucket.at],
                    "",
                    narrower,
                    bucket.query,
                )
            )
    return rows


def _filter(
    dimension: Dimension, values: Sequence[tuple[str, int]], asked: UsageQuery, labels: Labels
) -> Filter:
    """The most frequent, and whatever is chosen."""
    chosen = asked.chosen.get(dimension.id, ())
    counts: Mapping[str, int] = dict(values)
    shown = [value for value, _ in values[:MAX_CHOICES]]
    shown += [value for value in chosen if value not in shown]
    return Filter(
        dimension,
        [
            Choice(value or NONE, labels.of(dimension.id, value), counts.get(value, 0), value in chosen)
            for value in shown
        ],
        max(0, len(values) - len(shown)),
    )


def months_of(asked: UsageQuery) -> list[tuple[str, str]]:
    found, at = [], asked.today.replace(day=1)
    for _ in range(MONTHS):
        found.append((f"{at:%Y-%m}", f"{at:%B %Y}"))
        at = (at - timedelta(days=1)).replace(day=1)
    return found
