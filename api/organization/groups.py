"""`/v1/organization/groups`: the groups of the identity provider, and the role that each is mapped to.

Groups come and go by SCIM; here owners map them.
"""

from __future__ import annotations

from typing import Literal, TypedDict

from fastapi import Request

from api.authentication import READ_MEMBERS, WRITE_MEMBERS
from api.errors import RouteNotFound
from api.openapi.routing import Router, fails_with, json_body
from api.organization.admin_requests import authenticated_admin, read_body
from api.organization.request_bodies import AssignRoleRequest
from api.organization.response_objects import RuleDeletedObject
from api.organization.roles import RoleList, RoleObject, role_object, role_of_id
from api.pagination import Paged
from tenants.errors import LastOwner, OwnersOnly, RightsNotHeld
from tenants.provisioning.errors import GroupNotFound
from tenants.provisioning.profiles import ProvisionedGroup

router = Router(prefix="/v1/organization/groups", tags=["Provisioning"])


class GroupObject(TypedDict):
    """A group of the identity provider."""

    id: str
    object: Literal["group"]
    name: str
    created_at: int
    """Unix seconds."""
    group_type: Literal["group"]
    is_scim_managed: Literal[True]
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
    scim_managed: Literal[True]


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
        "is_scim_managed": True,
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
            "scim_managed": True,
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
