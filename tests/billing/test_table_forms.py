"""Tables as files: what a reader of either form gets back, and how they are streamed."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta, timezone

import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from billing.errors import InvalidReportQuery
from billing.reports import parquet_form
from billing.reports.csv_form import CsvForm
from billing.reports.exports import Exports
from billing.reports.parquet_form import ParquetForm
from billing.reports.tables import Column, Row, TableForm
from tests.support.examples import examples

COLUMNS = (
    Column("name", "text", repeats=True),
    Column("id", "text"),
    Column("tokens", "count"),
    Column("took", "seconds"),
    Column("at", "moment"),
)
FORMULAS = [
    '=HYPERLINK("http://evil.example")',
    "+1",
    "-1+cmd|' /C calc'!A0",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "＝1",
]
MOMENTS = st.datetimes(
    datetime(2000, 1, 1),
    datetime(2099, 12, 31),
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=5))]),
)
ROWS = st.lists(
    st.tuples(
        st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20),
        st.sampled_from(FORMULAS),
        st.none() | st.integers(-(2**63), 2**63 - 1),
        st.none() | st.floats(0, 1e9),
        MOMENTS,
    ),
    max_size=30,
)


def whole(form: TableForm, pages: Sequence[Sequence[Row]]) -> bytes:
    return b"".join([form.begin(), *(form.add(page) for page in pages), form.end()])


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(ROWS, max_size=4))
def test_csv_says_what_the_rows_do_and_runs_nothing(pages: list[list[Row]]) -> None:
    text = whole(CsvForm(COLUMNS), pages).decode()
    header, *lines = csv.reader(io.StringIO(text, newline=""))
    rows = [row for page in pages for row in page]
    assert header == [column.name for column in COLUMNS]
    assert len(lines) == len(rows)
    for (name, form, tokens, took, at), row in zip(lines, rows, strict=True):
        assert form == f"'{row[1]}"
        assert name.removeprefix("'") == str(row[0] or "").removeprefix("'")
        assert not name.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
        assert tokens == ("" if row[2] is None else str(row[2])), "a negative number is a number"
        assert (float(took) if took else None) == row[3]
        assert datetime.fromisoformat(at) == row[4]
        assert at.endswith("Z")


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(ROWS, max_size=4))
def test_parquet_keeps_values_and_types(pages: list[list[Row]]) -> None:
    table = pyarrow.parquet.read_table(io.BytesIO(whole(ParquetForm(COLUMNS), pages)))
    assert [str(field.type) for field in table.schema] == [
        "string",
        "string",
        "int64",
        "double",
        "timestamp[us, tz=UTC]",
    ]
    assert [tuple(row.values()) for row in table.to_pylist()] == [
        tuple(row) for page in pages for row in page
    ]


def test_parquet_is_written_in_row_groups_and_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_form, "ROWS_PER_GROUP", 100)
    form = ParquetForm(COLUMNS)
    page = [("a", "b", 1, 0.5, datetime(2026, 11, 1, tzinfo=UTC))] * 40
    pieces = [form.begin(), *(form.add(page) for _ in range(10)), form.end()]
    assert [bool(piece) for piece in pieces] == [True, *[False, False, True] * 3, False, True]
    file = pyarrow.parquet.ParquetFile(io.BytesIO(b"".join(pieces)))
    assert [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)] == [
        120,
        120,
        120,
        40,
    ]


async def test_a_page_is_read_when_the_one_before_is_taken() -> None:
    read: list[int] = []

    async def pages() -> AsyncIterator[Sequence[Row]]:
        for number in range(100):
            read.append(number)
            yield [(str(number), "", number, None, datetime(2026, 11, 1, tzinfo=UTC))]

    _, pieces = await Exports().written("csv", COLUMNS, pages())
    await anext(pieces)
    await anext(pieces)
    await asyncio.sleep(0.05)
    assert read == [0, 1], "who does not read holds no more than a page"
    assert len([piece async for piece in pieces]) == 99


async def test_few_pages_are_read_at_a_time_whoever_asks() -> None:
    reading = most = 0

    async def pages() -> AsyncIterator[Sequence[Row]]:
        nonlocal reading, most
        for _ in range(3):
            reading += 1
            most = max(most, reading)
            await asyncio.sleep(0.001)
            reading -= 1
            yield [("a", "b", 1, None, datetime(2026, 11, 1, tzinfo=UTC))]

    exports = Exports(at_once=2)

    async def export() -> bytes:
        _, pieces = await exports.written("csv", COLUMNS, pages())
        return b"".join([piece async for piece in pieces])

    files = await asyncio.gather(*(export() for _ in range(10)))
    assert len(set(files)) == 1
    assert most == 2


async def test_an_unknown_format_is_refused_by_name() -> None:
    async def none() -> AsyncIterator[Sequence[Row]]:
        for page in ():
            yield page

    with pytest.raises(InvalidReportQuery) as refused:
        await Exports().written("xlsx", COLUMNS, none())
    assert refused.value.field == "format"
