"""Writes tables as Parquet, a row group at a time. Only this module imports pyarrow, which is large.

Rows wait in Arrow's form, a few megabytes, until there are enough for a row group, so memory does not grow
with the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow
import pyarrow.parquet

from billing.reports.tables import Column, Row

ROWS_PER_GROUP = 20_000
_TEXT = pyarrow.string()
_TYPES: dict[str, Any] = {
    "text": _TEXT,
    "count": pyarrow.int64(),
    "seconds": pyarrow.float64(),
    "moment": pyarrow.timestamp("us", tz="UTC"),
}


class ParquetForm:
    """Writes Parquet, as a `TableForm`."""

    media_type = "application/vnd.apache.parquet"
    ending = "parquet"

    def __init__(self, columns: Sequence[Column]) -> None:
        self._schema = pyarrow.schema([(column.name, _TYPES[column.kind]) for column in columns])
        self._sink = _Sink()
        self._writer = pyarrow.parquet.ParquetWriter(
            pyarrow.PythonFile(self._sink, mode="w"),
            self._schema,
            compression="zstd",
            use_dictionary=[column.name for column in columns if column.repeats],
        )
        self._waiting: list[Any] = []
        self._num_waiting = 0

    def begin(self) -> bytes:
        return self._sink.taken()

    def add(self, rows: Sequence[Row]) -> bytes:
        if rows:
            columns = [
                pyarrow.array(cells, type=field.type)
                for cells, field in zip(zip(*rows, strict=True), self._schema, strict=True)
            ]
            self._waiting.append(pyarrow.record_batch(columns, schema=self._schema))
            self._num_waiting += len(rows)
        if self._num_waiting >= ROWS_PER_GROUP:
            self._write()
        return self._sink.taken()

    def end(self) -> bytes:
        if self._num_waiting:
            self._write()
        self._writer.close()
        return self._sink.taken()

    def _write(self) -> None:
        table = pyarrow.Table.from_batches(self._waiting, schema=self._schema)
        self._writer.write_table(table, row_group_size=self._num_waiting)
        self._waiting.clear()
        self._num_waiting = 0


class _Sink:
    """An append-only file whose bytes are taken and sent as they are written."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._position = 0

    def write(self, piece: Any) -> int:
        written = bytes(piece)
        self._pieces.append(written)
        self._position += len(written)
        return len(written)

    def tell(self) -> int:
        return self._position

    def flush(self) -> None:
        """Does nothing: every byte is written at once."""

    def close(self) -> None:
        self.closed = True

    def taken(self) -> bytes:
        pieces = b"".join(self._pieces)
        self._pieces.clear()
        return pieces
