"""What commands have in common: the option that names a service, and tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        envvar="ROOTSTOCK_DATA",
        help="Directory of a `rootstock up` on this machine; else ROOTSTOCK_* settings name the servers.",
    ),
]


def print_rows(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """A table, its columns as wide as their widest cell."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    for row in [header, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
