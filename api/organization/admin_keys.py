"""`/v1/organization/admin_api_keys`: keys that run the account itself."""

from __future__ import annotations

from datetime import timedelta

from fastapi import Request

from api.authentication import READ_KEYS, WRITE_KEYS
from api.openapi.routing import Router, fails_with, json_body
from api.organization.admin_requests import (
    AdminCaller,
    authenticated_admin,
    in_seconds,
    naming_fields,
    read_body,
)
from api.organization.keys import AdminKeyObject, CreatedAdminKeyObject, admin_key_object, changes_of
from api.organization.request_bodies import CreateAdminKeyRequest, RotateKeyRequest, UpdateAdminKeyRequest
from api.organization.response_objects import DeletedObject, deleted
from api.organization.scopes import check_scopes
from api.pagination import Page, Paged, page
from tenants.errors import KeyNotActive, KeyNotFound, RightsNotHeld
from tenants.key_restrictions import KeyRestrictions

router = Router(prefix="/v1/organization/admin_api_keys", tags=["Keys"])


@router.post("", operation_id="createAdminKey", openapi_extra=json_body("CreateAdminKeyRequest"))
@fails_with(RightsNotHeld("scopes", ["organization.billing.write"]))
async def create_admin_key(request: Request) -> CreatedAdminKeyObject:
    """Creates an API key that manages the organization. It can do no more than the key that creates it. The
    response is the only one that has the key's `value`.
    """
    who = await authenticated_admin(request, WRITE_KEYS)
    body = await read_body(request, CreateAdminKeyRequest)
    check_scopes("admin", body.scopes)
    restrictions = KeyRestrictions(
        scopes=frozenset(body.scopes),
        networks=tuple(body.networks),
        origins=tuple(body.origins),
        expires_at=in_seconds(body.expires_in_seconds),
    )
    with naming_fields():
        made = await who.accounts.keys.create(
            who.tenant_id,
            body.name,
            who.actor,
            kind="admin",
            user_id=who.caller.user_id,
            restrictions=restrictions,
        )
    return {**await _shown(who, made.id), "value": made.plaintext}


@router.get("", operation_id="listAdminKeys")
async def list_admin_keys(request: Request, query: Paged) -> Page[AdminKeyObject]:
    """Lists the admin keys that are not revoked."""
    who = await authenticated_admin(request, READ_KEYS)
    found = await who.accounts.keys.list(
        who.tenant_id,
        kind="admin",
        after=query.after,
        limit=query.limit + 1,
        newest_first=query.newest_first,
    )
    return page([admin_key_object(key) for key in found], query.limit)


@router.get("/{key_id}", operation_id="retrieveAdminKey")
@fails_with(KeyNotFound("key_1"))
async def retrieve_admin_key(request: Request, key_id: str) -> AdminKeyObject:
    """Retrieves an admin key."""
    return await _shown(await authenticated_admin(request, READ_KEYS), key_id)


@router.post("/{key_id}", operation_id="updateAdminKey", openapi_extra=json_body("UpdateAdminKeyRequest"))
@fails_with(
    RightsNotHeld("scopes", ["organization.billing.write"]),
    KeyNotFound("key_1"),
    KeyNotActive("key_1", "revoked"),
)
async def update_admin_key(request: Request, key_id: str) -> AdminKeyObject:
    """Updates an admin key. Changes take effect within a second."""
    who = await authenticated_admin(request, WRITE_KEYS)
    body = await read_body(request, UpdateAdminKeyRequest)
    changes = changes_of(body)
    check_scopes("admin", changes.scopes or ())
    with naming_fields():
        changed = await who.accounts.keys.update(who.tenant_id, key_id, changes, who.actor, kind="admin")
    return admin_key_object(changed)


@router.post("/{key_id}/rotate", operation_id="rotateAdminKey", openapi_extra=json_body("RotateKeyRequest"))
@fails_with(
    RightsNotHeld("scopes", ["organization.billing.write"]),
    KeyNotFound("key_1"),
    KeyNotActive("key_1", "revoked"),
)
async def rotate_admin_key(request: Request, key_id: str) -> CreatedAdminKeyObject:
    """Creates a key that replaces this one. The old key works until `grace_seconds` have passed."""
    who = await authenticated_admin(request, WRITE_KEYS)
    body = await read_body(request, RotateKeyRequest)
    made = await who.accounts.keys.rotate(
        who.tenant_id, key_id, who.actor, grace=timedelta(seconds=body.grace_seconds), kind="admin"
    )
    return {**await _shown(who, made.id), "value": made.plaintext}


@router.delete("/{key_id}", operation_id="deleteAdminKey")
@fails_with(KeyNotFound("key_1"))
async def delete_admin_key(request: Request, key_id: str) -> DeletedObject:
    """Revokes an admin key. It is refused within a second."""
    who = await authenticated_admin(request, WRITE_KEYS)
    await who.accounts.keys.revoke(who.tenant_id, key_id, who.actor, kind="admin")
    return deleted("organization.admin_api_key", key_id)


async def _shown(who: AdminCaller, key_id: str) -> AdminKeyObject:
    found = await who.accounts.keys.get(who.tenant_id, key_id, kind="admin")
    if found[0].revoked_at is not None:
        raise KeyNotFound(key_id)
    return admin_key_object(found)
