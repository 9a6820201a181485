"""Gathers the usage page: figures, a chart and a table, by any grouping and filter.

The figures equal those that the API reports, but for requests that calibrated adapters: they have no price,
and count only if the query includes them.
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
    UsageBreakdown,
    UsageTotals,
    break_down,
    buckets_of,
    chart_of,
    group_label,
    tones,
    total_of,
)
from admin.web.sorting import Column, Heading, headings, sort_rows
from billing.reports.slices import REQUEST, UsageSlices
from tenants.object_names import CALIBRATION_KEY

MAX_ROWS = 200
MAX_CHOICES = 50
MONTHS = 12


@dataclass(frozen=True, slots=True)
class Tile:
    """A metric: its figure, and the link to its chart."""

    id: str
    title: str
    figure: str
    exact: str
    hint: str
    query: str
    is_shown: bool


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: a group, or a bucket."""

    label: Label
    order: str
    """What sorting by the first column compares."""
    totals: UsageTotals
    tone: str = ""
    """Of its colour in the chart."""
    detail_query: str = ""
    """Query string of the page that shows this alone."""
    requests_query: str = ""
    """Query string of the list of its requests."""


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
    """A filter that is set, and the link that removes it."""

    title: str
    text: str
    query: str


@dataclass(frozen=True, slots=True)
class UsageView:
    query: UsageQuery
    ranges: list[tuple[str, str, bool]]
    """(title, query, whether it is this)."""
    months: list[tuple[str, str]]
    groups: list[tuple[str, str]]
    tiles: list[Tile]
    chart: Chart
    headings: list[Heading]
    noun: str
    rows: list[Row]
    total: UsageTotals
    rest: tuple[int, UsageTotals] | None
    """The number of groups left out of the table, and their totals."""
    filters: list[Filter]
    chips: list[Chip]
    has_any_usage: bool
    """Whether the tenant ever had any."""
    has_calibration: bool
    """Whether adapters were calibrated in this time."""


class UsagePage:
    """Gathers the page."""

    def __init__(self, slices: UsageSlices, labels: LabelLookup) -> None:
        self._slices = slices
        self._labels = labels

    async def gather(self, tenant_id: str, query: UsageQuery, may: May) -> UsageView:
        """Raises InvalidReportQuery, DatabaseUnavailable."""
        column = BY_ID[query.group].column if query.group else None
        result = await self._slices.look(
            tenant_id, query.start, query.end, unit=query.unit, group_by=column, slice=query.slice
        )
        values = result.values
        breakdown = break_down(result.used, query)
        ranked = breakdown.ranked(query.show)
        named = names_of(query, values)
        if query.group:
            named |= {(query.group, value) for _, value in ranked[:MAX_ROWS]}
        labels = await self._labels.of(tenant_id, named, may)
        buckets = buckets_of(query)
        if query.group:
            rows, unlisted = _group_rows(breakdown, query, labels), ranked[MAX_ROWS:]
        else:
            rows, unlisted = _bucket_rows(breakdown, buckets, query), []
        rest = (len(unlisted), total_of(breakdown.groups[group] for group in unlisted)) if unlisted else None
        return UsageView(
            query=query,
            ranges=[
                (title, query.over(id).query_string, query.over(id) == query) for id, title in RANGES.items()
            ],
            months=months_of(query),
            groups=[("", "None"), *((one.id, one.title) for one in DIMENSIONS)],
            tiles=[_tile(measure, breakdown.total, query) for measure in MEASURES],
            chart=chart_of(breakdown, buckets, query, labels),
            headings=_headings(query),
            noun=BY_ID[query.group].noun if query.group else query.step,
            rows=_sorted(rows, query),
            total=breakdown.total,
            rest=rest,
            filters=filters_of(query, values, labels),
            chips=chips_of(query, labels),
            has_any_usage=result.has_any_usage,
            has_calibration=any(value == CALIBRATION_KEY for value, _ in values["api_key_id"]),
        )


def names_of(query: UsageQuery, values: Mapping[str, list[tuple[str, int]]]) -> set[tuple[str, str]]:
    """Returns what the filters name, as `LabelLookup.of` takes it."""
    named = {(one.id, value) for one in DIMENSIONS for value, _ in values[one.column][:MAX_CHOICES]}
    return named | {(id, value) for id, chosen in query.chosen.items() for value in chosen}


def filters_of(
    query: UsageQuery, values: Mapping[str, list[tuple[str, int]]], labels: Labels
) -> list[Filter]:
    return [_filter(one, values[one.column], query, labels) for one in DIMENSIONS]


def chips_of(query: UsageQuery, labels: Labels) -> list[Chip]:
    return [
        Chip(BY_ID[id].title, labels.of(id, value).text, query.without(id, value).query_string)
        for id, values in query.chosen.items()
        for value in values
    ]


def _tile(measure: str, total: UsageTotals, query: UsageQuery) -> Tile:
    value = total.of(measure)
    if measure == "cost":
        figure, exact, hint = formatting.usd_roughly(value), formatting.usd(value), ""
        if total.tokens > 0:
            hint = f"{formatting.usd_roughly(value * 1_000_000 / total.tokens)} per 1M tokens"
    else:
        figure, exact = formatting.compact(value), formatting.count(value)
        per_day = f"{formatting.compact(value / query.num_days)} per day"
        hint = per_day if query.num_days > 1 else ""
        if measure == "tokens" and total.input > 0:
            hint = f"{100 * total.cached / total.input:.0f} % of input from cache"
    return Tile(
        measure,
        TITLES[measure],
        figure,
        exact,
        hint,
        query.showing(measure).query_string,
        query.show == measure,
    )


def _headings(query: UsageQuery) -> list[Heading]:
    title = BY_ID[query.group].title if query.group else query.step.capitalize()
    first = Column(title, "name", starts_descending=not query.group)
    share = replace(SORTABLE[-1], title=f"Share of {query.show}")
    return headings([first, *SORTABLE[1:-1], share], query.sort)


def _sorted(rows: list[Row], query: UsageQuery) -> list[Row]:
    def value(row: Row, column: str) -> str | int:
        if column == "name":
            return row.order
        return row.totals.of(query.show if column == "share" else column)

    return rows if query.sort is None else sort_rows(rows, query.sort, value)


def _group_rows(breakdown: UsageBreakdown, query: UsageQuery, labels: Labels) -> list[Row]:
    ranked = breakdown.ranked(query.show)
    coloured = tones(ranked)
    rows = []
    for group in ranked[:MAX_ROWS]:
        kind, value = group
        detail_query = query.only(query.group, value).query_string if kind == REQUEST else ""
        label = group_label(group, query, labels)
        rows.append(
            Row(
                label,
                label.text.casefold(),
                breakdown.groups[group],
                coloured.get(group, "rest"),
                detail_query,
                detail_query,
            )
        )
    return rows


def _bucket_rows(breakdown: UsageBreakdown, buckets: Sequence[Bucket], query: UsageQuery) -> list[Row]:
    """Returns a row per bucket with usage, the latest first."""
    rows = []
    for bucket in reversed(buckets):
        if bucket.at in breakdown.buckets:
            detail_query = "" if query.step == "hour" else bucket.query
            rows.append(
                Row(
                    Label(bucket.title),
                    bucket.at.isoformat(),
                    breakdown.buckets[bucket.at],
                    "",
                    detail_query,
                    bucket.query,
                )
            )
    return rows


def _filter(
    dimension: Dimension, values: Sequence[tuple[str, int]], query: UsageQuery, labels: Labels
) -> Filter:
    """Returns the most frequent values, and those that are chosen."""
    chosen = query.chosen.get(dimension.id, ())
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


def months_of(query: UsageQuery) -> list[tuple[str, str]]:
    found, at = [], query.today.replace(day=1)
    for _ in range(MONTHS):
        found.append((f"{at:%Y-%m}", f"{at:%B %Y}"))
        at = (at - timedelta(days=1)).replace(day=1)
    return found
