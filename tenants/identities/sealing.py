"""Encrypts secrets that have to be read again, so that a copy of the database alone reveals none.

AES-256-GCM, with a key derived from the server's secret for each purpose. The owner's id is authenticated as
associated data, so a ciphertext cannot be moved to another row. While the secret is rotated, what
`RotatingSealer` seals begins with a label that says under which one, so that rows can be resealed.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tenants.key_secrets import ID_LEN, KeySecrets, secret_id

NONCE_LEN = 12
_MARK = b"rs\x01\x7e"
"""Begins every label. What was sealed while there was one secret begins with a random nonce instead."""
LABEL_LEN = len(_MARK) + ID_LEN


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


class RotatingSealer:
    """Encrypts under the current key secret, and decrypts under each that is accepted."""

    def __init__(self, secret: str | KeySecrets, purpose: str) -> None:
        accepted = KeySecrets.of(secret).accepted
        self._by_label = {label_of(one): Sealer(one, purpose) for one in accepted}
        self.label = label_of(accepted[0])
        """Begins what was sealed under the current secret while there was another."""

    def seal(self, text: bytes, whose: str) -> bytes:
        """Encrypts; with a label only while there are two secrets to tell apart, since 0.3.0 reads none: its
        processes serve beside newer ones during an upgrade.
        """
        sealed = self._by_label[self.label].seal(text, whose)
        return self.label + sealed if len(self._by_label) > 1 else sealed

    def open(self, sealed: bytes, whose: str) -> bytes:
        """Decrypts. Raises ValueError if it was encrypted under a secret that is not accepted, for another
        owner, or was changed.
        """
        labelled = self._by_label.get(sealed[:LABEL_LEN])
        if labelled is not None:
            return labelled.open(sealed[LABEL_LEN:], whose)
        *others, last = self._by_label.values()
        for sealer in others:
            with contextlib.suppress(ValueError):
                return sealer.open(sealed, whose)
        return last.open(sealed, whose)

    def __repr__(self) -> str:
        return "RotatingSealer(...)"


def label_of(secret: str) -> bytes:
    """Returns what values begin with that are sealed under the secret."""
    return _MARK + secret_id(secret)
