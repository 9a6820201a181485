"""API keys, and tokens of invitations and resets: their form, their fingerprint, and nothing that could show
one by accident.

`rs_inference_`, `rs_admin_`, `rs_invite_` or `rs_reset_`, then 43 base-62 characters (256 random bits), then
6 of checksum: a mistyped or made-up one is refused without a query, and a scanner of leaked secrets can tell
it from noise. Only HMAC-SHA256 of it is ever stored.
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
"""Characters of the secret part that stay visible in lists."""

_FORM = re.compile(rf"rs_[a-z]+_([0-9A-Za-z]{{{SECRET_LEN}}})([0-9A-Za-z]{{{CHECKSUM_LEN}}})")
_KEY = tuple(f"rs_{kind}_" for kind in KEY_KINDS)
_INVITE = "rs_invite_"
_RESET = "rs_reset_"


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key just made. `plaintext` exists here and with whoever it is shown to, once."""

    plaintext: str = field(repr=False)
    prefix: str
    """What lists show: enough to recognise the key, nothing to guess it by."""


def generate(kind: KeyKind) -> NewKey:
    if kind not in KEY_KINDS:
        raise ValueError(f"kind must be one of {', '.join(KEY_KINDS)}, not {kind!r}")
    return _drawn(f"rs_{kind}_")


def generate_invite() -> NewKey:
    """The token of an invitation."""
    return _drawn(_INVITE)


def generate_reset() -> NewKey:
    """The token by which a password may be chosen anew."""
    return _drawn(_RESET)


def well_formed(plaintext: str) -> bool:
    """Whether this may be a key at all. Says nothing of any key that exists: the checksum is no secret."""
    return plaintext.startswith(_KEY) and _is_whole(plaintext)


def well_formed_invite(token: str) -> bool:
    """Whether this may be an invitation's token at all."""
    return token.startswith(_INVITE) and _is_whole(token)


def well_formed_reset(token: str) -> bool:
    """Whether this may be a reset's token at all."""
    return token.startswith(_RESET) and _is_whole(token)


def _drawn(form: str) -> NewKey:
    body = form + _base62(secrets.randbits(256), SECRET_LEN)
    return NewKey(body + _checksum(body), body[: len(form) + SHOWN_LEN])


def _is_whole(text: str) -> bool:
    return _FORM.fullmatch(text) is not None and text[-CHECKSUM_LEN:] == _checksum(text[:-CHECKSUM_LEN])


class KeyHasher:
    """HMAC-SHA256 under the server's secret. Not a password hash: keys are random, there is nothing to guess
    slowly.
    """

    def __init__(self, secret: str) -> None:
        if len(secret) < 32:
            raise ValueError("the key secret needs at least 32 characters")
        # Keyed once: keying anew costs more than the digest.
        self._keyed = hmac.new(secret.encode(), digestmod=hashlib.sha256)

    def digest(self, plaintext: str) -> bytes:
        """32 bytes: what the database knows a key by."""
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
