"""Passwords of console users: argon2id with the library's parameters of the day, rehashed when they move on.

Blocking by design (tens of milliseconds of one core): call from a thread.
"""

from __future__ import annotations

import argon2

MIN_PASSWORD_LEN = 10
MAX_PASSWORD_LEN = 1024
"""Longer ones cost time and add nothing."""

_hasher = argon2.PasswordHasher()
_ABSENT = _hasher.hash("no user has this password")


def hash_password(password: str) -> str:
    if not MIN_PASSWORD_LEN <= len(password) <= MAX_PASSWORD_LEN:
        raise ValueError(f"password must have {MIN_PASSWORD_LEN} to {MAX_PASSWORD_LEN} characters")
    return _hasher.hash(password)


def verify_password(password_hash: str | None, password: str) -> bool:
    """Whether `password` is the one hashed. None (no such user) takes the same time and is never right."""
    try:
        _hasher.verify(_ABSENT if password_hash is None else password_hash, password[: MAX_PASSWORD_LEN + 1])
    except argon2.exceptions.VerifyMismatchError:
        return False
    return password_hash is not None


def rehash(password_hash: str, password: str) -> str | None:
    """A fresh hash of a password just verified, when the stored one's parameters are outdated; else None."""
    return _hasher.hash(password) if _hasher.check_needs_rehash(password_hash) else None
