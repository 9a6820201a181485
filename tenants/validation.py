"""Validates names and email addresses of accounts. Each check raises ValueError naming the field."""

from __future__ import annotations

import re

MAX_NAME_LEN = 100
_EMAIL = re.compile(r"[^@\s\x00]{1,64}@[^@\s\x00]{1,189}")


def checked_name(field: str, name: str) -> str:
    if not name.strip() or len(name) > MAX_NAME_LEN or not name.isprintable():
        raise ValueError(f"{field} must have 1 to {MAX_NAME_LEN} printable characters")
    return name.strip()


def is_email(given: str) -> bool:
    return _EMAIL.fullmatch(given) is not None and given.isprintable()


def checked_email(given: str) -> str:
    """Returns the address in lower case, as it is stored and compared."""
    if not is_email(given):
        raise ValueError(f"email: {given[:80]!r} is not an email address")
    return given.lower()
