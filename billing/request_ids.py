"""What requests are called: `chatcmpl-` and 32 hexadecimal digits, of which the first 14 say when it came.

Owns that form alone. The ledger is ordered by time and split by month: whoever holds a name finds the row
without an index of names, which at random ones would cost more than all others together.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from secrets import token_hex

_FORM = re.compile(r"[a-z]{1,16}-([0-9a-f]{14})[0-9a-f]{18}(-[0-9]{1,4})?")
_EPOCH = datetime.fromtimestamp(0, UTC)
_LAST = 4_102_444_800_000_000
"""Microseconds at 2100-01-01: the ledger takes nothing later."""


def new_request_id(kind: str, submitted_at: float) -> str:
    """For a request submitted at that Unix time; 72 random bits tell those of one microsecond apart."""
    return f"{kind}-{round(submitted_at * 1_000_000):014x}{token_hex(9)}"


def submitted_at_of(request_id: str) -> datetime | None:
    """When a request of this name was submitted, to the microsecond; None for what is no such name. A prompt
    of a list, which has the request's name and its place, was submitted with the others.
    """
    match = _FORM.fullmatch(request_id)
    if match is None:
        return None
    microseconds = int(match[1], 16)
    return _EPOCH + timedelta(microseconds=microseconds) if microseconds <= _LAST else None
