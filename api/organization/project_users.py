"""`/v1/organization/projects/{project_id}/users`: who is in a project."""

from __future__ import annotations

from fastapi import Request

from api.authentication import READ_MEMBERS, WRITE_MEMBERS
from api.errors import InvalidValue
from api.openapi.routing import Router, fails_with, json_body
from api.organization.admin_requests import AdminCaller, authenticated_admin, read_body
from api.organization.request_bodies import AddProjectUserRequest, UpdateProjectUserRequest
from api.organization.response_objects import DeletedObject, ProjectUserObject, deleted, project_user_object
from api.pagination import Page, Paged, page
from tenants.errors import ProjectArchived, ProjectNotFound, UserNotFound

router = Router(prefix="/v1/organization/projects/{project_id}/users", tags=["Projects"])


@router.post("", operation_id="addProjectUser", openapi_extra=json_body("AddProjectUserRequest"))
@fails_with(ProjectNotFound("proj_1"), UserNotFound("user_1"), ProjectArchived("proj_1"))
async def add_project_user(request: Request, project_id: str) -> ProjectUserObject:
    """Adds a user of the organization, given by `user_id` or `email`, to the project."""
    who = await authenticated_admin(request, WRITE_MEMBERS)
    body = await read_body(request, AddProjectUserRequest)
    await who.accounts.projects.get(who.tenant_id, project_id)
    user_id = await _meant(who, body)
    added = await who.accounts.members.add_to_project(
        who.tenant_id, project_id, user_id, body.role, who.actor
    )
    return project_user_object(*added)


@router.get("", operation_id="listProjectUsers")
@fails_with(ProjectNotFound("proj_1"))
async def list_project_users(request: Request, query: Paged, project_id: str) -> Page[ProjectUserObject]:
    """Lists the members of the project."""
    who = await authenticated_admin(request, READ_MEMBERS)
    found = await who.accounts.members.project_members(
        who.tenant_id,
        project_id,
        after=query.after,
        limit=query.limit + 1,
        newest_first=query.newest_first,
    )
    return page([project_user_object(*member) for member in found], query.limit)


@router.get("/{user_id}", operation_id="retrieveProjectUser")
@fails_with(UserNotFound("user_1"))
async def retrieve_project_user(request: Request, project_id: str, user_id: str) -> ProjectUserObject:
    """Retrieves a member of the project."""
    who = await authenticated_admin(request, READ_MEMBERS)
    member = await who.accounts.members.project_member(who.tenant_id, project_id, user_id)
    return project_user_object(*member)


@router.post(
    "/{user_id}", operation_id="updateProjectUser", openapi_extra=json_body("UpdateProjectUserRequest")
)
@fails_with(ProjectNotFound("proj_1"), UserNotFound("user_1"), ProjectArchived("proj_1"))
async def update_project_user(request: Request, project_id: str, user_id: str) -> ProjectUserObject:
    """Changes a member's role in the project."""
    who = await authenticated_admin(request, WRITE_MEMBERS)
    body = await read_body(request, UpdateProjectUserRequest)
    member = await who.accounts.members.update_in_project(
        who.tenant_id, project_id, user_id, body.role, who.actor
    )
    return project_user_object(*member)


@router.delete("/{user_id}", operation_id="deleteProjectUser")
@fails_with(UserNotFound("user_1"))
async def delete_project_user(request: Request, project_id: str, user_id: str) -> DeletedObject:
    """Removes a user from the project. The user's keys of the project are refused within a second."""
    who = await authenticated_admin(request, WRITE_MEMBERS)
    await who.accounts.members.remove_from_project(who.tenant_id, project_id, user_id, who.actor)
    return deleted("organization.project.user", user_id)


async def _meant(who: AdminCaller, body: AddProjectUserRequest) -> str:
    if (body.user_id is None) == (body.email is None):
        raise InvalidValue("Give either 'user_id' or 'email'.", "user_id")
    if body.user_id is not None:
        return body.user_id
    assert body.email is not None
    found = await who.accounts.members.list(who.tenant_id, emails=[body.email], limit=1)
    if not found:
        raise UserNotFound(body.email)
    return found[0].id
