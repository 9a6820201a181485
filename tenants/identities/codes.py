"""Codes of second factors: those of an authenticator application (RFC 6238), and those to recover with.

Plain functions. Owns how codes look and which are good at a moment; refuses to know who was asked for one.
"""

from __future__ import annotations

import base64
import hmac
import secrets
from datetime import datetime

import pyotp

from db.base import ALPHABET

STEP_S = 30
DRIFT = 1
"""Steps that a clock may be off, either way."""
NUM_RECOVERY = 10
ISSUER = "Rootstock"
_HALF = 5
_NUM_DIGITS = 6


def new_secret() -> bytes:
    """160 bits, as the RFC asks."""
    return secrets.token_bytes(20)


def secret_text(secret: bytes) -> str:
    """In base 32: what is typed where no camera reads."""
    return base64.b32encode(secret).decode()


def uri(secret: bytes, email: str) -> str:
    """What the QR code says."""
    return pyotp.TOTP(secret_text(secret)).provisioning_uri(name=email, issuer_name=ISSUER)


def step_of(now: datetime) -> int:
    return int(now.timestamp()) // STEP_S


def code_at(secret: bytes, step: int) -> str:
    return pyotp.TOTP(secret_text(secret)).generate_otp(step)


def matching_step(secret: bytes, written: str, now: datetime, last_step: int | None) -> int | None:
    """The step whose code this is, within the drift and after the last one used; None for a wrong code."""
    digits = "".join(written.split())
    if len(digits) != _NUM_DIGITS or not (digits.isascii() and digits.isdigit()):
        return None
    current = step_of(now)
    for step in range(current - DRIFT, current + DRIFT + 1):
        if (last_step is None or step > last_step) and hmac.compare_digest(code_at(secret, step), digits):
            return step
    return None


def new_recovery_codes() -> list[str]:
    """Each of 50 random bits: nobody tries them all where a handful of tries locks."""
    letters = ("".join(secrets.choice(ALPHABET) for _ in range(2 * _HALF)) for _ in range(NUM_RECOVERY))
    return [f"{code[:_HALF]}-{code[_HALF:]}" for code in letters]


def read_recovery(written: str) -> str | None:
    """As it was made, however it was typed; None for what is none."""
    letters = "".join(written.split()).replace("-", "").lower()
    if len(letters) != 2 * _HALF or any(letter not in ALPHABET for letter in letters):
        return None
    return f"{letters[:_HALF]}-{letters[_HALF:]}"
