"""`/v1/organization/groups`: the groups of the identity provider, and the role that each is mapped to.

Groups come and go by SCIM; here owners map them, and add those that only SAML sign-ins name.
"""

from __future__ import annotations

from typing import Literal, TypedDict

from fastapi import Request

from api.authentication import READ_MEMBERS, WRITE_MEMBERS
from api.errors import RouteNotFound
from api.openapi.routing import Router, fails_with, json_body
from api.organization.admin_requests import authenticated_admin, naming_fields, read_body
from api.organization.request_bodies import AssignRoleRequest, CreateGroupRequest
from api.organization.response_objects import DeletedObject, RuleDeletedObject, deleted
from api.organization.roles import RoleList, RoleObject, role_object, role_of_id
from api.pagination import Paged
from tenants.errors import LastOwner, NameTaken, OwnersOnly, RightsNotHeld
from tenants.provisioning.errors import GroupNotFound
from tenants.provisioning.profiles import GroupProfile, ProvisionedGroup

router = Router(prefix="/v1/organization/groups", tags=["Provisioning"])


class GroupObject(TypedDict):
    """A group of the identity provider."""

    id: str
    object: Literal["group"]
    name: str
    created_at: int
    """Unix seconds."""
    group_type: Literal["group"]
    is_scim_managed: bool
    """False: an owner added it, so that SAML sign-ins can name it."""
    num_members: int
    role: str | None
    """The role that members of the group have; null for none."""


class GroupList(TypedDict):
    """A page of groups."""

    object: Literal["list"]
    data: list[GroupObject]
    has_more: bool
    next: str | None
    """`after` of the next page."""


class GroupSummaryObject(TypedDict):
    """A group, in a role assignment."""

    id: str
    object: Literal["group"]
    name: str
    created_at: int
    """Unix seconds."""
    scim_managed: bool


class GroupRoleObject(TypedDict):
    """A role that a group is mapped to."""

    object: Literal["group.role"]
    group: GroupSummaryObject
    role: RoleObject


def group_object(group: ProvisionedGroup) -> GroupObject:
    return {
        "id": group.id,
        "object": "group",
        "name": group.profile.display_name,
        "created_at": int(group.created_at.timestamp()),
        "group_type": "group",
        "is_scim_managed": not group.is_added_by_hand,
        "num_members": group.num_members,
        "role": group.role,
    }


@router.get("", operation_id="listGroups")
async def list_groups(request: Request, query: Paged) -> GroupList:
    """Lists the groups that the identity provider has created."""
    who = await authenticated_admin(request, READ_MEMBERS)
    found = await who.accounts.provisioned_groups.page(
        who.tenant_id, after=query.after, limit=query.limit + 1, newest_first=query.newest_first
    )
    shown = [group_object(group) for group in found[: query.limit]]
    more = len(found) > query.limit
    return {"object": "list", "data": shown, "has_more": more, "next": shown[-1]["id"] if more else None}


@router.post("", operation_id="createGroup", openapi_extra=json_body("CreateGroupRequest"))
@fails_with(
    OwnersOnly(), RightsNotHeld("role", ["organization.billing.write"]), NameTaken("displayName", "Makers")
)
async def create_group(request: Request) -> GroupObject:
    """Adds a group for SAML sign-ins to name, in their groups attribute. Only owners can."""
    who = await authenticated_admin(request, WRITE_MEMBERS)
    body = await read_body(request, CreateGroupRequest)
    with naming_fields():
        made = await who.accounts.provisioned_groups.create(
            who.tenant_id, GroupProfile(body.name.strip()), who.actor, by_hand=True
        )
    return group_object(made)


@router.delete("/{group_id}", operation_id="deleteGroup")
@fails_with(
    OwnersOnly(),
    RightsNotHeld("role", ["organization.billing.write"]),
    GroupNotFound("group_1"),
    LastOwner("user_1"),
)
async def delete_group(request: Request, group_id: str) -> DeletedObject:
    """Deletes a group; its members lose the role that it gave them. One that came by SCIM comes back when the
    identity provider sends it again.
    """
    who = await authenticated_admin(request, WRITE_MEMBERS)
    await who.accounts.provisioned_groups.delete(who.tenant_id, group_id, who.actor, by_hand=True)
    return deleted("group", group_id)


@router.get("/{group_id}/roles", operation_id="listGroupRoles")
@fails_with(GroupNotFound("group_1"))
async def list_group_roles(request: Request, group_id: str) -> RoleList:
    """Lists the role that the group is mapped to, if any."""
    who = await authenticated_admin(request, READ_MEMBERS)
    group = await who.accounts.provisioned_groups.get(who.tenant_id, group_id, with_members=False)
    roles = [] if group.role is None else [role_object(group.role)]  # type: ignore[arg-type]
    return {"object": "list", "data": roles, "has_more": False, "next": None}


@router.post(
    "/{group_id}/roles", operation_id="assignGroupRole", openapi_extra=json_body("AssignRoleRequest")
)
@fails_with(
    OwnersOnly(),
    RightsNotHeld("role", ["organization.billing.write"]),
    GroupNotFound("group_1"),
    LastOwner("user_1"),
)
async def assign_group_role(request: Request, group_id: str) -> GroupRoleObject:
    """Maps the group to a role in place of the one it had; its members have the new role at once. Only owners
    can. A member of several mapped groups has the first of their roles among owner, admin, developer, billing
    and viewer.
    """
    who = await authenticated_admin(request, WRITE_MEMBERS)
    role = role_of_id((await read_body(request, AssignRoleRequest)).role_id)
    group = await who.accounts.provisioned_groups.set_role(who.tenant_id, group_id, role, who.actor)
    return {
        "object": "group.role",
        "group": {
            "id": group.id,
            "object": "group",
            "name": group.profile.display_name,
            "created_at": int(group.created_at.timestamp()),
            "scim_managed": not group.is_added_by_hand,
        },
        "role": role_object(role),
    }


@router.delete("/{group_id}/roles/{role_id}", operation_id="unassignGroupRole")
@fails_with(
    OwnersOnly(),
    RightsNotHeld("role", ["organization.billing.write"]),
    GroupNotFound("group_1"),
    RouteNotFound("the group 'group_1' is not mapped to 'role-viewer'"),
    LastOwner("user_1"),
)
async def unassign_group_role(request: Request, group_id: str, role_id: str) -> RuleDeletedObject:
    """Ends the mapping of the group to the role. Members in no other mapped group become viewers."""
    who = await authenticated_admin(request, WRITE_MEMBERS)
    groups = who.accounts.provisioned_groups
    group = await groups.get(who.tenant_id, group_id, with_members=False)
    if group.role != role_of_id(role_id):
        raise RouteNotFound(f"the group {group_id!r} is not mapped to {role_id[:100]!r}")
    await groups.set_role(who.tenant_id, group_id, None, who.actor)
    return {"object": "group.role.deleted", "deleted": True}
