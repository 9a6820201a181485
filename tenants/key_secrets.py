"""Holds the server's key secret, and a second one that is accepted while the secret is rotated.

Keys, tokens and sealed values are made with the current secret and accepted under both. Each of them says
which secret it was made with, by the secret's id, so that the ones that still need the other secret can be
counted.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

MIN_LEN = 32
ID_LEN = 4
"""Bytes of a secret's id."""


@dataclass(frozen=True, slots=True)
class KeySecrets:
    """The current secret, and the other one that is accepted beside it. Raises ValueError."""

    current: str = field(repr=False)
    other: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for secret in self.accepted:
            if len(secret) < MIN_LEN:
                raise ValueError(
                    f"the key secret must have at least {MIN_LEN} characters, not {len(secret)}: "
                    "make one with `openssl rand -hex 32`"
                )
        if self.other == self.current:
            raise ValueError("the previous key secret is the current one: unset it, or set the one before")

    @classmethod
    def of(cls, secret: str | KeySecrets) -> KeySecrets:
        """Returns the secrets; a plain string is one that is not being rotated."""
        return secret if isinstance(secret, KeySecrets) else cls(secret)

    @property
    def accepted(self) -> tuple[str, ...]:
        """The secrets under which keys and sealed values are valid, the current one first."""
        return (self.current,) if self.other is None else (self.current, self.other)

    @property
    def id(self) -> str:
        """The id of the current secret."""
        return secret_id(self.current).hex()


def secret_id(secret: str) -> bytes:
    """Returns the `ID_LEN` bytes by which rows name a secret. They tell nothing of it."""
    return hmac.digest(secret.encode(), b"rootstock: id of a secret", hashlib.sha256)[:ID_LEN]
