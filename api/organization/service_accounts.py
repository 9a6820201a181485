"""`/v1/organization/projects/{project_id}/service_accounts`: programs that work in a project."""

from __future__ import annotations

from fastapi import Request

from api.authentication import READ_PROJECTS, WRITE_KEYS, WRITE_PROJECTS
from api.errors import InvalidValue
from api.openapi.routing import Router, fails_with, json_body
from api.organization.admin_requests import authenticated_admin, in_seconds, naming_fields, read_body
from api.organization.keys import ServiceAccountKeyObject, service_account_key_object
from api.organization.request_bodies import (
    CreateServiceAccountKeyRequest,
    CreateServiceAccountRequest,
    UpdateServiceAccountRequest,
)
from api.organization.response_objects import (
    DeletedObject,
    ServiceAccountObject,
    deleted,
    service_account_object,
)
from api.organization.scopes import check_scopes
from api.pagination import Page, Paged, page
from tenants.errors import ProjectArchived, ProjectNotFound, ServiceAccountNotFound
from tenants.key_restrictions import KeyRestrictions


class CreatedServiceAccountObject(ServiceAccountObject):
    """A service account with its first key."""

    api_key: ServiceAccountKeyObject | None
    """The key; null with `create_service_account_only`."""


router = Router(
    prefix="/v1/organization/projects/{project_id}/service_accounts",
    tags=["Projects"],
)
FIRST_KEY = "Secret key"


@router.post("", operation_id="createServiceAccount", openapi_extra=json_body("CreateServiceAccountRequest"))
@fails_with(ProjectNotFound("proj_1"), ProjectArchived("proj_1"))
async def create_service_account(request: Request, project_id: str) -> CreatedServiceAccountObject:
    """Creates a service account and, unless `create_service_account_only` is set, its first key, whose
    `value` only this response has.
    """
    who = await authenticated_admin(request, WRITE_PROJECTS)
    body = await read_body(request, CreateServiceAccountRequest)
    with_key = not body.create_service_account_only
    if with_key:
        await authenticated_admin(request, WRITE_KEYS)
    elif body.expires_in_seconds is not None:
        raise InvalidValue("There is no key that 'expires_in_seconds' could be of.", "expires_in_seconds")
    with naming_fields():
        account = await who.accounts.service_accounts.create(who.tenant_id, project_id, body.name, who.actor)
    shown: CreatedServiceAccountObject = {**service_account_object(account), "api_key": None}
    if with_key:
        made = await who.accounts.keys.create(
            who.tenant_id,
            FIRST_KEY,
            who.actor,
            project_id=project_id,
            service_account_id=account.id,
            restrictions=KeyRestrictions(expires_at=in_seconds(body.expires_in_seconds)),
        )
        shown["api_key"] = service_account_key_object(made)
    return shown


@router.get("", operation_id="listServiceAccounts")
@fails_with(ProjectNotFound("proj_1"))
async def list_service_accounts(
    request: Request, query: Paged, project_id: str
) -> Page[ServiceAccountObject]:
    """Lists the project's service accounts."""
    who = await authenticated_admin(request, READ_PROJECTS)
    found = await who.accounts.service_accounts.list(
        who.tenant_id,
        project_id,
        after=query.after,
        limit=query.limit + 1,
        newest_first=query.newest_first,
    )
    return page([service_account_object(account) for account in found], query.limit)


@router.get("/{service_account_id}", operation_id="retrieveServiceAccount")
@fails_with(ServiceAccountNotFound("svc_acct_1"))
async def retrieve_service_account(
    request: Request, project_id: str, service_account_id: str
) -> ServiceAccountObject:
    """Retrieves a service account."""
    who = await authenticated_admin(request, READ_PROJECTS)
    return service_account_object(
        await who.accounts.service_accounts.get(who.tenant_id, project_id, service_account_id)
    )


@router.post(
    "/{service_account_id}",
    operation_id="updateServiceAccount",
    openapi_extra=json_body("UpdateServiceAccountRequest"),
)
@fails_with(ServiceAccountNotFound("svc_acct_1"))
async def update_service_account(
    request: Request, project_id: str, service_account_id: str
) -> ServiceAccountObject:
    """Changes a service account's name or role."""
    who = await authenticated_admin(request, WRITE_PROJECTS)
    body = await read_body(request, UpdateServiceAccountRequest)
    with naming_fields():
        account = await who.accounts.service_accounts.update(
            who.tenant_id, project_id, service_account_id, who.actor, name=body.name, role=body.role
        )
    return service_account_object(account)


@router.delete("/{service_account_id}", operation_id="deleteServiceAccount")
@fails_with(ServiceAccountNotFound("svc_acct_1"))
async def delete_service_account(request: Request, project_id: str, service_account_id: str) -> DeletedObject:
    """Deletes a service account. Its keys are refused within a second."""
    who = await authenticated_admin(request, WRITE_PROJECTS)
    await who.accounts.service_accounts.delete(who.tenant_id, project_id, service_account_id, who.actor)
    return deleted("organization.project.service_account", service_account_id)


@router.post(
    "/{service_account_id}/api_keys",
    operation_id="createServiceAccountKey",
    openapi_extra=json_body("CreateServiceAccountKeyRequest"),
)
@fails_with(ServiceAccountNotFound("svc_acct_1"), ProjectNotFound("proj_1"), ProjectArchived("proj_1"))
async def create_service_account_key(
    request: Request, project_id: str, service_account_id: str
) -> ServiceAccountKeyObject:
    """Creates another key of the service account. The response is the only one that has the key's `value`."""
    who = await authenticated_admin(request, WRITE_KEYS)
    body = await read_body(request, CreateServiceAccountKeyRequest)
    check_scopes("inference", body.scopes)
    restrictions = KeyRestrictions(
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
            restrictions=restrictions,
        )
    return service_account_key_object(made)
