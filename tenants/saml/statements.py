"""Describes what an organization knows of its identity provider, and what that one says of a user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class IdentityProvider:
    """What an owner has entered of the organization's identity provider."""

    entity_id: str
    certificates: Sequence[str]
    """PEM."""
    email_attribute: str | None = None
    """Name of the attribute with the address; None: one of the usual names, else the NameID."""
    groups_attribute: str | None = None


@dataclass(frozen=True, slots=True)
class Assertion:
    """A verified statement of the identity provider about who signs in."""

    id: str
    subject: str
    """NameID: the provider's id of the user."""
    email: str
    """Empty if there is none."""
    name: str
    groups: tuple[str, ...] | None
    """None: groups are not read from assertions."""
    in_response_to: str | None
    """Id of the request that it answers. None: the provider began."""
    expires_at: datetime
    """Until when its id must be remembered."""
