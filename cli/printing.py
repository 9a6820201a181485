"""Defines the `--data` option that commands share, and prints tables."""

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
        help="Directory of a `rootstock up` on this machine. Default: the servers in ROOTSTOCK_* settings.",
    ),
]


def print_rows(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Prints a table whose columns are as wide as their widest cell."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    for row in [header, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
