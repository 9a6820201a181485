"""Encrypts secrets that have to be read again, so that a copy of the database alone reveals none.

AES-256-GCM, with a key derived from the server's secret for each purpose. The owner's id is authenticated as
associated data, so a ciphertext cannot be moved to another row.
"""

from __future__ import annotations

import hashlib
import hmac
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

NONCE_LEN = 12


class Sealer:
    """Encrypts and decrypts under a key that is derived from the server's secret and `purpose`."""

    def __init__(self, secret: str, purpose: str) -> None:
        self._cipher = AESGCM(hmac.digest(secret.encode(), f"rootstock: {purpose}".encode(), hashlib.sha256))

    def seal(self, text: bytes, whose: str) -> bytes:
        nonce = os.urandom(NONCE_LEN)
        return nonce + self._cipher.encrypt(nonce, text, whose.encode())

    def open(self, sealed: bytes, whose: str) -> bytes:
        """Decrypts. Raises ValueError if it was encrypted under another secret, for another owner, or was
        changed.
        """
        try:
            return self._cipher.decrypt(sealed[:NONCE_LEN], sealed[NONCE_LEN:], whose.encode())
        except InvalidTag as error:
            raise ValueError(
                "a stored secret cannot be decrypted: check that ROOTSTOCK_TENANTS_KEY_SECRET has not changed"
            ) from error

    def __repr__(self) -> str:
        return "Sealer(...)"
