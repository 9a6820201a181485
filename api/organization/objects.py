"""What the routes of an organisation show, in the shapes of the stock client.

Owns field names and their order. What the stock client has no word for stands beside its fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from api.json_bodies import unix
from api.organization.roles import shown_role
from tenants.members.service import Membership
from tenants.models import Invite, Project, ProjectMember, ServiceAccount, User


def deleted(object_name: str, object_id: str) -> dict[str, Any]:
    return {"id": object_id, "object": f"{object_name}.deleted", "deleted": True}


# Projects -------------------------------------------------------------------------------------------------


def project_object(project: Project) -> dict[str, Any]:
    return {
        "id": project.id,
        "object": "organization.project",
        "name": project.name,
        "created_at": unix(project.created_at),
        "archived_at": unix(project.archived_at),
        "status": "active" if project.archived_at is None else "archived",
        "is_default": project.is_default,
    }


def project_user_object(member: ProjectMember, user: User) -> dict[str, Any]:
    return {
        "id": user.id,
        "object": "organization.project.user",
        "name": user.name,
        "email": user.email,
        "role": member.role,
        "added_at": unix(member.added_at),
    }


def service_account_object(account: ServiceAccount) -> dict[str, Any]:
    return {
        "id": account.id,
        "object": "organization.project.service_account",
        "name": account.name,
        "role": account.role,
        "created_at": unix(account.created_at),
    }


# People ---------------------------------------------------------------------------------------------------


def user_object(user: User, places: Sequence[Membership] | None = None) -> dict[str, Any]:
    """`places`: the user's in projects, where they are shown."""
    enabled = user.disabled_at is None
    shown: dict[str, Any] = {
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
        projects = [
            {"id": project.id, "name": project.name, "role": member.role} for member, project in places
        ]
        shown["projects"] = {"object": "list", "data": projects}
    return shown


def invite_object(invite: Invite, now: datetime) -> dict[str, Any]:
    status = "accepted" if invite.accepted_at is not None else "pending"
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
