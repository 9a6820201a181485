"""Restricts the models and service tiers of a project's keys: `.../model_permissions`,
`.../service_tier_settings`.

OpenAI's client calls service tiers differently: its `fast` is our `priority`, its `standard` our `default`.
"""

from __future__ import annotations

from typing import Literal, TypedDict

from fastapi import Request

from api.authentication import READ_PROJECTS, WRITE_PROJECTS
from api.errors import RouteNotFound
from api.openapi.routing import Router, fails_with, json_body
from api.organization.admin_requests import authenticated_admin, naming_fields, read_body
from api.organization.request_bodies import ModelPermissionsRequest, ServiceTierSettingsRequest
from api.organization.response_objects import RuleDeletedObject
from engine.protocol import PriorityClass
from tenants.errors import ProjectArchived, ProjectNotFound
from tenants.key_restrictions import KEEP
from tenants.models import Project
from tenants.views import PlanView


class ModelPermissionsObject(TypedDict):
    """Which models the keys of a project can use."""

    object: Literal["project.model_permissions"]
    mode: Literal["allow_list", "deny_list"]
    model_ids: list[str]


class ServiceTierSettingsObject(TypedDict):
    """Which service tiers the keys of a project can ask for."""

    object: Literal["project.service_tier_settings"]
    default: Literal["standard", "fast"]
    """The tier of requests that ask for none: `standard` is `default`, `fast` is `priority`."""
    enabled_tiers: Literal["all"] | list[str]
    """`all`, or some of `flex` and `fast`."""


router = Router(prefix="/v1/organization/projects/{project_id}", tags=["Projects"])

_TIERS = {"flex": PriorityClass.FLEX, "fast": PriorityClass.PRIORITY}
_DEFAULTS = {"standard": PriorityClass.DEFAULT, "fast": PriorityClass.PRIORITY}


@router.get("/model_permissions", operation_id="retrieveModelPermissions")
@fails_with(
    ProjectNotFound("proj_1"),
    RouteNotFound("The project has no model permissions: its keys may ask for every model."),
)
async def retrieve_model_permissions(request: Request, project_id: str) -> ModelPermissionsObject:
    """Retrieves which models the project's keys can use."""
    who = await authenticated_admin(request, READ_PROJECTS)
    return _permissions(await who.accounts.projects.get(who.tenant_id, project_id))


@router.post(
    "/model_permissions",
    operation_id="updateModelPermissions",
    openapi_extra=json_body("ModelPermissionsRequest"),
)
@fails_with(ProjectNotFound("proj_1"), ProjectArchived("proj_1"))
async def update_model_permissions(request: Request, project_id: str) -> ModelPermissionsObject:
    """Restricts the project's keys to some models, or to all but some. Keys with a list of models are
    restricted to both. The change takes effect within a second.
    """
    who = await authenticated_admin(request, WRITE_PROJECTS)
    body = await read_body(request, ModelPermissionsRequest)
    with naming_fields():
        project = await who.accounts.projects.set_models(
            who.tenant_id, project_id, body.model_ids, who.actor, denied=body.mode == "deny_list"
        )
    return _permissions(project)


@router.delete("/model_permissions", operation_id="deleteModelPermissions")
@fails_with(
    ProjectNotFound("proj_1"),
    RouteNotFound("The project has no model permissions: its keys may ask for every model."),
    ProjectArchived("proj_1"),
)
async def delete_model_permissions(request: Request, project_id: str) -> RuleDeletedObject:
    """Lets the project's keys use every model of the organization again."""
    who = await authenticated_admin(request, WRITE_PROJECTS)
    _permissions(await who.accounts.projects.get(who.tenant_id, project_id))
    await who.accounts.projects.set_models(who.tenant_id, project_id, (), who.actor)
    return {"object": "project.model_permissions.deleted", "deleted": True}


@router.get("/service_tier_settings", operation_id="retrieveServiceTierSettings")
@fails_with(ProjectNotFound("proj_1"))
async def retrieve_service_tier_settings(request: Request, project_id: str) -> ServiceTierSettingsObject:
    """Retrieves which service tiers the project's keys can ask for."""
    who = await authenticated_admin(request, READ_PROJECTS)
    return _settings(await who.accounts.projects.get(who.tenant_id, project_id), who.caller.plan)


@router.post(
    "/service_tier_settings",
    operation_id="updateServiceTierSettings",
    openapi_extra=json_body("ServiceTierSettingsRequest"),
)
@fails_with(ProjectNotFound("proj_1"), ProjectArchived("proj_1"))
async def update_service_tier_settings(request: Request, project_id: str) -> ServiceTierSettingsObject:
    """Sets which of the plan's service tiers the project's keys can ask for, and which one `auto` means. The
    change takes effect within a second.
    """
    who = await authenticated_admin(request, WRITE_PROJECTS)
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


def _permissions(project: Project) -> ModelPermissionsObject:
    """Returns the project's model permissions. Raises RouteNotFound if there are none."""
    if not project.models:
        raise RouteNotFound("The project has no model permissions: its keys may ask for every model.")
    return {
        "object": "project.model_permissions",
        "mode": "deny_list" if project.models_denied else "allow_list",
        "model_ids": sorted(project.models),
    }


def _settings(project: Project, plan: PlanView) -> ServiceTierSettingsObject:
    """Returns the settings. `default` is the tier of requests that name none, which plan and project both
    allow.
    """
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
