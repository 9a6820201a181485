"""Chooses the id of an HTTP request, which `x-request-id` and the log carry."""

from __future__ import annotations

import re
from secrets import token_hex

_HARMLESS = re.compile(rb"[A-Za-z0-9_.\-]{8,64}")


def new_request_id() -> bytes:
    return b"req_" + token_hex(12).encode()


def request_id(offered: bytes | None) -> bytes:
    """Returns the client's own id if it is safe in a log and a header, else a new one."""
    if offered is not None and _HARMLESS.fullmatch(offered):
        return offered
    return new_request_id()
