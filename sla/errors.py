"""What can be wrong with a question about service levels."""

from __future__ import annotations


class InvalidMonth(ValueError):
    """Not a month there is a report of. The message begins with the field."""
