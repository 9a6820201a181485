"""Secrets that have to be read again, sealed under the server's: a copy of the database alone shows none.

Knows no rows. AES-256-GCM under a key of its own, bound to whose the secret is.
"""

from __future__ import annotations

import hashlib
import hmac
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

NONCE_LEN = 12


class Sealer:
    """`purpose` gives each use a key of its own."""

    def __init__(self, secret: str, purpose: str) -> None:
        self._cipher = AESGCM(hmac.digest(secret.encode(), f"rootstock: {purpose}".encode(), hashlib.sha256))

    def seal(self, text: bytes, whose: str) -> bytes:
        nonce = os.urandom(NONCE_LEN)
        return nonce + self._cipher.encrypt(nonce, text, whose.encode())

    def open(self, sealed: bytes, whose: str) -> bytes:
        """Raises ValueError for what was sealed under another secret, for somebody else, or changed."""
        try:
            return self._cipher.decrypt(sealed[:NONCE_LEN], sealed[NONCE_LEN:], whose.encode())
        except InvalidTag as error:
            raise ValueError("a sealed secret cannot be opened: is this the server's secret?") from error

    def __repr__(self) -> str:
        return "Sealer(...)"
