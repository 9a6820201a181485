"""Converts users and groups from and to SCIM's JSON (RFC 7643), and selects the attributes of a response."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from api.errors import InvalidScim
from tenants.provisioning.profiles import (
    NAMES,
    GroupProfile,
    ProvisionedGroup,
    ProvisionedUser,
    UserProfile,
)

USER = "urn:ietf:params:scim:schemas:core:2.0:User"
GROUP = "urn:ietf:params:scim:schemas:core:2.0:Group"
Document = dict[str, Any]
"""The attributes of a resource that a client can write."""
_EMAIL_PARTS = {"value": str, "type": str, "primary": bool}
_ALWAYS = frozenset({"schemas", "id"})


# Users ----------------------------------------------------------------------------------------------------


def user_document(profile: UserProfile) -> Document:
    """Returns the attributes that a PATCH changes."""
    document: Document = {"userName": profile.user_name, **profile.attributes, "active": profile.active}
    if profile.external_id is not None:
        document["externalId"] = profile.external_id
    return document


def user_resource(user: ProvisionedUser, base: str) -> dict[str, Any]:
    shown = {"schemas": [USER], "id": user.id, **user_document(user.profile)}
    if user.groups:
        shown["groups"] = [
            {"value": one.id, "$ref": f"{base}/Groups/{one.id}", "display": one.display_name}
            for one in user.groups
        ]
    return shown | {"meta": _meta("User", user.created_at, user.updated_at, f"{base}/Users/{user.id}")}


def read_user(body: Mapping[str, Any]) -> UserProfile:
    """Returns the user that a body describes. Attributes that are not stored are ignored. Raises
    InvalidScim.
    """
    given = _by_lower_name(body)
    name = given.get("name") or {}
    if not isinstance(name, Mapping):
        raise _invalid("name", "an object")
    parts = _by_lower_name(name)
    emails = given.get("emails") or []
    return UserProfile(
        user_name=_text(given, "userName") or "",
        external_id=_text(given, "externalId"),
        display_name=_text(given, "displayName"),
        name={part: text for part in NAMES if (text := _text(parts, part)) is not None},
        emails=tuple(_read_email(one) for one in _listed("emails", emails)),
        active=_read_active(given.get("active")),
    )


def _read_email(email: Any) -> dict[str, Any]:
    if not isinstance(email, Mapping):
        raise _invalid("emails", "a list of objects")
    given = _by_lower_name(email)
    found = {part: given[part] for part in _EMAIL_PARTS if given.get(part) is not None}
    if "primary" in found:
        found["primary"] = _boolean("emails.primary", found["primary"])
    for part, value in found.items():
        if not isinstance(value, _EMAIL_PARTS[part]) or len(str(value)) > 300:
            raise _invalid(f"emails.{part}", "text")
    if not found.get("value"):
        raise _invalid("emails.value", "an email address")
    return found


def _read_active(given: Any) -> bool:
    return True if given is None else _boolean("active", given)


def _boolean(attribute: str, given: Any) -> bool:
    """Some identity providers send booleans as text."""
    found = {"true": True, "false": False}.get(given.lower()) if isinstance(given, str) else given
    if not isinstance(found, bool):
        raise _invalid(attribute, "true or false")
    return found


# Groups ---------------------------------------------------------------------------------------------------


def group_document(profile: GroupProfile) -> Document:
    """Returns the attributes that a PATCH changes."""
    document: Document = {"displayName": profile.display_name}
    if profile.external_id is not None:
        document["externalId"] = profile.external_id
    if profile.member_ids:
        document["members"] = [{"value": user_id} for user_id in sorted(profile.member_ids)]
    return document


def group_resource(group: ProvisionedGroup, base: str) -> dict[str, Any]:
    shown = {"schemas": [GROUP], "id": group.id, **group_document(group.profile)}
    for member in shown.get("members", ()):
        member |= {"$ref": f"{base}/Users/{member['value']}", "type": "User"}
    return shown | {"meta": _meta("Group", group.created_at, group.updated_at, f"{base}/Groups/{group.id}")}


def read_group(body: Mapping[str, Any]) -> GroupProfile:
    """Returns the group that a body describes. Raises InvalidScim."""
    given = _by_lower_name(body)
    members = _listed("members", given.get("members") or [])
    return GroupProfile(
        _text(given, "displayName") or "", _text(given, "externalId"), frozenset(map(_read_member, members))
    )


def _read_member(member: Any) -> str:
    given = _by_lower_name(member) if isinstance(member, Mapping) else {}
    value = given.get("value")
    if not isinstance(value, str):
        raise _invalid("members", 'a list of objects with the id of a user as "value"')
    return value


# Both -----------------------------------------------------------------------------------------------------


def selected(
    resource: Mapping[str, Any], attributes: Sequence[str], excluded: Sequence[str]
) -> dict[str, Any]:
    """Returns the resource with only `attributes`, or without those `excluded`; names are in lower case, as
    `name` or `name.givenname`.
    """
    shown: dict[str, Any] = {}
    for name, value in resource.items():
        lower = name.lower()
        if name in _ALWAYS or (not attributes and not excluded):
            shown[name] = value
        elif attributes:
            parts = _sub_names(lower, attributes)
            if lower in attributes:
                shown[name] = value
            elif parts:
                shown[name] = _with_parts(value, parts, keep=True)
        elif lower not in excluded:
            shown[name] = _with_parts(value, _sub_names(lower, excluded), keep=False)
    return shown


def _sub_names(attribute: str, names: Sequence[str]) -> set[str]:
    return {name.partition(".")[2] for name in names if name.startswith(f"{attribute}.")}


def _with_parts(value: Any, parts: set[str], *, keep: bool) -> Any:
    if isinstance(value, list):
        return [_with_parts(one, parts, keep=keep) for one in value]
    if not isinstance(value, Mapping):
        return value
    return {name: inner for name, inner in value.items() if (name.lower() in parts) == keep}


def _meta(kind: str, created: datetime, updated: datetime, location: str) -> dict[str, str]:
    return {
        "resourceType": kind,
        "created": _written(created),
        "lastModified": _written(updated),
        "location": location,
    }


def _written(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _by_lower_name(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the attributes by their names in lower case: SCIM ignores case."""
    return {name.lower(): value for name, value in given.items()}


def _text(given: Mapping[str, Any], attribute: str) -> str | None:
    value = given.get(attribute.lower())
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise _invalid(attribute, "text")
    return value


def _listed(attribute: str, given: Any) -> list[Any]:
    if isinstance(given, Mapping):
        return [given]
    if not isinstance(given, list):
        raise _invalid(attribute, "a list")
    return given


def _invalid(attribute: str, what: str) -> InvalidScim:
    return InvalidScim(f"{attribute} must be {what}", "invalidValue")
