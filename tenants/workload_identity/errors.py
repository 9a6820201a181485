"""Defines the errors of workload identity."""

from __future__ import annotations

from tenants.errors import TenantError


class IdentityProviderNotFound(TenantError):
    """The tenant has no workload identity provider with this id."""

    def __init__(self, provider_id: str) -> None:
        super().__init__(f"there is no workload identity provider {provider_id[:80]!r}")


class FederationRuleNotFound(TenantError):
    """The provider has no federation rule with this id."""

    def __init__(self, rule_id: str) -> None:
        super().__init__(f"there is no federation rule {rule_id[:80]!r}")


class TooManyProviders(TenantError):
    """The tenant has as many providers, or the provider as many rules, as there can be."""

    def __init__(self, most: int, what: str) -> None:
        super().__init__(f"there can be at most {most} {what}: delete one first")


class TokenNotAccepted(TenantError):
    """A subject token is not exchanged. The message says why only to the bearer of a token that the trusted
    issuer has signed.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(
            f"The subject token is not accepted: {reason}."
            if reason
            else "The subject token is not accepted for this identity provider and service account."
        )
