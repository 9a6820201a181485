"""Describes a user and a group as an identity provider does, and validates both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tenants.models import User
from tenants.scim.models import ScimGroup, ScimUser
from tenants.validation import MAX_NAME_LEN, checked_email, is_email, is_printable

MAX_TEXT = 254
MAX_EMAILS = 10
NAMES = ("formatted", "givenName", "familyName")
"""Parts of a name that are stored."""


@dataclass(frozen=True, slots=True)
class UserProfile:
    """A user, as the identity provider describes them."""

    user_name: str
    external_id: str | None = None
    display_name: str | None = None
    name: Mapping[str, str] = field(default_factory=dict)
    """Some of `NAMES`."""
    emails: Sequence[Mapping[str, Any]] = ()
    """Each with `value`, and `type` and `primary` where they were sent."""
    active: bool = True

    @property
    def email(self) -> str:
        """The address that the user signs in with: the primary one, else the first, else the user name."""
        primary = [one["value"] for one in self.emails if one.get("primary") is True]
        return (primary or [one["value"] for one in self.emails] or [self.user_name])[0]

    @property
    def shown_name(self) -> str:
        """The name that the console shows; empty if the provider sent none."""
        whole = " ".join(filter(None, (self.name.get("givenName"), self.name.get("familyName"))))
        found = self.display_name or self.name.get("formatted") or whole
        return found.strip()[:MAX_NAME_LEN]

    @property
    def attributes(self) -> dict[str, Any]:
        """The part that is stored as it was sent."""
        found: dict[str, Any] = {}
        if self.display_name is not None:
            found["displayName"] = self.display_name
        if self.name:
            found["name"] = dict(self.name)
        if self.emails:
            found["emails"] = [dict(one) for one in self.emails]
        return found

    def check(self) -> None:
        """Raises ValueError naming the attribute."""
        if not self.user_name.strip() or len(self.user_name) > MAX_TEXT or not is_printable(self.user_name):
            raise ValueError(f"userName must have 1 to {MAX_TEXT} printable characters")
        _check_external_id(self.external_id)
        names = {
            "displayName": self.display_name,
            **{f"name.{part}": text for part, text in self.name.items()},
        }
        for attribute, text in names.items():
            if text is not None and (len(text) > MAX_TEXT or not is_printable(text)):
                raise ValueError(f"{attribute} must have at most {MAX_TEXT} printable characters")
        if len(self.emails) > MAX_EMAILS:
            raise ValueError(f"emails must be at most {MAX_EMAILS}, not {len(self.emails)}")
        if sum(one.get("primary") is True for one in self.emails) > 1:
            raise ValueError("emails: only one can be primary")
        for one in self.emails:
            checked_email(one["value"])
        if not is_email(self.email):
            raise ValueError(
                "emails: send an email address, or a userName that is one: the user signs in with it"
            )


@dataclass(frozen=True, slots=True)
class GroupProfile:
    """A group, as the identity provider describes it."""

    display_name: str
    external_id: str | None = None
    member_ids: frozenset[str] = frozenset()

    def check(self) -> None:
        """Raises ValueError naming the attribute."""
        if not self.display_name.strip() or len(self.display_name) > MAX_TEXT:
            raise ValueError(f"displayName must have 1 to {MAX_TEXT} printable characters")
        if not is_printable(self.display_name):
            raise ValueError(f"displayName must have 1 to {MAX_TEXT} printable characters")
        _check_external_id(self.external_id)


@dataclass(frozen=True, slots=True)
class GroupName:
    """A group that a user is in."""

    id: str
    display_name: str


@dataclass(frozen=True, slots=True)
class ProvisionedUser:
    """A stored user."""

    id: str
    profile: UserProfile
    role: str
    groups: Sequence[GroupName]
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class ProvisionedGroup:
    """A stored group."""

    id: str
    profile: GroupProfile
    """Without its members where they were not asked for."""
    role: str | None
    num_members: int
    created_at: datetime
    updated_at: datetime
    is_added_by_hand: bool = False


def profile_of(user: User, row: ScimUser | None) -> UserProfile:
    """Returns what the provider said of the user; of a member it never wrote to, the console's account."""
    is_active = user.disabled_at is None
    if row is None:
        emails = ({"value": user.email, "primary": True},)
        return UserProfile(user.email, None, user.name or None, {}, emails, is_active)
    stored = row.attributes
    return UserProfile(
        row.user_name,
        row.external_id,
        stored.get("displayName"),
        stored.get("name", {}),
        tuple(stored.get("emails", ())),
        is_active,
    )


def provisioned_user(user: User, row: ScimUser | None, groups: Sequence[GroupName] = ()) -> ProvisionedUser:
    updated = user.created_at if row is None else row.updated_at
    return ProvisionedUser(user.id, profile_of(user, row), user.role, groups, user.created_at, updated)


def provisioned_group(row: ScimGroup, member_ids: frozenset[str], num_members: int) -> ProvisionedGroup:
    profile = GroupProfile(row.display_name, row.external_id, member_ids)
    return ProvisionedGroup(
        row.id,
        profile,
        row.role,
        num_members,
        row.created_at,
        row.updated_at,
        bool(row.is_added_by_hand),
    )


def _check_external_id(external_id: str | None) -> None:
    if external_id is not None and (len(external_id) > MAX_TEXT or not is_printable(external_id)):
        raise ValueError(f"externalId must have at most {MAX_TEXT} printable characters")
