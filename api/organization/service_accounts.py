"""`/v1/organization/projects/{project_id}/service_accounts`: programs that work in a project."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from api.deps import READ_PROJECTS, WRITE_KEYS, WRITE_PROJECTS
from api.errors import InvalidValue
from api.openapi import ERROR_RESPONSES, json_body
from api.organization.bodies import (
    CreateServiceAccountKeyRequest,
    CreateServiceAccountRequest,
    UpdateServiceAccountRequest,
)
from api.organization.keys import service_account_key_object
from api.organization.objects import deleted, service_account_object
from api.organization.requests import asking, in_seconds, naming_fields, read_body
from api.organization.scopes import check_scopes
from api.pages import Paged, page
from tenants.key_terms import KeyTerms

router = APIRouter(
    prefix="/v1/organization/projects/{project_id}/service_accounts",
    responses=ERROR_RESPONSES,
    tags=["Projects"],
)
FIRST_KEY = "Secret key"


@router.post("", operation_id="createServiceAccount", openapi_extra=json_body("CreateServiceAccountRequest"))
async def create_service_account(request: Request, project_id: str) -> dict[str, Any]:
    """Make one, and unless `create_service_account_only` its first key, whose `value` is in this answer and
    nowhere else: for that the key that asks needs its scope too.
    """
    who = await asking(request, WRITE_PROJECTS)
    body = await read_body(request, CreateServiceAccountRequest)
    with_key = not body.create_service_account_only
    if with_key:
        await asking(request, WRITE_KEYS)
    elif body.expires_in_seconds is not None:
        raise InvalidValue("There is no key that 'expires_in_seconds' could be of.", "expires_in_seconds")
    with naming_fields():
        account = await who.accounts.service_accounts.create(who.tenant_id, project_id, body.name, who.actor)
    shown = service_account_object(account) | {"api_key": None}
    if with_key:
        made = await who.accounts.keys.create(
            who.tenant_id,
            FIRST_KEY,
            who.actor,
            project_id=project_id,
            service_account_id=account.id,
            terms=KeyTerms(expires_at=in_seconds(body.expires_in_seconds)),
        )
        shown["api_key"] = service_account_key_object(made)
    return shown


@router.get("", operation_id="listServiceAccounts")
async def list_service_accounts(request: Request, query: Paged, project_id: str) -> dict[str, Any]:
    who = await asking(request, READ_PROJECTS)
    found = await who.accounts.service_accounts.list(
        who.tenant_id,
        project_id,
        after=query.after,
        limit=query.limit + 1,
        newest_first=query.newest_first,
    )
    return page([service_account_object(account) for account in found], query.limit)


@router.get("/{service_account_id}", operation_id="retrieveServiceAccount")
async def retrieve_service_account(
    request: Request, project_id: str, service_account_id: str
) -> dict[str, Any]:
    who = await asking(request, READ_PROJECTS)
    return service_account_object(
        await who.accounts.service_accounts.get(who.tenant_id, project_id, service_account_id)
    )


@router.post(
    "/{service_account_id}",
    operation_id="updateServiceAccount",
    openapi_extra=json_body("UpdateServiceAccountRequest"),
)
async def update_service_account(
    request: Request, project_id: str, service_account_id: str
) -> dict[str, Any]:
    who = await asking(request, WRITE_PROJECTS)
    body = await read_body(request, UpdateServiceAccountRequest)
    with naming_fields():
        account = await who.accounts.service_accounts.update(
            who.tenant_id, project_id, service_account_id, who.actor, name=body.name, role=body.role
        )
    return service_account_object(account)


@router.delete("/{service_account_id}", operation_id="deleteServiceAccount")
async def delete_service_account(
    request: Request, project_id: str, service_account_id: str
) -> dict[str, Any]:
    """End it; its keys are refused everywhere within a second."""
    who = await asking(request, WRITE_PROJECTS)
    await who.accounts.service_accounts.delete(who.tenant_id, project_id, service_account_id, who.actor)
    return deleted("organization.project.service_account", service_account_id)


@router.post(
    "/{service_account_id}/api_keys",
    operation_id="createServiceAccountKey",
    openapi_extra=json_body("CreateServiceAccountKeyRequest"),
)
async def create_service_account_key(
    request: Request, project_id: str, service_account_id: str
) -> dict[str, Any]:
    """Make another key of it. `value` is in this answer and nowhere else."""
    who = await asking(request, WRITE_KEYS)
    body = await read_body(request, CreateServiceAccountKeyRequest)
    check_scopes("inference", body.scopes)
    terms = KeyTerms(
        scopes=frozenset(body.scopes),
        models=frozenset(body.models),
        networks=tuple(body.networks),
        origins=tuple(body.origins),
        expires_at=in_seconds(body.expires_in_seconds),
    )
    with naming_fields():
        made = await who.accounts.keys.create(
            who.tenant_id,
            body.name or FIRST_KEY,
            who.actor,
            project_id=project_id,
            service_account_id=service_account_id,
            terms=terms,
        )
    return service_account_key_object(made)
