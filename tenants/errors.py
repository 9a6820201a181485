"""What can be wrong with tenants, users and keys. Errors carry data; what HTTP makes of them is the API's
business.
"""

from __future__ import annotations


class TenantError(Exception):
    """Any of the below."""


class InvalidApiKey(TenantError):
    """Unknown, malformed, revoked, expired, or of a disabled tenant: callers are not told which. Never
    carries the key.
    """

    def __init__(self) -> None:
        super().__init__("the API key is not valid")


class TenantNotFound(TenantError):
    def __init__(self, tenant: str) -> None:
        super().__init__(f"there is no tenant {tenant!r}")
        self.tenant = tenant


class PlanNotFound(TenantError):
    def __init__(self, plan: str) -> None:
        super().__init__(f"there is no plan {plan!r}")
        self.plan = plan


class KeyNotFound(TenantError):
    """No such key in this tenant, whatever other tenants have."""

    def __init__(self, key_id: str) -> None:
        super().__init__(f"there is no API key {key_id!r}")
        self.key_id = key_id


class NameTaken(TenantError):
    """Another row holds the name, or a user's email."""

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"the {what} {name!r} is taken")
        self.what = what
        self.name = name
