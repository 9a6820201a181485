"""Holds the claims of an identity provider about a user who signed in with it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExternalIdentity:
    issuer: str
    subject: str
    """The issuer's id of the user. Users are matched by it, never by their address."""
    email: str = ""
    email_verified: bool = False
    """Whether the issuer has verified that the address belongs to the user."""
    name: str = ""
