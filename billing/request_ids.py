"""Makes and reads request ids: `chatcmpl-` and 32 hexadecimal digits, of which the first 14 are the time.
Responses have `resp_` instead, as their clients expect.

The ledger is ordered by time and partitioned by month. An id that says when its request was submitted finds
the row without an index on ids, which for random ids would cost more than all other indexes together.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from secrets import token_hex

_FORM = re.compile(r"(?:[a-z]{1,16}-|resp_)([0-9a-f]{14})[0-9a-f]{18}(-[0-9]{1,4})?")
_EPOCH = datetime.fromtimestamp(0, UTC)
_LAST = 4_102_444_800_000_000
"""Microseconds at 2100-01-01: the ledger accepts nothing later."""


def new_request_id(kind: str, submitted_at: float) -> str:
    """Returns an id for a request submitted at that Unix time; 72 random bits make it unique."""
    return request_id(kind, submitted_at, token_hex(9))


def request_id(kind: str, submitted_at: float, unique: str) -> str:
    """Returns the id of a request submitted at that Unix time. `unique`: 18 hexadecimal digits."""
    separator = "_" if kind == "resp" else "-"
    return f"{kind}{separator}{round(submitted_at * 1_000_000):014x}{unique}"


def submitted_at_of(request_id: str) -> datetime | None:
    """Returns when the request of this id was submitted, to the microsecond; None if it is no request id.

    Each prompt of a list has the request's id and its position, and was submitted with the others.
    """
    match = _FORM.fullmatch(request_id)
    if match is None:
        return None
    microseconds = int(match[1], 16)
    return _EPOCH + timedelta(microseconds=microseconds) if microseconds <= _LAST else None


def response_id_of(request_id: str) -> str:
    """Returns the id of the response that a request's id belongs to: for a prompt of a list, without its
    position.
    """
    match = _FORM.fullmatch(request_id)
    return request_id if match is None or match[2] is None else request_id.removesuffix(match[2])
