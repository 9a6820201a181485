"""Builds the response objects of API keys: admin keys, project keys and keys of service accounts.

Only the response that creates a key has its plaintext, as `value`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, NotRequired, TypedDict

from msgspec import UNSET

from api.json_bodies import unix
from api.organization.admin_requests import in_seconds
from api.organization.request_bodies import UpdateAdminKeyRequest, UpdateProjectKeyRequest
from tenants.key_restrictions import KEEP, KeyChanges
from tenants.key_service import CreatedKey, ShownKey
from tenants.models import ApiKey, ServiceAccount, User


class _KeyFields(TypedDict):
    id: str
    name: str
    redacted_value: str
    """The beginning of the key, to recognise it by."""
    created_at: int
    """Unix seconds."""
    last_used_at: int | None
    """Unix seconds; null for a key that was never used."""
    expires_at: int | None
    """Unix seconds; null for a key that does not expire."""
    scopes: list[str]
    """The scopes that the key is restricted to; empty when it is not restricted."""
    networks: list[str]
    """The addresses and networks that the key can be used from; empty for all."""
    origins: list[str]
    """The web origins whose pages can use the key."""
    rotated_at: int | None
    """Unix seconds; null until the key is rotated."""
    replaced_by: str | None
    """The id of the key that replaced it when it was rotated."""


class AdminKeyOwner(TypedDict):
    """The user that an admin key belongs to, or the organization."""

    type: Literal["user", "organization"]
    object: str
    id: str
    name: NotRequired[str]
    role: NotRequired[str]
    created_at: NotRequired[int]


class AdminKeyObject(_KeyFields):
    """An API key that manages the organization."""

    object: Literal["organization.admin_api_key"]
    owner: AdminKeyOwner


class CreatedAdminKeyObject(AdminKeyObject):
    """An admin key with its value."""

    value: str
    """The key itself. It is shown only once."""


class KeyOwnerObject(TypedDict):
    """A user or a service account that owns a key."""

    id: str
    name: str
    email: NotRequired[str]
    role: str
    """The owner's role in the project; `none` for a user who is not a member."""
    created_at: int
    """Unix seconds."""


class ProjectKeyOwner(TypedDict):
    """Who owns a key of a project; empty for the project itself."""

    type: NotRequired[Literal["user", "service_account"]]
    user: NotRequired[KeyOwnerObject]
    service_account: NotRequired[KeyOwnerObject]


class ProjectKeyObject(_KeyFields):
    """An API key that makes requests for a project."""

    object: Literal["organization.project.api_key"]
    project_id: str | None
    models: list[str]
    """The models that the key can use; empty for all."""
    owner: ProjectKeyOwner
    owner_project_access: Literal["active", "inactive"]
    """Whether the owner has access to the project."""


class CreatedProjectKeyObject(ProjectKeyObject):
    """A key of a project with its value."""

    value: str
    """The key itself. It is shown only once."""


class ServiceAccountKeyObject(TypedDict):
    """A key of a service account with its value."""

    object: Literal["organization.project.service_account.api_key"]
    id: str
    name: str
    created_at: int
    """Unix seconds."""
    expires_at: int | None
    """Unix seconds; null for a key that does not expire."""
    value: str
    """The key itself. It is shown only once."""


def admin_key_object(shown: ShownKey) -> AdminKeyObject:
    key, user, _ = shown
    return {"object": "organization.admin_api_key", **_common(key), "owner": _admin_owner(key, user)}


def project_key_object(shown: ShownKey, roles: dict[str, str]) -> ProjectKeyObject:
    """Returns a project key's object. `roles`: roles in the key's project, by user id."""
    key, user, account = shown
    has_access = user is None or (
        user.disabled_at is None and (user.id in roles or user.role in ("owner", "admin"))
    )
    return {
        "object": "organization.project.api_key",
        **_common(key),
        "project_id": key.project_id,
        "models": sorted(key.models),
        "owner": _owner(user, account, roles),
        "owner_project_access": "active" if has_access else "inactive",
    }


def service_account_key_object(created: CreatedKey) -> ServiceAccountKeyObject:
    key = created.row
    return {
        "object": "organization.project.service_account.api_key",
        "id": key.id,
        "name": key.name,
        "created_at": unix(key.created_at),
        "expires_at": unix(key.expires_at),
        "value": created.plaintext,
    }


def changes_of(body: UpdateAdminKeyRequest) -> KeyChanges:
    models = body.models if isinstance(body, UpdateProjectKeyRequest) else UNSET
    return KeyChanges(
        name=None if body.name is UNSET else body.name,
        scopes=None if body.scopes is UNSET else frozenset(body.scopes),
        models=None if models is UNSET else frozenset(models),
        networks=None if body.networks is UNSET else tuple(body.networks),
        origins=None if body.origins is UNSET else tuple(body.origins),
        expires_at=KEEP if body.expires_in_seconds is UNSET else in_seconds(body.expires_in_seconds),
    )


def owners(keys: Collection[ShownKey]) -> set[str]:
    """Returns the ids of the users that the keys belong to."""
    return {user.id for _, user, _ in keys if user is not None}


def _common(key: ApiKey) -> _KeyFields:
    return {
        "id": key.id,
        "name": key.name,
        "redacted_value": f"{key.prefix}...",
        "created_at": unix(key.created_at),
        "last_used_at": unix(key.last_used_at),
        "expires_at": unix(key.expires_at),
        "scopes": sorted(key.scopes),
        "networks": [str(network) for network in key.networks],
        "origins": sorted(key.origins),
        "rotated_at": unix(key.rotated_at),
        "replaced_by": key.replaced_by,
    }


def _admin_owner(key: ApiKey, user: User | None) -> AdminKeyOwner:
    """Returns the owner; a key without a user belongs to the organization."""
    if user is None:
        return {"type": "organization", "object": "organization", "id": key.tenant_id}
    return {
        "type": "user",
        "object": "organization.user",
        "id": user.id,
        "name": user.name,
        "role": user.role,
        "created_at": unix(user.created_at),
    }


def _owner(user: User | None, account: ServiceAccount | None, roles: dict[str, str]) -> ProjectKeyOwner:
    """Returns the owner; empty for the project itself."""
    if user is not None:
        shown_user: KeyOwnerObject = {
            "id": user.id,
            "name": user.name,
            "email": user.email,
            "role": roles.get(user.id, "none"),
            "created_at": unix(user.created_at),
        }
        return {"type": "user", "user": shown_user}
    if account is not None:
        shown_account: KeyOwnerObject = {
            "id": account.id,
            "name": account.name,
            "role": account.role,
            "created_at": unix(account.created_at),
        }
        return {"type": "service_account", "service_account": shown_account}
    return {}
