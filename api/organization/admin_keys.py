"""`/v1/organization/admin_api_keys`: keys that run the account itself."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from fastapi import APIRouter, Request

from api.deps import READ_KEYS, WRITE_KEYS
from api.openapi import ERROR_RESPONSES, json_body
from api.organization.bodies import CreateAdminKeyRequest, RotateKeyRequest, UpdateAdminKeyRequest
from api.organization.keys import admin_key_object, changes_of
from api.organization.objects import deleted
from api.organization.requests import AdminCaller, asking, in_seconds, naming_fields, read_body
from api.organization.scopes import check_scopes
from api.pages import Paged, page
from tenants.errors import KeyNotFound
from tenants.key_terms import KeyTerms

router = APIRouter(prefix="/v1/organization/admin_api_keys", responses=ERROR_RESPONSES, tags=["Keys"])


@router.post("", operation_id="createAdminKey", openapi_extra=json_body("CreateAdminKeyRequest"))
async def create_admin_key(request: Request) -> dict[str, Any]:
    """Make one that may do no more than the key that asks. `value` is in this answer and nowhere else."""
    who = await asking(request, WRITE_KEYS)
    body = await read_body(request, CreateAdminKeyRequest)
    check_scopes("admin", body.scopes)
    terms = KeyTerms(
        scopes=frozenset(body.scopes),
        networks=tuple(body.networks),
        origins=tuple(body.origins),
        expires_at=in_seconds(body.expires_in_seconds),
    )
    with naming_fields():
        made = await who.accounts.keys.create(
            who.tenant_id, body.name, who.actor, kind="admin", user_id=who.caller.user_id, terms=terms
        )
    return await _shown(who, made.id) | {"value": made.plaintext}


@router.get("", operation_id="listAdminKeys")
async def list_admin_keys(request: Request, query: Paged) -> dict[str, Any]:
    who = await asking(request, READ_KEYS)
    found = await who.accounts.keys.list(
        who.tenant_id,
        kind="admin",
        after=query.after,
        limit=query.limit + 1,
        newest_first=query.newest_first,
    )
    return page([admin_key_object(key) for key in found], query.limit)


@router.get("/{key_id}", operation_id="retrieveAdminKey")
async def retrieve_admin_key(request: Request, key_id: str) -> dict[str, Any]:
    return await _shown(await asking(request, READ_KEYS), key_id)


@router.post("/{key_id}", operation_id="updateAdminKey", openapi_extra=json_body("UpdateAdminKeyRequest"))
async def update_admin_key(request: Request, key_id: str) -> dict[str, Any]:
    """Change it, in effect within a second."""
    who = await asking(request, WRITE_KEYS)
    body = await read_body(request, UpdateAdminKeyRequest)
    changes = changes_of(body)
    check_scopes("admin", changes.scopes or ())
    with naming_fields():
        changed = await who.accounts.keys.update(who.tenant_id, key_id, changes, who.actor, kind="admin")
    return admin_key_object(changed)


@router.post("/{key_id}/rotate", operation_id="rotateAdminKey", openapi_extra=json_body("RotateKeyRequest"))
async def rotate_admin_key(request: Request, key_id: str) -> dict[str, Any]:
    """Make another for the same, with its `value`; the old one works on until its grace ends."""
    who = await asking(request, WRITE_KEYS)
    body = await read_body(request, RotateKeyRequest)
    made = await who.accounts.keys.rotate(
        who.tenant_id, key_id, who.actor, grace=timedelta(seconds=body.grace_seconds), kind="admin"
    )
    return await _shown(who, made.id) | {"value": made.plaintext}


@router.delete("/{key_id}", operation_id="deleteAdminKey")
async def delete_admin_key(request: Request, key_id: str) -> dict[str, Any]:
    """Revoke it: it is refused everywhere within a second."""
    who = await asking(request, WRITE_KEYS)
    await who.accounts.keys.revoke(who.tenant_id, key_id, who.actor, kind="admin")
    return deleted("organization.admin_api_key", key_id)


async def _shown(who: AdminCaller, key_id: str) -> dict[str, Any]:
    found = await who.accounts.keys.get(who.tenant_id, key_id, kind="admin")
    if found[0].revoked_at is not None:
        raise KeyNotFound(key_id)
    return admin_key_object(found)
