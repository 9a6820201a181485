"""What another provider says of somebody who proved to it who they are. Plain values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExternalIdentity:
    issuer: str
    subject: str
    """The issuer's own name for them: this it is that tells them from others, not the address."""
    email: str = ""
    email_verified: bool = False
    """The issuer has seen to it that the address is theirs."""
    name: str = ""
