"""Parses amounts of money as people write them. `admin.formatting` formats them."""

from __future__ import annotations

import re

from admin.web.form_errors import FieldError

_DOLLARS = re.compile(r"([0-9]{1,10})(?:\.([0-9]{1,6}))?")


def read_dollars(written: str, field: str) -> int:
    """Micro-USD. Raises Refused, about `field`."""
    found = _DOLLARS.fullmatch(written.strip().removeprefix("$").replace(",", ""))
    if found is None:
        raise FieldError(field, "Enter an amount in US dollars, such as 250 or 99.50.")
    return int(found[1]) * 1_000_000 + int((found[2] or "").ljust(6, "0"))
