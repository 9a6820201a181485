"""Parses the month that commands take as an option."""

from __future__ import annotations

from datetime import UTC, datetime

from cli.errors import UsageError


def read_month(written: str) -> datetime:
    """Returns the start of a UTC month such as 2027-01. Raises UsageError naming the option `--month`."""
    try:
        return datetime.strptime(written, "%Y-%m").replace(tzinfo=UTC)
    except ValueError:
        raise UsageError(f"--month {written} is not a month: write it as 2027-01") from None
