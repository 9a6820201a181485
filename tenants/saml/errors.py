"""Defines the errors of SAML."""

from __future__ import annotations

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
