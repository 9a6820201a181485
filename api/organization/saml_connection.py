"""`/v1/organization/saml_connection`: the identity provider that members sign in with by SAML 2.0."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from fastapi import Request
from msgspec import UNSET

from api.authentication import READ_MEMBERS, WRITE_MEMBERS
from api.openapi.routing import Router, fails_with, json_body
from api.organization.admin_requests import authenticated_admin, naming_fields, read_body
from api.organization.request_bodies import SetSamlConnectionRequest
from api.organization.response_objects import DeletedObject, deleted
from tenants.errors import OwnersOnly, RightsNotHeld
from tenants.saml.certificates import certificate_view
from tenants.saml.errors import SamlConnectionNotFound
from tenants.saml.models import SamlConnection
from tenants.saml.service_provider import path_of

router = Router(prefix="/v1/organization/saml_connection", tags=["Single sign-on"])
_NAME = "organization.saml_connection"


class SamlCertificateObject(TypedDict):
    """A signing certificate of the identity provider."""

    fingerprint: str
    """SHA-256, in hexadecimal pairs."""
    expires_at: int
    """Unix seconds. Signatures are accepted afterwards, too."""
    value: str
    """In PEM format."""


class SamlConnectionObject(TypedDict):
    """The identity provider that members sign in with."""

    id: str
    object: Literal["organization.saml_connection"]
    entity_id: str
    sso_url: str
    certificates: list[SamlCertificateObject]
    email_attribute: str | None
    groups_attribute: str | None
    enabled: bool
    allows_idp_initiated: bool
    """Whether sign-ins can begin at the identity provider."""
    creates_members: bool
    """Whether people become members when they sign in for the first time."""
    metadata_path: str
    """Path of this service's own metadata, which the identity provider needs; its address is the entity
    id."""
    created_at: int
    """Unix seconds."""
    updated_at: int
    """Unix seconds."""


def connection_object(row: SamlConnection) -> SamlConnectionObject:
    views = [certificate_view(one) for one in row.certificates]
    return {
        "id": row.id,
        "object": "organization.saml_connection",
        "entity_id": row.entity_id,
        "sso_url": row.sso_url,
        "certificates": [
            {
                "fingerprint": one.fingerprint,
                "expires_at": int(one.expires_at.timestamp()),
                "value": one.pem,
            }
            for one in views
        ],
        "email_attribute": row.email_attribute,
        "groups_attribute": row.groups_attribute,
        "enabled": row.is_enabled,
        "allows_idp_initiated": row.allows_idp_initiated,
        "creates_members": row.creates_members,
        "metadata_path": f"/console{path_of(row.tenant_id, 'metadata')}",
        "created_at": int(row.created_at.timestamp()),
        "updated_at": int(row.updated_at.timestamp()),
    }


@router.get("", operation_id="retrieveSamlConnection")
@fails_with(SamlConnectionNotFound())
async def retrieve_saml_connection(request: Request) -> SamlConnectionObject:
    """Retrieves the identity provider that members sign in with."""
    who = await authenticated_admin(request, READ_MEMBERS)
    found = await who.accounts.saml_connections.find(who.tenant_id)
    if found is None:
        raise SamlConnectionNotFound
    return connection_object(found)


@router.post("", operation_id="setSamlConnection", openapi_extra=json_body("SetSamlConnectionRequest"))
@fails_with(OwnersOnly(), RightsNotHeld("role", ["organization.billing.write"]))
async def set_saml_connection(request: Request) -> SamlConnectionObject:
    """Creates or changes the identity provider that members sign in with: by its metadata, or by entity id,
    sign-in address and certificates. Only owners can: it can sign owners in. Another entity id disconnects
    members, who are connected again by their addresses.
    """
    who = await authenticated_admin(request, WRITE_MEMBERS)
    body = await read_body(request, SetSamlConnectionRequest)
    given: dict[str, Any] = {name: getattr(body, name) for name in body.__struct_fields__}
    fields = {
        "is_enabled" if name == "enabled" else name: value
        for name, value in given.items()
        if value is not UNSET
    }
    with naming_fields():
        row = await who.accounts.saml_connections.set(who.tenant_id, fields, who.actor)
    return connection_object(row)


@router.delete("", operation_id="deleteSamlConnection")
@fails_with(OwnersOnly(), RightsNotHeld("role", ["organization.billing.write"]), SamlConnectionNotFound())
async def delete_saml_connection(request: Request) -> DeletedObject:
    """Deletes the identity provider, and disconnects members from their accounts there. Open sessions go
    on.
    """
    who = await authenticated_admin(request, WRITE_MEMBERS)
    connection_id = await who.accounts.saml_connections.delete(who.tenant_id, who.actor)
    return deleted(_NAME, connection_id)
