"""Sorts the rows of a table by the column that the URL names, such as `sort=-cost`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request

from admin.web.form_errors import FieldError

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    id: str = ""
    """In the URL; empty: the table isn't sorted by it."""
    is_number: bool = False
    starts_descending: bool = False
    """Whether the first click puts the largest or latest first."""


@dataclass(frozen=True, slots=True)
class Sort:
    column: str
    is_descending: bool

    def __str__(self) -> str:
        return f"-{self.column}" if self.is_descending else self.column


@dataclass(frozen=True, slots=True)
class Heading:
    """A column's head, and the sort that a click on it asks for."""

    title: str
    is_number: bool
    sort: str
    direction: str
    """For `aria-sort`; empty: the table isn't sorted by this column."""


def read_sort(written: str, columns: Iterable[Column]) -> Sort | None:
    """Returns None if nothing is written. Raises FieldError for an unknown column."""
    if not written:
        return None
    sort = Sort(written.removeprefix("-"), written.startswith("-"))
    if sort.column not in {column.id for column in columns}:
        raise FieldError("sort", "The table can't be sorted by this.")
    return sort


def sort_of(request: Request, columns: Iterable[Column]) -> Sort | None:
    """Returns the sort that the URL asks for. Raises `HTTPException` for an unknown column."""
    try:
        return read_sort(request.query_params.get("sort", ""), columns)
    except FieldError as error:
        raise HTTPException(404, error.message) from None


def sort_rows(rows: Iterable[Row], sort: Sort, value: Callable[[Row, str], Any]) -> list[Row]:
    """Returns the rows by `value(row, column)`. Rows without a value come last either way, and those with
    equal values keep their order.
    """
    valued = [(value(row, sort.column), row) for row in rows]
    known = [one for one in valued if one[0] is not None]
    known.sort(key=lambda one: one[0], reverse=sort.is_descending)
    return [row for _, row in known] + [row for found, row in valued if found is None]


def headings(columns: Sequence[Column], sort: Sort | None) -> list[Heading]:
    return [_heading(column, sort if sort and sort.column == column.id else None) for column in columns]


def _heading(column: Column, sort: Sort | None) -> Heading:
    if not column.id:
        return Heading(column.title, column.is_number, "", "")
    descends_next = column.starts_descending if sort is None else not sort.is_descending
    direction = "" if sort is None else "descending" if sort.is_descending else "ascending"
    return Heading(column.title, column.is_number, str(Sort(column.id, descends_next)), direction)
