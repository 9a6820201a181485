"""Defines the errors of shared adapters."""

from __future__ import annotations

from adapters.errors import AdapterError


class ShareNotFound(AdapterError):
    """The share does not exist, or belongs to other organizations: indistinguishable on purpose."""

    def __init__(self, share_id: str) -> None:
        super().__init__(f"there is no share {share_id[:80]!r}")


class OrganizationNotFound(AdapterError):
    """No organization has this id."""

    def __init__(self, organization_id: str) -> None:
        super().__init__(
            f"organization_id: there is no organization {organization_id[:80]!r}; its members find its id "
            "in the console under Settings"
        )
        self.field = "organization_id"


class AlreadyShared(AdapterError):
    """The organization has an offer or a share of this adapter, or another one of the same name."""

    def __init__(self, adapter: str, organization_id: str) -> None:
        super().__init__(
            f"the adapter {adapter[:80]!r}, or one of that name, is offered to or shared with "
            f"{organization_id[:80]!r} already: end that share first"
        )
        self.field = "organization_id"


class ShareAnswered(AdapterError):
    """The offer can no longer be answered this way: `state` says what became of it."""

    def __init__(self, share_id: str, state: str) -> None:
        super().__init__(f"the share {share_id[:80]!r} is {state}: ask its owner for a new offer")
        self.state = state
