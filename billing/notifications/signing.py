"""Signs webhooks in the form of Standard Webhooks, which stock clients verify.

The notification's id, the time of sending and the body are signed together, so none can be exchanged.
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
    """Returns the secret as its owner stores it."""
    return PREFIX + base64.b64encode(secret).decode()


def hint(secret: bytes) -> str:
    """Returns enough of the secret to tell it from another."""
    return f"{PREFIX}...{shown(secret)[-5:]}"


def headers(notification_id: str, at: int, body: bytes, keys: Sequence[bytes]) -> dict[str, str]:
    """Returns the three headers, with a signature by each of `keys`: while a secret is rotated, either
    verifies. `at` is Unix seconds.
    """
    signed = f"{notification_id}.{at}.".encode() + body
    made = [base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode() for key in keys]
    return {
        "webhook-id": notification_id,
        "webhook-timestamp": str(at),
        "webhook-signature": " ".join(f"v1,{one}" for one in made),
    }
