"""Computes the digest of a list of deleted ids, which grows by one id at a time.

`digest = SHA-256(digest before + SHA-256(id))`, from 32 zero bytes, in order of deletion. Only the last
digest is stored, so a list of any length has one of 32 bytes; who has the ids, of a backup say, computes it
again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

START = bytes(32)
MOST_LISTED = 1000
"""Ids of one table that a certificate lists beside their digest."""


def extended(digest: bytes, ids: Iterable[str]) -> bytes:
    """Returns the digest of the list with these ids behind it."""
    for one in ids:
        digest = hashlib.sha256(digest + hashlib.sha256(one.encode()).digest()).digest()
    return digest
