"""A month as commands are given it."""

from __future__ import annotations

from datetime import UTC, datetime

from cli.errors import UsageError


def read_month(written: str) -> datetime:
    """The first moment of a month of UTC such as 2027-01. Raises UsageError naming the option `--month`."""
    try:
        return datetime.strptime(written, "%Y-%m").replace(tzinfo=UTC)
    except ValueError:
        raise UsageError(f"--month takes a month such as 2027-01, not {written}") from None
