"""Defines the errors of SAML."""

from __future__ import annotations

from typing import Self

from tenants.errors import TenantError


class SamlConnectionNotFound(TenantError):
    """The organization has no SAML connection."""

    def __init__(self) -> None:
        super().__init__("SAML is not configured for this organization")


class SamlRefused(Exception):
    """A response signs no one in. The reason is one sentence for the person who signs in and for the owner
    who configures the identity provider; it quotes the response, so it must be escaped.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    @classmethod
    def because_of(cls, error: ValueError) -> Self:
        """Returns the refusal whose sentence is the error's message."""
        text = str(error)
        return cls(f"{text[:1].upper()}{text[1:]}.")
