"""What keys look like in answers, whoever they are of.

A key's text stands in the answer that makes it, as `value`, and in no other.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

from msgspec import UNSET

from api.json_bodies import unix
from api.organization.bodies import UpdateAdminKeyRequest, UpdateProjectKeyRequest
from api.organization.requests import in_seconds
from tenants.key_service import CreatedKey, ShownKey
from tenants.key_terms import KEEP, KeyChanges
from tenants.models import ApiKey, ServiceAccount, User


def admin_key_object(shown: ShownKey) -> dict[str, Any]:
    key, user, _ = shown
    return {"object": "organization.admin_api_key", **_common(key), "owner": _admin_owner(key, user)}


def project_key_object(shown: ShownKey, roles: dict[str, str]) -> dict[str, Any]:
    """`roles`: of users in the key's project, by their ids."""
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


def service_account_key_object(created: CreatedKey) -> dict[str, Any]:
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
    """Ids of the users they are of."""
    return {user.id for _, user, _ in keys if user is not None}


def _common(key: ApiKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "redacted_value": f"{key.prefix}...",
        "created_at": _required(key.created_at),
        "last_used_at": unix(key.last_used_at),
        "expires_at": unix(key.expires_at),
        "scopes": sorted(key.scopes),
        "networks": [str(network) for network in key.networks],
        "origins": sorted(key.origins),
        "rotated_at": unix(key.rotated_at),
        "replaced_by": key.replaced_by,
    }


def _admin_owner(key: ApiKey, user: User | None) -> dict[str, Any]:
    """One that no user has is the organisation's own."""
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


def _owner(user: User | None, account: ServiceAccount | None, roles: dict[str, str]) -> dict[str, Any]:
    """Empty: the project's own."""
    if user is not None:
        shown_user = {
            "id": user.id,
            "name": user.name,
            "email": user.email,
            "role": roles.get(user.id, "none"),
            "created_at": unix(user.created_at),
        }
        return {"type": "user", "user": shown_user}
    if account is not None:
        shown_account = {
            "id": account.id,
            "name": account.name,
            "role": account.role,
            "created_at": unix(account.created_at),
        }
        return {"type": "service_account", "service_account": shown_account}
    return {}


def _required(moment: datetime) -> int:
    return int(moment.timestamp())
