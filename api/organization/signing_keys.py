"""`/v1/organization/signing_keys`: the public keys that uploaded adapters are signed with; whether they must
be.
"""

from __future__ import annotations

from typing import Literal, TypedDict

from fastapi import Request

from api.authentication import READ_PROJECTS, WRITE_PROJECTS
from api.json_bodies import unix
from api.openapi.routing import Router, fails_with, json_body
from api.organization.admin_requests import authenticated_admin, naming_fields, read_body
from api.organization.request_bodies import AdapterSigningRequest, CreateSigningKeyRequest
from api.organization.response_objects import DeletedObject, deleted
from tenants.signing_keys.errors import SigningKeyKnown, SigningKeyNotFound, TooManySigningKeys
from tenants.signing_keys.models import TenantSigningKey

router = Router(prefix="/v1/organization", tags=["Organization"])
_NAME = "organization.signing_key"


class SigningKeyObject(TypedDict):
    """A public key whose signatures on uploaded adapters the organization accepts."""

    id: str
    object: Literal["organization.signing_key"]
    name: str
    key_id: str
    """The SHA-256 of the key in PEM, by which a signature names it."""
    public_key: str
    """In PEM."""
    created_at: int
    """Unix seconds."""
    created_by: str | None


class SigningKeyList(TypedDict):
    """All keys that are not removed, the newest first."""

    object: Literal["list"]
    data: list[SigningKeyObject]


class AdapterSigningObject(TypedDict):
    """Whether uploaded adapters must be signed."""

    object: Literal["organization.adapter_signing"]
    signed_adapters_only: bool
    """True: uploads and imports without a signature by one of the signing keys are refused."""


def key_object(row: TenantSigningKey) -> SigningKeyObject:
    return {
        "id": row.id,
        "object": "organization.signing_key",
        "name": row.name,
        "key_id": row.key_id,
        "public_key": row.pem,
        "created_at": unix(row.created_at),
        "created_by": row.created_by,
    }


@router.get("/signing_keys", operation_id="listSigningKeys")
async def list_signing_keys(request: Request) -> SigningKeyList:
    """Lists the public keys that uploaded adapters can be signed with: at most twenty."""
    who = await authenticated_admin(request, READ_PROJECTS)
    found = await who.accounts.signing_keys.list(who.tenant_id)
    return {"object": "list", "data": [key_object(row) for row in found]}


@router.post(
    "/signing_keys", operation_id="createSigningKey", openapi_extra=json_body("CreateSigningKeyRequest")
)
@fails_with(TooManySigningKeys(20), SigningKeyKnown("release"))
async def create_signing_key(request: Request) -> SigningKeyObject:
    """Registers a public key: adapters that it signed are accepted from now on, and show the key's name."""
    who = await authenticated_admin(request, WRITE_PROJECTS)
    body = await read_body(request, CreateSigningKeyRequest)
    with naming_fields():
        made = await who.accounts.signing_keys.add(who.tenant_id, body.name, body.public_key, who.actor)
    return key_object(made)


@router.delete("/signing_keys/{signing_key_id}", operation_id="deleteSigningKey")
@fails_with(SigningKeyNotFound("signkey_1"))
async def delete_signing_key(request: Request, signing_key_id: str) -> DeletedObject:
    """Removes a public key. Versions that were signed with it stay; new uploads are not accepted with it."""
    who = await authenticated_admin(request, WRITE_PROJECTS)
    await who.accounts.signing_keys.remove(who.tenant_id, signing_key_id, who.actor)
    return deleted(_NAME, signing_key_id)


@router.get("/adapter_signing", operation_id="retrieveAdapterSigning")
async def retrieve_adapter_signing(request: Request) -> AdapterSigningObject:
    """Retrieves whether uploaded adapters must be signed."""
    who = await authenticated_admin(request, READ_PROJECTS)
    return _shown(await who.accounts.signing_keys.accepts_signed_only(who.tenant_id))


@router.post(
    "/adapter_signing", operation_id="updateAdapterSigning", openapi_extra=json_body("AdapterSigningRequest")
)
async def update_adapter_signing(request: Request) -> AdapterSigningObject:
    """Sets whether uploaded adapters must be signed by one of the signing keys. It holds from the next upload
    on; versions that are there stay.
    """
    who = await authenticated_admin(request, WRITE_PROJECTS)
    wanted = await read_body(request, AdapterSigningRequest)
    await who.accounts.signing_keys.accept_signed_only(who.tenant_id, wanted.signed_adapters_only, who.actor)
    return _shown(wanted.signed_adapters_only)


def _shown(signed_only: bool) -> AdapterSigningObject:
    return {"object": "organization.adapter_signing", "signed_adapters_only": signed_only}
