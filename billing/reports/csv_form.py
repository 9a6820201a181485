"""Writes tables as CSV: RFC 4180, UTF-8, with a header and ISO 8601 times.

Text cells that begin like a formula are escaped, because a spreadsheet would execute them.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import UTC, datetime

from billing.reports.tables import Cell, Column, Row

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""Characters that begin a formula, including their wide forms."""


class CsvForm:
    """Writes CSV, as a `TableForm`."""

    media_type = "text/csv; charset=utf-8"
    ending = "csv"

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._texts = [place for place, column in enumerate(columns) if column.kind == "text"]
        self._moments = [place for place, column in enumerate(columns) if column.kind == "moment"]
        self._buffer = io.StringIO(newline="")
        self._writer = csv.writer(self._buffer)

    def begin(self) -> bytes:
        self._writer.writerow([column.name for column in self._columns])
        return self._taken()

    def add(self, rows: Sequence[Row]) -> bytes:
        self._writer.writerows(self._written(row) for row in rows)
        return self._taken()

    def end(self) -> bytes:
        return b""

    def _taken(self) -> bytes:
        written = self._buffer.getvalue()
        self._buffer.seek(0)
        self._buffer.truncate()
        return written.encode()

    def _written(self, row: Row) -> list[Cell]:
        """Returns the row with text and times written out. Numbers stay numbers, even negative ones."""
        cells = list(row)
        for place in self._texts:
            cell = cells[place]
            if cell and cell.startswith(_FORMULA):  # type: ignore[union-attr]
                cells[place] = f"'{cell}"
        for place in self._moments:
            moment = cells[place]
            if isinstance(moment, datetime):
                shown = moment.astimezone(UTC).isoformat(timespec="microseconds")
                cells[place] = shown.removesuffix("+00:00") + "Z"
        return cells
