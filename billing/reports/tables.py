"""Defines tables for export: their columns, and the types of these.

Forms (`csv_form`, `parquet_form`) write any such table; `ledger_table` and `usage_table` are the tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

Kind = Literal["text", "count", "seconds", "moment"]
"""`count`: a whole number, also of micro-USD. `moment`: a time in UTC. `seconds`: a duration."""
Cell = str | int | float | datetime | None
Row = Sequence[Cell]


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    kind: Kind
    repeats: bool = False
    """Whether the column has few different texts."""


class TableForm(Protocol):
    """Writes one table in parts. Each call returns the bytes that are ready, possibly none."""

    media_type: str
    ending: str
    """The suffix of a file's name."""

    def begin(self) -> bytes: ...

    def add(self, rows: Sequence[Row]) -> bytes: ...

    def end(self) -> bytes: ...
