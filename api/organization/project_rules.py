"""What all keys of a project may ask for: `/v1/organization/projects/{project_id}/model_permissions` and
`.../service_tier_settings`.

Owns the stock client's words for classes of service: its `fast` is our priority, its `standard` our default.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from api.deps import READ_PROJECTS, WRITE_PROJECTS
from api.errors import RouteNotFound
from api.openapi import ERROR_RESPONSES, json_body
from api.organization.bodies import ModelPermissionsRequest, ServiceTierSettingsRequest
from api.organization.requests import asking, naming_fields, read_body
from engine.protocol import PriorityClass
from tenants.key_terms import KEEP
from tenants.models import Project
from tenants.views import PlanView

router = APIRouter(
    prefix="/v1/organization/projects/{project_id}", responses=ERROR_RESPONSES, tags=["Projects"]
)

_TIERS = {"flex": PriorityClass.FLEX, "fast": PriorityClass.PRIORITY}
_DEFAULTS = {"standard": PriorityClass.DEFAULT, "fast": PriorityClass.PRIORITY}


@router.get("/model_permissions", operation_id="retrieveModelPermissions")
async def retrieve_model_permissions(request: Request, project_id: str) -> dict[str, Any]:
    who = await asking(request, READ_PROJECTS)
    return _permissions(await who.accounts.projects.get(who.tenant_id, project_id))


@router.post(
    "/model_permissions",
    operation_id="updateModelPermissions",
    openapi_extra=json_body("ModelPermissionsRequest"),
)
async def update_model_permissions(request: Request, project_id: str) -> dict[str, Any]:
    """Let the project's keys ask for these models alone, or for all but these, each within its own list. In
    effect within a second.
    """
    who = await asking(request, WRITE_PROJECTS)
    body = await read_body(request, ModelPermissionsRequest)
    with naming_fields():
        project = await who.accounts.projects.set_models(
            who.tenant_id, project_id, body.model_ids, who.actor, denied=body.mode == "deny_list"
        )
    return _permissions(project)


@router.delete("/model_permissions", operation_id="deleteModelPermissions")
async def delete_model_permissions(request: Request, project_id: str) -> dict[str, Any]:
    """Let the project's keys ask for every model of the organisation again."""
    who = await asking(request, WRITE_PROJECTS)
    _permissions(await who.accounts.projects.get(who.tenant_id, project_id))
    await who.accounts.projects.set_models(who.tenant_id, project_id, (), who.actor)
    return {"object": "project.model_permissions.deleted", "deleted": True}


@router.get("/service_tier_settings", operation_id="retrieveServiceTierSettings")
async def retrieve_service_tier_settings(request: Request, project_id: str) -> dict[str, Any]:
    who = await asking(request, READ_PROJECTS)
    return _settings(await who.accounts.projects.get(who.tenant_id, project_id), who.caller.plan)


@router.post(
    "/service_tier_settings",
    operation_id="updateServiceTierSettings",
    openapi_extra=json_body("ServiceTierSettingsRequest"),
)
async def update_service_tier_settings(request: Request, project_id: str) -> dict[str, Any]:
    """Which of the plan's classes of service the project's keys may ask for, and what `auto` means. In effect
    within a second.
    """
    who = await asking(request, WRITE_PROJECTS)
    body = await read_body(request, ServiceTierSettingsRequest)
    enabled = body.enabled_tiers
    project = await who.accounts.projects.set_service_tiers(
        who.tenant_id,
        project_id,
        who.actor,
        tiers=KEEP if enabled is None else None if enabled == "all" else [_TIERS[name] for name in enabled],
        auto=KEEP if body.default is None else _DEFAULTS[body.default],
    )
    return _settings(project, who.caller.plan)


def _permissions(project: Project) -> dict[str, Any]:
    """Raises RouteNotFound where there is no such rule."""
    if not project.models:
        raise RouteNotFound("The project has no model permissions: its keys may ask for every model.")
    return {
        "object": "project.model_permissions",
        "mode": "deny_list" if project.models_denied else "allow_list",
        "model_ids": sorted(project.models),
    }


def _settings(project: Project, plan: PlanView) -> dict[str, Any]:
    """`default` is what requests that ask for nothing get, which the plan and the project both allow."""
    enabled = project.service_tiers
    priority = plan.terms[PriorityClass.PRIORITY].allowed and (
        enabled is None or PriorityClass.PRIORITY in enabled
    )
    fast = priority and project.auto_tier != PriorityClass.DEFAULT
    return {
        "object": "project.service_tier_settings",
        "default": "fast" if fast else "standard",
        "enabled_tiers": "all"
        if enabled is None
        else [name for name, tier in _TIERS.items() if tier in enabled],
    }
