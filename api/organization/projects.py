"""`/v1/organization/projects`: what a tenant keeps apart."""

from __future__ import annotations

from fastapi import Request

from api.authentication import READ_PROJECTS, WRITE_PROJECTS
from api.openapi.routing import Router, fails_with, json_body
from api.organization.admin_requests import authenticated_admin, naming_fields, read_body
from api.organization.request_bodies import CreateProjectRequest, UpdateProjectRequest
from api.organization.response_objects import ProjectObject, project_object
from api.pagination import Page, Paged, page
from tenants.errors import DefaultProjectKept, NameTaken, ProjectArchived, ProjectNotFound

router = Router(prefix="/v1/organization/projects", tags=["Projects"])


@router.post("", operation_id="createProject", openapi_extra=json_body("CreateProjectRequest"))
@fails_with(NameTaken("project name", "staging"))
async def create_project(request: Request) -> ProjectObject:
    """Creates a project."""
    who = await authenticated_admin(request, WRITE_PROJECTS)
    body = await read_body(request, CreateProjectRequest)
    with naming_fields():
        return project_object(await who.accounts.projects.create(who.tenant_id, body.name, who.actor))


@router.get("", operation_id="listProjects")
async def list_projects(
    request: Request, query: Paged, include_archived: bool = False
) -> Page[ProjectObject]:
    """Lists projects."""
    who = await authenticated_admin(request, READ_PROJECTS)
    found = await who.accounts.projects.list(
        who.tenant_id,
        with_archived=include_archived,
        after=query.after,
        limit=query.limit + 1,
        newest_first=query.newest_first,
    )
    return page([project_object(project) for project in found], query.limit)


@router.get("/{project_id}", operation_id="retrieveProject")
@fails_with(ProjectNotFound("proj_1"))
async def retrieve_project(request: Request, project_id: str) -> ProjectObject:
    """Retrieves a project."""
    who = await authenticated_admin(request, READ_PROJECTS)
    return project_object(await who.accounts.projects.get(who.tenant_id, project_id))


@router.post("/{project_id}", operation_id="updateProject", openapi_extra=json_body("UpdateProjectRequest"))
@fails_with(ProjectNotFound("proj_1"), NameTaken("project name", "staging"), ProjectArchived("proj_1"))
async def update_project(request: Request, project_id: str) -> ProjectObject:
    """Renames a project."""
    who = await authenticated_admin(request, WRITE_PROJECTS)
    body = await read_body(request, UpdateProjectRequest)
    with naming_fields():
        renamed = await who.accounts.projects.rename(who.tenant_id, project_id, body.name, who.actor)
    return project_object(renamed)


@router.post("/{project_id}/archive", operation_id="archiveProject")
@fails_with(ProjectNotFound("proj_1"), DefaultProjectKept("proj_1"))
async def archive_project(request: Request, project_id: str) -> ProjectObject:
    """Archives a project for good. Its keys are refused within a second."""
    who = await authenticated_admin(request, WRITE_PROJECTS)
    return project_object(await who.accounts.projects.archive(who.tenant_id, project_id, who.actor))
