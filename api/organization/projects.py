"""`/v1/organization/projects`: what a tenant keeps apart."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from api.deps import READ_PROJECTS, WRITE_PROJECTS
from api.openapi import ERROR_RESPONSES, json_body
from api.organization.bodies import CreateProjectRequest, UpdateProjectRequest
from api.organization.objects import project_object
from api.organization.requests import asking, naming_fields, read_body
from api.pages import Paged, page

router = APIRouter(prefix="/v1/organization/projects", responses=ERROR_RESPONSES, tags=["Projects"])


@router.post("", operation_id="createProject", openapi_extra=json_body("CreateProjectRequest"))
async def create_project(request: Request) -> dict[str, Any]:
    who = await asking(request, WRITE_PROJECTS)
    body = await read_body(request, CreateProjectRequest)
    with naming_fields():
        return project_object(await who.accounts.projects.create(who.tenant_id, body.name, who.actor))


@router.get("", operation_id="listProjects")
async def list_projects(request: Request, query: Paged, include_archived: bool = False) -> dict[str, Any]:
    who = await asking(request, READ_PROJECTS)
    found = await who.accounts.projects.list(
        who.tenant_id,
        with_archived=include_archived,
        after=query.after,
        limit=query.limit + 1,
        newest_first=query.newest_first,
    )
    return page([project_object(project) for project in found], query.limit)


@router.get("/{project_id}", operation_id="retrieveProject")
async def retrieve_project(request: Request, project_id: str) -> dict[str, Any]:
    who = await asking(request, READ_PROJECTS)
    return project_object(await who.accounts.projects.get(who.tenant_id, project_id))


@router.post("/{project_id}", operation_id="updateProject", openapi_extra=json_body("UpdateProjectRequest"))
async def update_project(request: Request, project_id: str) -> dict[str, Any]:
    """Rename it."""
    who = await asking(request, WRITE_PROJECTS)
    body = await read_body(request, UpdateProjectRequest)
    with naming_fields():
        renamed = await who.accounts.projects.rename(who.tenant_id, project_id, body.name, who.actor)
    return project_object(renamed)


@router.post("/{project_id}/archive", operation_id="archiveProject")
async def archive_project(request: Request, project_id: str) -> dict[str, Any]:
    """End it for good: its keys are refused within a second."""
    who = await asking(request, WRITE_PROJECTS)
    return project_object(await who.accounts.projects.archive(who.tenant_id, project_id, who.actor))
