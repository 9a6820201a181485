"""Defines the declarative base: constraint names, column types and id generation that every table shares."""

from __future__ import annotations

import secrets
import threading
import time
from datetime import datetime

from sqlalchemy import DateTime, MetaData, Text
from sqlalchemy.orm import DeclarativeBase

NAMING_CONVENTION = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base 32 in ASCII order: ids sort in order of creation, and no two characters look alike."""


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=NAMING_CONVENTION)
    type_annotation_map = {str: Text(), datetime: DateTime(timezone=True)}  # noqa: RUF012  SQLAlchemy's


_drawing = threading.Lock()
_last_number = 0


def new_id(prefix: str) -> str:
    """Returns `prefix_` and 26 characters: Unix milliseconds, then 82 random bits.

    Later ids sort later: always within a process; between processes, unless made in the same millisecond.
    """
    global _last_number
    with _drawing:
        number = (time.time_ns() // 1_000_000) << 82 | secrets.randbits(82)
        if number <= _last_number:
            number = _last_number + 1 + secrets.randbits(64)
        _last_number = number
    digits = []
    for _ in range(26):
        number, digit = divmod(number, 32)
        digits.append(ALPHABET[digit])
    return f"{prefix}_{''.join(reversed(digits))}"
