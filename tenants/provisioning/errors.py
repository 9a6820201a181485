"""Defines the errors of provisioning by an identity provider. `api.scim` shows them as SCIM errors."""

from __future__ import annotations

from tenants.errors import TenantError


class InvalidScimToken(TenantError):
    """The token is unknown, revoked, or of a disabled tenant; clients cannot see which."""

    def __init__(self) -> None:
        super().__init__("the SCIM token is not valid")


class ScimTokenNotFound(TenantError):
    """The tenant has no SCIM token with this id, or it is revoked."""

    def __init__(self, token_id: str) -> None:
        super().__init__(f"there is no SCIM token {token_id[:80]!r}")


class TooManyScimTokens(TenantError):
    """The tenant has as many tokens as it can have."""

    def __init__(self, most: int) -> None:
        super().__init__(f"there are {most} SCIM tokens already: revoke one before you create another")


class GroupNotFound(TenantError):
    """The tenant has no group with this id."""

    def __init__(self, group_id: str) -> None:
        super().__init__(f"there is no group {group_id[:80]!r}")


class NotAMember(TenantError):
    """A group's member is not a user of the tenant."""

    def __init__(self, user_id: str) -> None:
        super().__init__(f"members: there is no user {user_id[:80]!r}")


class InvalidFilter(TenantError):
    """A filter cannot be read, or names an attribute that cannot be filtered by."""
