"""Defines the errors of organizations' public keys."""

from __future__ import annotations

from tenants.errors import TenantError


class SigningKeyNotFound(TenantError):
    """The organization has no public key with this id, or it is removed."""

    def __init__(self, key_id: str) -> None:
        super().__init__(f"there is no signing key {key_id[:80]!r}")


class TooManySigningKeys(TenantError):
    def __init__(self, most: int) -> None:
        super().__init__(f"there are {most} signing keys already: remove one before you add another")


class SigningKeyKnown(TenantError):
    """The organization has registered this public key already."""

    def __init__(self, name: str) -> None:
        super().__init__(f"public_key: it is registered already, as {name!r}")
