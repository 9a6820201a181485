"""Defines the errors of requests to addresses that tenants name."""

from __future__ import annotations

from tenants.errors import TenantError


class EndpointUnreachable(TenantError):
    """The endpoint did not respond, or must not be contacted. The reason reveals nothing about DNS or a
    private network.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"the endpoint did not answer: {reason}")
        self.reason = reason


class AddressRefused(EndpointUnreachable):
    """The endpoint must not be contacted: a retry would change nothing."""
