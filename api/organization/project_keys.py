"""`/v1/organization/projects/{project_id}/api_keys`: keys that make requests, and count to a project."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

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
from api.organization.keys import (
    CreatedProjectKeyObject,
    ProjectKeyObject,
    changes_of,
    owners,
    project_key_object,
)
from api.organization.request_bodies import CreateProjectKeyRequest, RotateKeyRequest, UpdateProjectKeyRequest
from api.organization.response_objects import DeletedObject, deleted
from api.organization.scopes import check_scopes
from api.pagination import Page, Paged, page
from tenants.errors import (
    KeyNotActive,
    KeyNotFound,
    ProjectArchived,
    ProjectNotFound,
    RightsNotHeld,
    UserNotFound,
)
from tenants.key_restrictions import KeyRestrictions
from tenants.key_service import ShownKey

router = Router(prefix="/v1/organization/projects/{project_id}/api_keys", tags=["Keys"])


@router.post("", operation_id="createProjectKey", openapi_extra=json_body("CreateProjectKeyRequest"))
@fails_with(
    RightsNotHeld("scopes", ["organization.billing.write"]),
    ProjectNotFound("proj_1"),
    UserNotFound("user_1"),
    ProjectArchived("proj_1"),
)
async def create_project_key(request: Request, project_id: str) -> CreatedProjectKeyObject:
    """Creates an API key that makes requests for the project. The response is the only one that has the key's
    `value`.
    """
    who = await authenticated_admin(request, WRITE_KEYS)
    body = await read_body(request, CreateProjectKeyRequest)
    check_scopes("inference", body.scopes)
    if body.user_id is not None:
        await who.accounts.members.project_member(who.tenant_id, project_id, body.user_id)
    restrictions = KeyRestrictions(
        scopes=frozenset(body.scopes),
        models=frozenset(body.models),
        networks=tuple(body.networks),
        origins=tuple(body.origins),
        expires_at=in_seconds(body.expires_in_seconds),
    )
    with naming_fields():
        made = await who.accounts.keys.create(
            who.tenant_id,
            body.name,
            who.actor,
            project_id=project_id,
            user_id=body.user_id,
            restrictions=restrictions,
        )
    return {**await _shown(who, project_id, made.id), "value": made.plaintext}


@router.get("", operation_id="listProjectKeys")
@fails_with(ProjectNotFound("proj_1"))
async def list_project_keys(
    request: Request,
    query: Paged,
    project_id: str,
    owner_project_access: Literal["active", "inactive", "any"] = "any",
) -> Page[ProjectKeyObject]:
    """Lists the project's keys that are not revoked. With `owner_project_access` a page can be shorter than
    `limit`.
    """
    who = await authenticated_admin(request, READ_KEYS)
    await who.accounts.projects.get(who.tenant_id, project_id)
    found = await who.accounts.keys.list(
        who.tenant_id,
        kind="inference",
        project_id=project_id,
        after=query.after,
        limit=query.limit + 1,
        newest_first=query.newest_first,
    )
    roles = await _roles(who, project_id, found)
    shown = page([project_key_object(key, roles) for key in found], query.limit)
    if owner_project_access != "any":
        shown["data"] = [key for key in shown["data"] if key["owner_project_access"] == owner_project_access]
    return shown


@router.get("/{api_key_id}", operation_id="retrieveProjectKey")
@fails_with(KeyNotFound("key_1"))
async def retrieve_project_key(request: Request, project_id: str, api_key_id: str) -> ProjectKeyObject:
    """Retrieves a key of the project."""
    return await _shown(await authenticated_admin(request, READ_KEYS), project_id, api_key_id)


@router.post(
    "/{api_key_id}", operation_id="updateProjectKey", openapi_extra=json_body("UpdateProjectKeyRequest")
)
@fails_with(
    RightsNotHeld("scopes", ["organization.billing.write"]),
    KeyNotFound("key_1"),
    KeyNotActive("key_1", "revoked"),
)
async def update_project_key(request: Request, project_id: str, api_key_id: str) -> ProjectKeyObject:
    """Updates a key of the project. Changes take effect within a second."""
    who = await authenticated_admin(request, WRITE_KEYS)
    changes = changes_of(await read_body(request, UpdateProjectKeyRequest))
    check_scopes("inference", changes.scopes or ())
    with naming_fields():
        changed = await who.accounts.keys.update(
            who.tenant_id, api_key_id, changes, who.actor, kind="inference", project_id=project_id
        )
    return project_key_object(changed, await _roles(who, project_id, [changed]))


@router.post(
    "/{api_key_id}/rotate", operation_id="rotateProjectKey", openapi_extra=json_body("RotateKeyRequest")
)
@fails_with(
    RightsNotHeld("scopes", ["organization.billing.write"]),
    KeyNotFound("key_1"),
    KeyNotActive("key_1", "revoked"),
)
async def rotate_project_key(request: Request, project_id: str, api_key_id: str) -> CreatedProjectKeyObject:
    """Creates a key that replaces this one. The old key works until `grace_seconds` have passed."""
    who = await authenticated_admin(request, WRITE_KEYS)
    body = await read_body(request, RotateKeyRequest)
    made = await who.accounts.keys.rotate(
        who.tenant_id,
        api_key_id,
        who.actor,
        grace=timedelta(seconds=body.grace_seconds),
        kind="inference",
        project_id=project_id,
    )
    return {**await _shown(who, project_id, made.id), "value": made.plaintext}


@router.delete("/{api_key_id}", operation_id="deleteProjectKey")
@fails_with(KeyNotFound("key_1"))
async def delete_project_key(request: Request, project_id: str, api_key_id: str) -> DeletedObject:
    """Revokes a key of the project. It is refused within a second."""
    who = await authenticated_admin(request, WRITE_KEYS)
    await who.accounts.keys.revoke(
        who.tenant_id, api_key_id, who.actor, kind="inference", project_id=project_id
    )
    return deleted("organization.project.api_key", api_key_id)


async def _shown(who: AdminCaller, project_id: str, key_id: str) -> ProjectKeyObject:
    found = await who.accounts.keys.get(who.tenant_id, key_id, kind="inference")
    if found[0].project_id != project_id or found[0].revoked_at is not None:
        raise KeyNotFound(key_id)
    return project_key_object(found, await _roles(who, project_id, [found]))


async def _roles(who: AdminCaller, project_id: str, keys: list[ShownKey]) -> dict[str, str]:
    """What the keys' owners are in the project."""
    users = owners(keys)
    if not users:
        return {}
    places = await who.accounts.members.memberships(who.tenant_id, users)
    return {member.user_id: member.role for member, project in places if project.id == project_id}
