"""Builds the response objects of `/v1/organization`: the fields of OpenAI's client, and ours after them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, NotRequired, TypedDict

from api.json_bodies import unix
from api.organization.roles import shown_role
from tenants.members.service import Membership
from tenants.models import Invite, Project, ProjectMember, ServiceAccount, User


class DeletedObject(TypedDict):
    """Says that an object is deleted."""

    id: str
    object: str
    """The type of the object, with `.deleted`."""
    deleted: Literal[True]


class RuleDeletedObject(TypedDict):
    """Says that a setting is deleted."""

    object: str
    deleted: Literal[True]


def deleted(object_name: str, object_id: str) -> DeletedObject:
    return {"id": object_id, "object": f"{object_name}.deleted", "deleted": True}


# Projects -------------------------------------------------------------------------------------------------


class ProjectObject(TypedDict):
    """A project: a part of the organization with keys, members and limits of its own."""

    id: str
    object: Literal["organization.project"]
    name: str
    created_at: int
    """Unix seconds."""
    archived_at: int | None
    """Unix seconds; null for an active project."""
    status: Literal["active", "archived"]
    is_default: bool
    """Whether it is the organization's default project, which cannot be archived."""


class ProjectUserObject(TypedDict):
    """A member of a project."""

    id: str
    object: Literal["organization.project.user"]
    name: str
    email: str
    role: str
    """`owner` or `member`."""
    added_at: int
    """Unix seconds."""


class ServiceAccountObject(TypedDict):
    """A program that works in a project, with keys of its own."""

    id: str
    object: Literal["organization.project.service_account"]
    name: str
    role: str
    """`owner` or `member`."""
    created_at: int
    """Unix seconds."""


def project_object(project: Project) -> ProjectObject:
    return {
        "id": project.id,
        "object": "organization.project",
        "name": project.name,
        "created_at": unix(project.created_at),
        "archived_at": unix(project.archived_at),
        "status": "active" if project.archived_at is None else "archived",
        "is_default": project.is_default,
    }


def project_user_object(member: ProjectMember, user: User) -> ProjectUserObject:
    return {
        "id": user.id,
        "object": "organization.project.user",
        "name": user.name,
        "email": user.email,
        "role": member.role,
        "added_at": unix(member.added_at),
    }


def service_account_object(account: ServiceAccount) -> ServiceAccountObject:
    return {
        "id": account.id,
        "object": "organization.project.service_account",
        "name": account.name,
        "role": account.role,
        "created_at": unix(account.created_at),
    }


# Users ----------------------------------------------------------------------------------------------------


class UserAccount(TypedDict):
    """A user's sign-in."""

    id: str
    object: Literal["user"]
    name: str
    email: str
    enabled: bool
    """Whether the user can sign in and use their keys."""
    banned: bool
    """The opposite of `enabled`."""
    banned_at: int | None
    """Unix seconds; null for an enabled user."""


class UserProject(TypedDict):
    """A user's place in a project."""

    id: str
    name: str
    role: str


class UserProjects(TypedDict):
    object: Literal["list"]
    data: list[UserProject]


class UserObject(TypedDict):
    """A member of the organization."""

    id: str
    object: Literal["organization.user"]
    name: str
    email: str
    role: str
    """`owner`, `admin`, `developer`, `billing` or `reader`."""
    added_at: int
    """Unix seconds."""
    created: int
    """The same as `added_at`."""
    is_service_account: Literal[False]
    user: UserAccount
    projects: NotRequired[UserProjects]
    """Where a single user is retrieved: the projects the user is a member of."""


class InviteProjectObject(TypedDict):
    """A project that the invited user will be a member of."""

    id: str
    role: str


class InviteObject(TypedDict):
    """An invitation to join the organization."""

    id: str
    object: Literal["organization.invite"]
    email: str
    role: str
    status: Literal["pending", "accepted", "expired"]
    projects: list[InviteProjectObject]
    created_at: int
    """Unix seconds."""
    expires_at: int
    """Unix seconds."""
    accepted_at: int | None
    """Unix seconds; null until the invitation is accepted."""


class CreatedInviteObject(InviteObject):
    """An invitation with its token."""

    token: str
    """The token that accepts the invitation. It is shown only once."""


class AcceptedOrganization(TypedDict):
    id: str
    name: str


class AcceptedUserObject(TypedDict):
    """The user that accepting an invitation made."""

    id: str
    object: Literal["organization.user"]
    email: str
    role: str
    organization: AcceptedOrganization


def user_object(user: User, places: Sequence[Membership] | None = None) -> UserObject:
    """Returns a user's object. `places`: the user's project memberships, if they are to be shown."""
    enabled = user.disabled_at is None
    shown: UserObject = {
        "id": user.id,
        "object": "organization.user",
        "name": user.name,
        "email": user.email,
        "role": shown_role(user.role),
        "added_at": unix(user.created_at),
        "created": unix(user.created_at),
        "is_service_account": False,
        "user": {
            "id": user.id,
            "object": "user",
            "name": user.name,
            "email": user.email,
            "enabled": enabled,
            "banned": not enabled,
            "banned_at": unix(user.disabled_at),
        },
    }
    if places is not None:
        projects: list[UserProject] = [
            {"id": project.id, "name": project.name, "role": member.role} for member, project in places
        ]
        shown["projects"] = {"object": "list", "data": projects}
    return shown


def invite_object(invite: Invite, now: datetime) -> InviteObject:
    status: Literal["pending", "accepted", "expired"] = (
        "accepted" if invite.accepted_at is not None else "pending"
    )
    if status == "pending" and invite.expires_at <= now:
        status = "expired"
    return {
        "id": invite.id,
        "object": "organization.invite",
        "email": invite.email,
        "role": shown_role(invite.role),
        "status": status,
        "projects": [
            {"id": project_id, "role": role} for project_id, role in sorted(invite.projects.items())
        ],
        "created_at": unix(invite.created_at),
        "expires_at": unix(invite.expires_at),
        "accepted_at": unix(invite.accepted_at),
    }
