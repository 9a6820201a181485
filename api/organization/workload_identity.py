"""`/v1/organization/workload_identity_providers`: issuers whose tokens are exchanged for keys, and by which
rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypedDict, TypeVar

import msgspec
from fastapi import Query, Request
from msgspec import UNSET

from api.authentication import READ_KEYS, WRITE_KEYS
from api.errors import InvalidValue
from api.json_bodies import BodyDecoders, read_json, unix
from api.openapi.routing import Router, fails_with, json_body
from api.organization.admin_requests import authenticated_admin, naming_fields
from api.organization.response_objects import DeletedObject, deleted
from api.organization.scopes import check_scopes
from api.organization.workload_identity_bodies import (
    BODIES,
    CreateFederationRuleRequest,
    CreateIdentityProviderRequest,
    Permissions,
    RestrictedPermissions,
    UpdateFederationRuleRequest,
    UpdateIdentityProviderRequest,
    UploadedKeys,
    Verification,
)
from api.pagination import Page, Paged, page
from api.services import served, services_of
from api.workload_identity.published_keys import PublishedKeys, read_keys
from tenants.errors import ServiceAccountNotFound
from tenants.workload_identity.errors import (
    FederationRuleNotFound,
    IdentityProviderNotFound,
    TooManyProviders,
)
from tenants.workload_identity.models import FederationRule, WorkloadIdentityProvider

router = Router(prefix="/v1/organization/workload_identity_providers", tags=["Workload identity"])
_PROVIDER = "organization.workload_identity_provider"
_RULE = "organization.workload_identity_federation_rule"
_bodies = BodyDecoders(BODIES)
BodyT = TypeVar("BodyT", bound=msgspec.Struct)


class WorkloadIdentityProviderObject(TypedDict):
    """An issuer of tokens that workloads, such as CI jobs, exchange for keys."""

    id: str
    object: Literal["organization.workload_identity_provider"]
    type: Literal["oidc"]
    name: str
    description: str | None
    issuer: str
    audience: str
    enabled: bool
    verification: dict[str, Any]
    """`{"type": "discovery", "discovery_url"}` or `{"type": "uploaded_jwks", "jwks"}`."""
    attribute_transformations: list[Any]
    """Always empty: expressions are not supported."""
    token_seconds: int
    single_use: bool
    created_at: int
    """Unix seconds."""
    updated_at: int
    """Unix seconds."""


class FederationRuleObject(TypedDict):
    """Which tokens of a provider act as a service account."""

    id: str
    object: Literal["organization.workload_identity_federation_rule"]
    workload_identity_provider_id: str
    project_id: str
    service_account_id: str
    name: str | None
    description: str | None
    enabled: bool
    attribute_matchers: dict[str, Any]
    permissions: dict[str, Any]
    """`{"type": "service_account_default"}` or `{"type": "restricted", "scopes"}`."""
    created_at: int
    """Unix seconds."""
    updated_at: int
    """Unix seconds."""


def provider_object(row: WorkloadIdentityProvider) -> WorkloadIdentityProviderObject:
    verification: dict[str, Any] = {"type": "discovery", "discovery_url": row.discovery_url}
    if row.jwks is not None:
        verification = {"type": "uploaded_jwks", "jwks": row.jwks}
    return {
        "id": row.id,
        "object": "organization.workload_identity_provider",
        "type": "oidc",
        "name": row.name,
        "description": row.description,
        "issuer": row.issuer,
        "audience": row.audience,
        "enabled": row.is_enabled,
        "verification": verification,
        "attribute_transformations": [],
        "token_seconds": row.token_seconds,
        "single_use": row.is_single_use,
        "created_at": unix(row.created_at),
        "updated_at": unix(row.updated_at),
    }


def rule_object(row: FederationRule) -> FederationRuleObject:
    restricted = {"type": "restricted", "scopes": [*row.scopes]}
    return {
        "id": row.id,
        "object": "organization.workload_identity_federation_rule",
        "workload_identity_provider_id": row.provider_id,
        "project_id": row.project_id,
        "service_account_id": row.service_account_id,
        "name": row.name,
        "description": row.description,
        "enabled": row.is_enabled,
        "attribute_matchers": row.matchers,
        "permissions": restricted if row.scopes else {"type": "service_account_default"},
        "created_at": unix(row.created_at),
        "updated_at": unix(row.updated_at),
    }


# Providers ------------------------------------------------------------------------------------------------


@router.get("", operation_id="listWorkloadIdentityProviders")
async def list_providers(request: Request, query: Paged) -> Page[WorkloadIdentityProviderObject]:
    """Lists workload identity providers."""
    who = await authenticated_admin(request, READ_KEYS)
    found = await who.accounts.workload_identities.providers(
        who.tenant_id, after=query.after, limit=query.limit + 1, newest_first=query.newest_first
    )
    return page([provider_object(row) for row in found], query.limit)


@router.post(
    "",
    operation_id="createWorkloadIdentityProvider",
    openapi_extra=json_body("CreateIdentityProviderRequest"),
)
@fails_with(TooManyProviders(50, "workload identity providers"))
async def create_provider(request: Request) -> WorkloadIdentityProviderObject:
    """Trusts an issuer of OpenID Connect tokens. Nothing is exchanged without a federation rule."""
    who = await authenticated_admin(request, WRITE_KEYS)
    body = await _read(request, CreateIdentityProviderRequest)
    fields = _provider_columns(_published(request), body)
    with naming_fields():
        made = await who.accounts.workload_identities.create_provider(who.tenant_id, fields, who.actor)
    return provider_object(made)


@router.get("/{workload_identity_provider_id}", operation_id="retrieveWorkloadIdentityProvider")
@fails_with(IdentityProviderNotFound("wip_1"))
async def retrieve_provider(
    request: Request, workload_identity_provider_id: str
) -> WorkloadIdentityProviderObject:
    """Retrieves a workload identity provider."""
    who = await authenticated_admin(request, READ_KEYS)
    found = await who.accounts.workload_identities.provider(who.tenant_id, workload_identity_provider_id)
    return provider_object(found)


@router.post(
    "/{workload_identity_provider_id}",
    operation_id="updateWorkloadIdentityProvider",
    openapi_extra=json_body("UpdateIdentityProviderRequest"),
)
@fails_with(IdentityProviderNotFound("wip_1"))
async def update_provider(
    request: Request, workload_identity_provider_id: str
) -> WorkloadIdentityProviderObject:
    """Changes a workload identity provider. Disabling it revokes the keys that were exchanged."""
    who = await authenticated_admin(request, WRITE_KEYS)
    body = await _read(request, UpdateIdentityProviderRequest)
    fields = _provider_columns(_published(request), body)
    with naming_fields():
        changed = await who.accounts.workload_identities.update_provider(
            who.tenant_id, workload_identity_provider_id, fields, who.actor
        )
    return provider_object(changed)


@router.delete("/{workload_identity_provider_id}", operation_id="deleteWorkloadIdentityProvider")
@fails_with(IdentityProviderNotFound("wip_1"))
async def delete_provider(request: Request, workload_identity_provider_id: str) -> DeletedObject:
    """Deletes a workload identity provider with its rules, and revokes the keys that were exchanged."""
    who = await authenticated_admin(request, WRITE_KEYS)
    identities = who.accounts.workload_identities
    await identities.delete_provider(who.tenant_id, workload_identity_provider_id, who.actor)
    return deleted(_PROVIDER, workload_identity_provider_id)


# Rules ----------------------------------------------------------------------------------------------------


@router.get("/{workload_identity_provider_id}/federation_rules", operation_id="listFederationRules")
@fails_with(IdentityProviderNotFound("wip_1"))
async def list_rules(
    request: Request,
    workload_identity_provider_id: str,
    query: Paged,
    service_account_id: Annotated[
        str | None, Query(max_length=100, description="Rules of this service account only.")
    ] = None,
) -> Page[FederationRuleObject]:
    """Lists the federation rules of a provider."""
    who = await authenticated_admin(request, READ_KEYS)
    found = await who.accounts.workload_identities.rules(
        who.tenant_id,
        workload_identity_provider_id,
        service_account_id=service_account_id,
        after=query.after,
        limit=query.limit + 1,
        newest_first=query.newest_first,
    )
    return page([rule_object(row) for row in found], query.limit)


@router.post(
    "/{workload_identity_provider_id}/federation_rules",
    operation_id="createFederationRule",
    openapi_extra=json_body("CreateFederationRuleRequest"),
)
@fails_with(
    IdentityProviderNotFound("wip_1"),
    ServiceAccountNotFound("svc_acct_1"),
    TooManyProviders(100, "federation rules of a provider"),
)
async def create_rule(request: Request, workload_identity_provider_id: str) -> FederationRuleObject:
    """Lets tokens whose claims match act as a service account."""
    who = await authenticated_admin(request, WRITE_KEYS)
    body = await _read(request, CreateFederationRuleRequest)
    fields = _rule_columns(body)
    with naming_fields():
        made = await who.accounts.workload_identities.create_rule(
            who.tenant_id,
            workload_identity_provider_id,
            (body.project_id, body.service_account_id),
            fields,
            who.actor,
        )
    return rule_object(made)


@router.get(
    "/{workload_identity_provider_id}/federation_rules/{workload_identity_federation_rule_id}",
    operation_id="retrieveFederationRule",
)
@fails_with(FederationRuleNotFound("wifr_1"))
async def retrieve_rule(
    request: Request, workload_identity_provider_id: str, workload_identity_federation_rule_id: str
) -> FederationRuleObject:
    """Retrieves a federation rule."""
    who = await authenticated_admin(request, READ_KEYS)
    found = await who.accounts.workload_identities.rule(
        who.tenant_id, workload_identity_provider_id, workload_identity_federation_rule_id
    )
    return rule_object(found)


@router.post(
    "/{workload_identity_provider_id}/federation_rules/{workload_identity_federation_rule_id}",
    operation_id="updateFederationRule",
    openapi_extra=json_body("UpdateFederationRuleRequest"),
)
@fails_with(FederationRuleNotFound("wifr_1"))
async def update_rule(
    request: Request, workload_identity_provider_id: str, workload_identity_federation_rule_id: str
) -> FederationRuleObject:
    """Changes a federation rule. Disabling it revokes its keys; other changes apply to later exchanges."""
    who = await authenticated_admin(request, WRITE_KEYS)
    fields = _rule_columns(await _read(request, UpdateFederationRuleRequest))
    with naming_fields():
        changed = await who.accounts.workload_identities.update_rule(
            who.tenant_id,
            workload_identity_provider_id,
            workload_identity_federation_rule_id,
            fields,
            who.actor,
        )
    return rule_object(changed)


@router.delete(
    "/{workload_identity_provider_id}/federation_rules/{workload_identity_federation_rule_id}",
    operation_id="deleteFederationRule",
)
@fails_with(FederationRuleNotFound("wifr_1"))
async def delete_rule(
    request: Request, workload_identity_provider_id: str, workload_identity_federation_rule_id: str
) -> DeletedObject:
    """Deletes a federation rule, and revokes its keys."""
    who = await authenticated_admin(request, WRITE_KEYS)
    await who.accounts.workload_identities.delete_rule(
        who.tenant_id, workload_identity_provider_id, workload_identity_federation_rule_id, who.actor
    )
    return deleted(_RULE, workload_identity_federation_rule_id)


# Bodies ---------------------------------------------------------------------------------------------------


async def _read(request: Request, kind: type[BodyT]) -> BodyT:
    return _bodies.decode(kind, await read_json(request))


def _published(request: Request) -> PublishedKeys:
    """Raises NotServing in a process that exchanges no tokens."""
    return served(services_of(request).token_exchange, "Workload identities").published


def _provider_columns(
    published: PublishedKeys, body: CreateIdentityProviderRequest | UpdateIdentityProviderRequest
) -> dict[str, Any]:
    """Returns the columns that the body sets. Raises InvalidValue."""
    given = {name: getattr(body, name) for name in body.__struct_fields__}
    named = {"enabled": "is_enabled", "single_use": "is_single_use"}
    left_out = {"type", "verification", "attribute_transformations"}
    columns = _columns(given, named, left_out)
    if "issuer" in columns:
        _check_url(published, columns["issuer"], "issuer")
    if given["verification"] is not UNSET:
        columns |= _verification_columns(published, given["verification"])
    return columns


def _verification_columns(published: PublishedKeys, verification: Verification) -> dict[str, Any]:
    if isinstance(verification, UploadedKeys):
        try:
            read_keys(verification.jwks)
        except ValueError as error:
            name = "verification.jwks"
            raise InvalidValue(f"Invalid value for '{name}': {error}.", name) from error
        return {"jwks": verification.jwks, "discovery_url": None}
    if verification.discovery_url is not None:
        _check_url(published, verification.discovery_url, "verification.discovery_url")
    return {"jwks": None, "discovery_url": verification.discovery_url}


def _check_url(published: PublishedKeys, url: str, name: str) -> None:
    try:
        published.check_url(url)
    except ValueError as error:
        text = str(error).removeprefix("url ")
        raise InvalidValue(f"Invalid value for '{name}': it {text}.", name) from error


def _rule_columns(body: CreateFederationRuleRequest | UpdateFederationRuleRequest) -> dict[str, Any]:
    """Returns the columns that the body sets. Raises InvalidValue."""
    given = {name: getattr(body, name) for name in body.__struct_fields__}
    named = {"enabled": "is_enabled", "attribute_matchers": "matchers"}
    columns = _columns(given, named, {"project_id", "service_account_id", "permissions"})
    if given["permissions"] is not UNSET:
        columns["scopes"] = _scopes(given["permissions"])
    return columns


def _scopes(permissions: Permissions) -> list[str]:
    if not isinstance(permissions, RestrictedPermissions):
        return []
    check_scopes("inference", permissions.scopes)
    return sorted(set(permissions.scopes))


def _columns(given: Mapping[str, Any], named: Mapping[str, str], left_out: set[str]) -> dict[str, Any]:
    return {
        named.get(name, name): value
        for name, value in given.items()
        if name not in left_out and value is not UNSET
    }
