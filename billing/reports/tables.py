"""Tables that are exported: their columns and the types of these.

Owns what a column may be. Forms (`csv_form`, `parquet_form`) write any such table; what is in one is
`ledger_table`'s and `usage_table`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

Kind = Literal["text", "count", "seconds", "moment"]
"""`count`: a whole number, of micro-USD too. `moment`: an instant in UTC. `seconds`: a duration."""
Cell = str | int | float | datetime | None
Row = Sequence[Cell]


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    kind: Kind
    repeats: bool = False
    """Few different texts stand in it."""


class TableForm(Protocol):
    """Writes one table, piece by piece. Each call returns the bytes that are ready, maybe none."""

    media_type: str
    ending: str
    """Of a file's name."""

    def begin(self) -> bytes: ...

    def add(self, rows: Sequence[Row]) -> bytes: ...

    def end(self) -> bytes: ...
