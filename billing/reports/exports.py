"""Streams tables as files while they are read.

Rows are read in pages, each in a transaction of its own that ends before its bytes are sent: a slow client
holds neither a connection nor more than a page in memory. Only a few pages are read and written at a time,
over all clients.
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
    """Limits the exports of one process to `at_once` pages at a time."""

    def __init__(self, at_once: int = _AT_ONCE) -> None:
        self._turns = asyncio.Semaphore(at_once)

    async def written(
        self, name: str, columns: Sequence[Column], pages: AsyncIterator[Sequence[Row]]
    ) -> tuple[TableForm, AsyncIterator[bytes]]:
        """Returns the form of that name and the file's bytes. Raises InvalidReportQuery. The bytes raise what
        the pages raise, before the first or in the middle: a file that breaks off has no end.
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
                # In a thread: writing a page takes milliseconds in which token streams would wait.
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
