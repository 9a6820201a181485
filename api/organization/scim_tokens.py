"""`/v1/organization/scim_tokens`: the bearer tokens by which identity providers provision users."""

from __future__ import annotations

from typing import Literal, TypedDict

from fastapi import Request

from api.authentication import READ_MEMBERS, WRITE_MEMBERS
from api.json_bodies import unix
from api.openapi.routing import Router, fails_with, json_body
from api.organization.admin_requests import authenticated_admin, naming_fields, read_body
from api.organization.request_bodies import CreateScimTokenRequest
from api.organization.response_objects import DeletedObject, deleted
from tenants.errors import OwnersOnly, RightsNotHeld
from tenants.provisioning.errors import ScimTokenNotFound, TooManyScimTokens
from tenants.scim.models import ScimToken

router = Router(prefix="/v1/organization/scim_tokens", tags=["Provisioning"])
_NAME = "organization.scim_token"


class ScimTokenObject(TypedDict):
    """A bearer token with which an identity provider provisions users and groups at `/scim/v2`."""

    id: str
    object: Literal["organization.scim_token"]
    name: str
    redacted_value: str
    """The beginning of the token, to tell it from others."""
    created_at: int
    """Unix seconds."""
    last_used_at: int | None
    """Unix seconds, to the minute."""


class CreatedScimTokenObject(ScimTokenObject):
    """A new token, with its value."""

    value: str
    """The token. It is shown once."""


class ScimTokenList(TypedDict):
    """All tokens, the newest first."""

    object: Literal["list"]
    data: list[ScimTokenObject]


def token_object(row: ScimToken) -> ScimTokenObject:
    return {
        "id": row.id,
        "object": "organization.scim_token",
        "name": row.name,
        "redacted_value": f"{row.prefix}...",
        "created_at": unix(row.created_at),
        "last_used_at": unix(row.last_used_at),
    }


@router.get("", operation_id="listScimTokens")
async def list_scim_tokens(request: Request) -> ScimTokenList:
    """Lists the SCIM tokens that are not revoked: at most ten."""
    who = await authenticated_admin(request, READ_MEMBERS)
    found = await who.accounts.scim_tokens.list(who.tenant_id)
    return {"object": "list", "data": [token_object(row) for row in found]}


@router.post("", operation_id="createScimToken", openapi_extra=json_body("CreateScimTokenRequest"))
@fails_with(OwnersOnly(), RightsNotHeld("role", ["organization.billing.write"]), TooManyScimTokens(10))
async def create_scim_token(request: Request) -> CreatedScimTokenObject:
    """Creates a SCIM token, whose value is shown once. Only owners can: through it, an identity provider can
    make owners.
    """
    who = await authenticated_admin(request, WRITE_MEMBERS)
    body = await read_body(request, CreateScimTokenRequest)
    with naming_fields():
        made = await who.accounts.scim_tokens.create(who.tenant_id, body.name, who.actor)
    return {**token_object(made.row), "value": made.plaintext}


@router.delete("/{scim_token_id}", operation_id="deleteScimToken")
@fails_with(
    OwnersOnly(), RightsNotHeld("role", ["organization.billing.write"]), ScimTokenNotFound("scimtok_1")
)
async def delete_scim_token(request: Request, scim_token_id: str) -> DeletedObject:
    """Revokes a SCIM token. Requests with it are refused at once."""
    who = await authenticated_admin(request, WRITE_MEMBERS)
    await who.accounts.scim_tokens.revoke(who.tenant_id, scim_token_id, who.actor)
    return deleted(_NAME, scim_token_id)
