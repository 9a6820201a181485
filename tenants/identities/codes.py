"""Generates and checks second-factor codes: TOTP codes of authenticator apps (RFC 6238) and recovery
codes.
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
"""Steps of clock drift that are accepted in either direction."""
NUM_RECOVERY = 10
ISSUER = "Rootstock"
_HALF = 5
_NUM_DIGITS = 6


def new_secret() -> bytes:
    """Returns 160 random bits, the length that RFC 4226 recommends."""
    return secrets.token_bytes(20)


def secret_text(secret: bytes) -> str:
    """Returns the secret in base 32, to type into an app that cannot scan the QR code."""
    return base64.b32encode(secret).decode()


def uri(secret: bytes, email: str) -> str:
    """Returns the `otpauth://` URI that the QR code encodes."""
    return pyotp.TOTP(secret_text(secret)).provisioning_uri(name=email, issuer_name=ISSUER)


def step_of(now: datetime) -> int:
    return int(now.timestamp()) // STEP_S


def code_at(secret: bytes, step: int) -> str:
    return pyotp.TOTP(secret_text(secret)).generate_otp(step)


def matching_step(secret: bytes, written: str, now: datetime, last_step: int | None) -> int | None:
    """Returns the time step of a code, within the drift and after the last step used; None for a wrong
    code.
    """
    digits = "".join(written.split())
    if len(digits) != _NUM_DIGITS or not (digits.isascii() and digits.isdigit()):
        return None
    current = step_of(now)
    for step in range(current - DRIFT, current + DRIFT + 1):
        if (last_step is None or step > last_step) and hmac.compare_digest(code_at(secret, step), digits):
            return step
    return None


def new_recovery_codes() -> list[str]:
    """Returns codes of 50 random bits each: out of reach of guessing, because a few failed attempts lock."""
    letters = ("".join(secrets.choice(ALPHABET) for _ in range(2 * _HALF)) for _ in range(NUM_RECOVERY))
    return [f"{code[:_HALF]}-{code[_HALF:]}" for code in letters]


def read_recovery(written: str) -> str | None:
    """Returns a recovery code in its canonical form, whatever its case and spacing; None if it is not one."""
    letters = "".join(written.split()).replace("-", "").lower()
    if len(letters) != 2 * _HALF or any(letter not in ALPHABET for letter in letters):
        return None
    return f"{letters[:_HALF]}-{letters[_HALF:]}"
