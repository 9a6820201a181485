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
from tenants.key_secrets import KeySecrets

BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
DIGEST_LEN = 32
"""Bytes of a stored HMAC."""
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

    def __init__(self, secret: str | KeySecrets) -> None:
        """Raises ValueError for a secret that is too short."""
        secrets_ = KeySecrets.of(secret)
        self.secret_id = secrets_.id
        """Of the secret that `digest` uses."""
        # Keyed once: setting the key costs more than the digest itself.
        self._keyed, *others = (hmac.new(one.encode(), digestmod=hashlib.sha256) for one in secrets_.accepted)
        self._other = others[0] if others else None

    def digest(self, plaintext: str) -> bytes:
        """Returns the 32 bytes under which the database stores a key."""
        return _digest(self._keyed, plaintext)

    def other_digest(self, plaintext: str) -> bytes | None:
        """Returns the key's digest under the other secret that is accepted; None when there is none."""
        return None if self._other is None else _digest(self._other, plaintext)

    def digests(self, plaintext: str) -> list[bytes]:
        """Returns every digest under which the database may have a key, the current one first."""
        other = self.other_digest(plaintext)
        return [self.digest(plaintext), *([] if other is None else [other])]

    def __repr__(self) -> str:
        return "KeyHasher(...)"


def _digest(keyed: hmac.HMAC, plaintext: str) -> bytes:
    mac = keyed.copy()
    mac.update(plaintext.encode())
    return mac.digest()


def _checksum(body: str) -> str:
    return _base62(zlib.crc32(body.encode()), CHECKSUM_LEN)


def _base62(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, 62)
        digits.append(BASE62[digit])
    return "".join(reversed(digits))
