"""Validates names, email addresses and texts of accounts. Each check raises ValueError naming the field.

Which characters are invisible does not depend on the Unicode version of Python, and its pattern is one that
JSON Schema can state: the OpenAPI document has it.
"""

from __future__ import annotations

import re

MAX_NAME_LEN = 100
INVISIBLE = (
    r"\x00-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890-\u0891\u08e2\u180e\u200b-\u200f\u2028-\u202e"
    r"\u2060-\u206f\ue000-\uf8ff\ufdd0-\ufdef\ufeff\ufff0-\ufffb\ufffe-\uffff"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e00ff\U000e01f0-\U0010ffff"
)
"""Of a class of characters in a pattern: control, format and private characters, and line separators."""
SPACES = r"\xa0\u1680\u2000-\u200a\u202f\u205f\u3000"
"""Of such a class: spaces other than the usual one."""
PRINTABLE = rf"[^{INVISIBLE}{SPACES}]*"
"""Pattern of one line of text."""
PRINTABLE_LINES = PRINTABLE.replace(r"\x00-\x1f", r"\x00-\x09\x0b-\x1f")
_UNPRINTABLE = re.compile(rf"[{INVISIBLE}{SPACES}\ud800-\udfff]")
_EMAIL = re.compile(r"[^@\s\x00]{1,64}@[^@\s\x00]{1,189}")


def checked_name(field: str, name: str, most: int = MAX_NAME_LEN) -> str:
    if not name.strip() or len(name) > most or not is_printable(name):
        raise ValueError(f"{field} must have 1 to {most} printable characters")
    return name.strip()


def is_printable(text: str) -> bool:
    """Returns whether it is one line without invisible characters."""
    return _UNPRINTABLE.search(text) is None


def is_email(given: str) -> bool:
    return _EMAIL.fullmatch(given) is not None and given.isprintable()


def checked_email(given: str) -> str:
    """Returns the address in lower case, as it is stored and compared."""
    if not is_email(given):
        raise ValueError(f"email: {given[:80]!r} is not an email address")
    return given.lower()
