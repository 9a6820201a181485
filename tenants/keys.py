"""Generates and hashes API keys, SCIM tokens, invitation tokens and password reset tokens.

A token is `rs_inference_`, `rs_admin_`, `rs_scim_`, `rs_invite_` or `rs_reset_`, then 43 base-62 characters
(256 random bits), then a checksum of 6. The checksum lets us reject mistyped tokens without a query, and
secret scanners recognize leaked ones. Only the HMAC-SHA256 of a token is stored.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import zlib
from dataclasses import dataclass, field

from tenants.context import KEY_KINDS, KeyKind

BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
SECRET_LEN = 43
CHECKSUM_LEN = 6
SHOWN_LEN = 4
"""Characters of the secret part that lists show."""

_FORM = re.compile(rf"rs_[a-z]+_([0-9A-Za-z]{{{SECRET_LEN}}})([0-9A-Za-z]{{{CHECKSUM_LEN}}})")
_KEY = tuple(f"rs_{kind}_" for kind in KEY_KINDS)
_INVITE = "rs_invite_"
_RESET = "rs_reset_"
_SCIM = "rs_scim_"


@dataclass(frozen=True, slots=True)
class NewKey:
    """A new key or token. `plaintext` is shown once and never stored."""

    plaintext: str = field(repr=False)
    prefix: str
    """The part that lists show: enough to recognize the key, useless for guessing it."""


def generate(kind: KeyKind) -> NewKey:
    if kind not in KEY_KINDS:
        raise ValueError(f"kind must be one of {', '.join(KEY_KINDS)}, not {kind!r}")
    return _drawn(f"rs_{kind}_")


def generate_invite() -> NewKey:
    """Returns a new invitation token."""
    return _drawn(_INVITE)


def generate_reset() -> NewKey:
    """Returns a new password reset token."""
    return _drawn(_RESET)


def generate_scim() -> NewKey:
    """Returns a new bearer token of an identity provider."""
    return _drawn(_SCIM)


def well_formed(plaintext: str) -> bool:
    """Returns whether this has the form of an API key. Anyone can compute the checksum, so it proves nothing
    more.
    """
    return plaintext.startswith(_KEY) and _is_whole(plaintext)


def well_formed_invite(token: str) -> bool:
    """Returns whether this has the form of an invitation token."""
    return token.startswith(_INVITE) and _is_whole(token)


def well_formed_reset(token: str) -> bool:
    """Returns whether this has the form of a password reset token."""
    return token.startswith(_RESET) and _is_whole(token)


def well_formed_scim(token: str) -> bool:
    """Returns whether this has the form of an identity provider's bearer token."""
    return token.startswith(_SCIM) and _is_whole(token)


def _drawn(form: str) -> NewKey:
    body = form + _base62(secrets.randbits(256), SECRET_LEN)
    return NewKey(body + _checksum(body), body[: len(form) + SHOWN_LEN])


def _is_whole(text: str) -> bool:
    return _FORM.fullmatch(text) is not None and text[-CHECKSUM_LEN:] == _checksum(text[:-CHECKSUM_LEN])


class KeyHasher:
    """Computes the HMAC-SHA256 of keys under the server's secret. A slow password hash is not needed: keys
    are random.
    """

    def __init__(self, secret: str) -> None:
        if len(secret) < 32:
            raise ValueError(f"the key secret must have at least 32 characters, not {len(secret)}")
        # Keyed once: setting the key costs more than the digest itself.
        self._keyed = hmac.new(secret.encode(), digestmod=hashlib.sha256)

    def digest(self, plaintext: str) -> bytes:
        """Returns the 32 bytes under which the database stores a key."""
        mac = self._keyed.copy()
        mac.update(plaintext.encode())
        return mac.digest()

    def __repr__(self) -> str:
        return "KeyHasher(...)"


def _checksum(body: str) -> str:
    return _base62(zlib.crc32(body.encode()), CHECKSUM_LEN)


def _base62(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, 62)
        digits.append(BASE62[digit])
    return "".join(reversed(digits))
