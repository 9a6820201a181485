"""What people write about their account, before a row holds it: names and addresses. Raises ValueError naming
the field.
"""

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
    """In small letters: that is how addresses are told apart."""
    if not is_email(given):
        raise ValueError("email: not an address")
    return given.lower()
