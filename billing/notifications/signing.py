"""Signatures of webhooks in the form of Standard Webhooks, which stock clients verify.

Owns the form of secrets and of the three headers. What is signed is the notification's id, the moment of
sending and the body, so that none of them can be exchanged.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Sequence

PREFIX = "whsec_"
SECRET_BYTES = 32


def new_secret() -> bytes:
    return secrets.token_bytes(SECRET_BYTES)


def shown(secret: bytes) -> str:
    """As its holder keeps it."""
    return PREFIX + base64.b64encode(secret).decode()


def hint(secret: bytes) -> str:
    """Enough to tell it from another."""
    return f"{PREFIX}...{shown(secret)[-5:]}"


def headers(notification_id: str, at: int, body: bytes, keys: Sequence[bytes]) -> dict[str, str]:
    """`at`: Unix seconds. A signature by each of `keys`: while a secret is replaced, either verifies."""
    signed = f"{notification_id}.{at}.".encode() + body
    made = [base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode() for key in keys]
    return {
        "webhook-id": notification_id,
        "webhook-timestamp": str(at),
        "webhook-signature": " ".join(f"v1,{one}" for one in made),
    }
