"""Exports: tables as files, streamed as they are read.

Owns the pace. Rows are read in pages, each in a transaction of its own that is over before its bytes are
sent: a client that reads slowly holds neither a connection nor more than a page, and few pages are read and
written at a time, whoever asks. Knows neither what is in a table nor how a form writes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from billing.errors import InvalidReportQuery
from billing.reports.csv_form import CsvForm
from billing.reports.tables import Column, Row, TableForm

FORMATS = ("csv", "parquet")
_AT_ONCE = 2


class Exports:
    """Of one process."""

    def __init__(self, at_once: int = _AT_ONCE) -> None:
        self._turns = asyncio.Semaphore(at_once)

    async def written(
        self, name: str, columns: Sequence[Column], pages: AsyncIterator[Sequence[Row]]
    ) -> tuple[TableForm, AsyncIterator[bytes]]:
        """The form of that name, and the bytes of the file. Raises InvalidReportQuery; the bytes raise what
        the pages do, before the first of them or in the middle: a file that is cut off has no end.
        """
        if name not in FORMATS:
            raise InvalidReportQuery("format", f"must be one of {', '.join(FORMATS)}")
        form = await asyncio.to_thread(_form, name, columns)
        return form, self._bytes(form, pages)

    async def _bytes(self, form: TableForm, pages: AsyncIterator[Sequence[Row]]) -> AsyncIterator[bytes]:
        waiting = form.begin()
        while True:
            async with self._turns:
                rows = await anext(pages, None)
                if rows is None:
                    break
                # In a thread: a page takes milliseconds, and others' tokens are waiting.
                waiting += await asyncio.to_thread(form.add, rows)
            if waiting:
                yield waiting
                waiting = b""
        yield waiting + await asyncio.to_thread(form.end)


def _form(name: str, columns: Sequence[Column]) -> TableForm:
    if name == "csv":
        return CsvForm(columns)
    from billing.reports.parquet_form import ParquetForm  # large, and most processes never need it

    return ParquetForm(columns)
