"""`/v1/organization/roles`: lists the roles of users, which are the same five in every organization.

OpenAI's client calls our `viewer` `reader`.
"""

from __future__ import annotations

from typing import Literal, TypedDict

from fastapi import Request

from api.authentication import READ_MEMBERS
from api.errors import InvalidValue, RouteNotFound
from api.openapi.routing import Router, fails_with
from api.organization.admin_requests import authenticated_admin
from api.pagination import Paged, position
from tenants.models import User
from tenants.roles import RIGHTS_OF, ROLES, Role


class RoleObject(TypedDict):
    """A role that members of an organization can have."""

    id: str
    object: Literal["role"]
    name: str
    description: str
    permissions: list[str]
    """What members with this role may do."""
    predefined_role: Literal[True]
    resource_type: Literal["api.organization"]


class AssignmentSource(TypedDict):
    principal_id: str
    principal_type: Literal["user"]


class RoleAssignmentObject(RoleObject):
    """A role that a user has."""

    assignment_sources: list[AssignmentSource]
    created_at: int
    """Unix seconds."""


class RoleList(TypedDict):
    """A page of roles."""

    object: Literal["list"]
    data: list[RoleObject]
    has_more: bool
    next: str | None
    """`after` of the next page."""


class RoleAssignmentList(TypedDict):
    """The roles of a user."""

    object: Literal["list"]
    data: list[RoleAssignmentObject]
    has_more: bool
    next: str | None


router = Router(prefix="/v1/organization/roles", tags=["Users"])

_PREFIX = "role-"
_DESCRIPTIONS: dict[Role, str] = {
    "owner": "May do everything, also to other owners.",
    "admin": "Runs the account: everything but what is paid, and owners.",
    "developer": "Makes adapters and looks at the rest.",
    "billing": "Sees and settles what is paid.",
    "viewer": "Looks, and changes nothing.",
}


def shown_role(role: str) -> str:
    return "reader" if role == "viewer" else role


def meant_role(word: str) -> Role:
    """Raises InvalidValue."""
    for role in ROLES:
        if word in (role, shown_role(role)):
            return role
    raise InvalidValue(f"'role' must be one of {', '.join(ROLES)}, or 'reader' for viewer.", "role")


def role_of_id(role_id: str) -> Role:
    """Returns the role. Raises RouteNotFound if there is none with this id."""
    for role in ROLES:
        if role_id == f"{_PREFIX}{role}":
            return role
    raise RouteNotFound(f"there is no role {role_id[:100]!r}")


def role_object(role: Role) -> RoleObject:
    return {
        "id": f"{_PREFIX}{role}",
        "object": "role",
        "name": role,
        "description": _DESCRIPTIONS[role],
        "permissions": sorted(RIGHTS_OF[role]),
        "predefined_role": True,
        "resource_type": "api.organization",
    }


def assignment_object(user: User) -> RoleAssignmentObject:
    """Returns the user's role as an assignment."""
    role: Role = user.role  # type: ignore[assignment]
    return {
        **role_object(role),
        "assignment_sources": [{"principal_id": user.id, "principal_type": "user"}],
        "created_at": int(user.created_at.timestamp()),
    }


@router.get("", operation_id="listRoles")
async def list_roles(request: Request, query: Paged) -> RoleList:
    """Lists the roles that members can have. Every organization has the same five."""
    await authenticated_admin(request, READ_MEMBERS)
    roles = list(ROLES) if query.newest_first else list(reversed(ROLES))
    ids = [f"{_PREFIX}{role}" for role in roles]
    last = position(ids, query.after)
    roles = roles[0 if last is None else last + 1 :]
    shown = [role_object(role) for role in roles[: query.limit]]
    more = len(roles) > query.limit
    return {
        "object": "list",
        "data": shown,
        "has_more": more,
        "next": shown[-1]["id"] if more else None,
    }


@router.get("/{role_id}", operation_id="retrieveRole")
@fails_with(RouteNotFound("there is no role 'role-x'"))
async def retrieve_role(request: Request, role_id: str) -> RoleObject:
    """Retrieves a role."""
    await authenticated_admin(request, READ_MEMBERS)
    return role_object(role_of_id(role_id))
