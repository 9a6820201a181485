"""Signs certificates of deletion with Ed25519, under a key that is derived from the server's key secret.

It rotates with that secret. Every certificate carries its public key, and the first use of each key is an
entry of the service's own audit log: a verifier that knows the key from there needs nothing else.
"""

from __future__ import annotations

import hashlib
import hmac

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tenants.key_secrets import KeySecrets

ALGORITHM = "Ed25519"
_PURPOSE = b"rootstock: certificates of deletion"


class CertificateSigner:
    """Signs under the current key secret."""

    def __init__(self, secrets: KeySecrets) -> None:
        seed = hmac.digest(secrets.current.encode(), _PURPOSE, hashlib.sha256)
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public_key = self._key.public_key().public_bytes_raw()
        """32 bytes."""

    def sign(self, message: bytes) -> bytes:
        """Returns the signature, of 64 bytes."""
        return self._key.sign(message)

    def __repr__(self) -> str:
        return f"CertificateSigner({key_id(self.public_key)!r})"


def key_id(public_key: bytes) -> str:
    """Returns the id of a public key: 16 hexadecimal digits of its SHA-256."""
    return hashlib.sha256(public_key).hexdigest()[:16]


def is_signed(message: bytes, signature: bytes, public_key: bytes) -> bool:
    """Returns whether the signature is that of the key. Raises ValueError if the key is none."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except InvalidSignature:
        return False
    return True
