"""Hashes and verifies passwords of console users with argon2id, with the library's current parameters.

Hashing blocks for tens of milliseconds of one core by design: call it from a thread.
"""

from __future__ import annotations

import argon2

MIN_PASSWORD_LEN = 10
MAX_PASSWORD_LEN = 1024
"""Longer passwords cost time without adding security."""

_hasher = argon2.PasswordHasher()
_ABSENT = "$argon2id$v=19$m=65536,t=3,p=4$NZCa89JsFhGqFsetcgbjrA$h4ITV3oRGhr2vj1tJZxdU9XdZCTcDlyQhty4bw2Kxsk"
"""A hash of "no user has this password" by the library's current parameters; making it takes a tenth of a
second.
"""


def hash_password(password: str) -> str:
    if not MIN_PASSWORD_LEN <= len(password) <= MAX_PASSWORD_LEN:
        raise ValueError(f"password must have {MIN_PASSWORD_LEN} to {MAX_PASSWORD_LEN} characters")
    return _hasher.hash(password)


def verify_password(password_hash: str | None, password: str) -> bool:
    """Returns whether `password` matches the hash. None (no such user) takes the same time and never
    matches.
    """
    try:
        _hasher.verify(_ABSENT if password_hash is None else password_hash, password[: MAX_PASSWORD_LEN + 1])
    except argon2.exceptions.VerifyMismatchError:
        return False
    return password_hash is not None


def rehash(password_hash: str, password: str) -> str | None:
    """Returns a new hash of a password just verified if the stored hash has outdated parameters, else
    None.
    """
    return _hasher.hash(password) if _hasher.check_needs_rehash(password_hash) else None
