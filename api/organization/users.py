"""`/v1/organization/users`: the people of an organisation, and their role in it."""

from __future__ import annotations

from typing import Annotated

from fastapi import Request

from api.authentication import READ_MEMBERS, WRITE_MEMBERS
from api.errors import InvalidValue, RouteNotFound
from api.openapi.routing import Router, fails_with, json_body, texts_query
from api.organization.admin_requests import authenticated_admin, naming_fields, read_body
from api.organization.request_bodies import UpdateUserRequest
from api.organization.response_objects import DeletedObject, UserObject, deleted, user_object
from api.organization.roles import (
    RoleAssignmentList,
    RoleAssignmentObject,
    assignment_object,
    meant_role,
    role_of_id,
)
from api.pagination import Page, Paged, page
from tenants.errors import LastOwner, OwnAccount, OwnersOnly, RightsNotHeld, UserNotFound
from tenants.retention.errors import OnLegalHold
from tenants.roles import Role

router = Router(prefix="/v1/organization/users", tags=["Users"])

_MAX_EMAILS = 100


@router.get("", operation_id="listUsers")
async def list_users(
    request: Request,
    query: Paged,
    emails: Annotated[list[str] | None, texts_query("emails", _MAX_EMAILS)] = None,
) -> Page[UserObject]:
    """Lists the members of the organization; with `emails`, those with these addresses."""
    who = await authenticated_admin(request, READ_MEMBERS)
    wanted = [*(emails or ()), *request.query_params.getlist("emails")]
    if len(wanted) > _MAX_EMAILS or any("\x00" in email for email in wanted):
        raise InvalidValue(f"Give at most {_MAX_EMAILS} addresses.", "emails")
    found = await who.accounts.members.list(
        who.tenant_id,
        emails=wanted,
        after=query.after,
        limit=query.limit + 1,
        newest_first=query.newest_first,
    )
    return page([user_object(user) for user in found], query.limit)


@router.get("/{user_id}", operation_id="retrieveUser")
@fails_with(UserNotFound("user_1"))
async def retrieve_user(request: Request, user_id: str) -> UserObject:
    """Retrieves a member and their projects."""
    who = await authenticated_admin(request, READ_MEMBERS)
    user = await who.accounts.members.get(who.tenant_id, user_id)
    return user_object(user, await who.accounts.members.memberships(who.tenant_id, [user_id]))


@router.post("/{user_id}", operation_id="updateUser", openapi_extra=json_body("UpdateUserRequest"))
@fails_with(
    RightsNotHeld("scopes", ["organization.billing.write"]),
    OwnersOnly(),
    UserNotFound("user_1"),
    LastOwner("user_1"),
    OwnAccount("user_1"),
)
async def update_user(request: Request, user_id: str) -> UserObject:
    """Changes a member's name or role; with a lesser role, their admin keys are revoked. Or, with `enabled`
    alone, disables or enables the user: sessions end and keys are refused within a second.
    """
    who = await authenticated_admin(request, WRITE_MEMBERS)
    body = await read_body(request, UpdateUserRequest)
    if body.role is not None and body.role_id is not None:
        raise InvalidValue("Give either 'role' or 'role_id'.", "role_id")
    if body.enabled is not None:
        if any(given is not None for given in (body.name, body.role, body.role_id)):
            raise InvalidValue("Give 'enabled' alone: it is a change of its own.", "enabled")
        members = who.accounts.members
        change = members.enable if body.enabled else members.disable
        return user_object(await change(who.tenant_id, user_id, who.actor))
    role: Role | None = None
    if body.role_id is not None:
        role = role_of_id(body.role_id)
    elif body.role is not None:
        role = meant_role(body.role)
    with naming_fields():
        user = await who.accounts.members.update(who.tenant_id, user_id, who.actor, role=role, name=body.name)
    return user_object(user)


@router.delete("/{user_id}", operation_id="deleteUser")
@fails_with(OwnersOnly(), UserNotFound("user_1"), LastOwner("user_1"), OnLegalHold("user user_1", "hold_1"))
async def delete_user(request: Request, user_id: str) -> DeletedObject:
    """Removes a member from the organization. All their keys are refused within a second."""
    who = await authenticated_admin(request, WRITE_MEMBERS)
    await who.accounts.members.remove(who.tenant_id, user_id, who.actor)
    return deleted("organization.user", user_id)


@router.get("/{user_id}/roles", operation_id="listUserRoles")
@fails_with(UserNotFound("user_1"))
async def list_user_roles(request: Request, user_id: str) -> RoleAssignmentList:
    """Lists the member's roles. There is always one."""
    who = await authenticated_admin(request, READ_MEMBERS)
    user = await who.accounts.members.get(who.tenant_id, user_id)
    shown = [assignment_object(user)]
    return {"object": "list", "data": shown, "has_more": False, "next": None}


@router.get("/{user_id}/roles/{role_id}", operation_id="retrieveUserRole")
@fails_with(UserNotFound("user_1"), RouteNotFound("there is no role 'role-x'"))
async def retrieve_user_role(request: Request, user_id: str, role_id: str) -> RoleAssignmentObject:
    """Retrieves the member's role."""
    who = await authenticated_admin(request, READ_MEMBERS)
    user = await who.accounts.members.get(who.tenant_id, user_id)
    if role_of_id(role_id) != user.role:
        raise RouteNotFound(f"the user {user_id!r} has no role {role_id[:100]!r}")
    return assignment_object(user)
