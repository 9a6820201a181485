"""Verifies the signatures of the provider's webhooks: `Stripe-Signature: t=<Unix seconds>,v1=<hex>,...`.

The signature is HMAC-SHA256 of `<t>.<body>` by the endpoint's secret. Its time must be near ours on either
side: an old one is a replayed recording, a future one a recording prepared to be replayed.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from billing.payments.errors import BadSignature

MAX_HEADER = 2_000
MAX_SIGNATURES = 16
"""There are two while a secret is rotated."""


def verify(header: str | None, body: bytes, secrets: Sequence[str], *, now: float, tolerance: float) -> None:
    """Raises BadSignature unless one of the secrets signed the body at about `now`."""
    if not header or len(header) > MAX_HEADER:
        raise BadSignature("no header, or one too long")
    times: list[str] = []
    given: list[str] = []
    for part in header.split(","):
        name, _, value = part.strip().partition("=")
        if name == "t":
            times.append(value)
        elif name == "v1":
            given.append(value)
    if len(times) != 1 or not (times[0].isascii() and times[0].isdigit() and len(times[0]) <= 12):
        raise BadSignature("no time")
    if not 0 < len(given) <= MAX_SIGNATURES:
        raise BadSignature("no signature")
    # The time is checked last, so a sender without the secret learns nothing of our clock.
    signed = times[0].encode() + b"." + body
    expected = [hmac.digest(secret.encode(), signed, hashlib.sha256).hex() for secret in secrets]
    matches = [hmac.compare_digest(one.encode(), by.encode()) for one in expected for by in given]
    if not any(matches):
        raise BadSignature("no signature matches")
    if abs(int(times[0]) - now) > tolerance:
        raise BadSignature("its time is too far from ours")
