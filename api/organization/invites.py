"""`/v1/organization/invites`: creates, lists, accepts and deletes invitations.

No mail is sent: the response to the inviting client has the token, once. Accepting it needs no API key.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from fastapi import Request

from api.authentication import READ_MEMBERS, WRITE_MEMBERS, address_of
from api.errors import InvalidValue
from api.openapi.routing import Router, fails_with, json_body
from api.organization.admin_requests import (
    AdminCaller,
    accounts_of,
    authenticated_admin,
    naming_fields,
    read_body,
)
from api.organization.request_bodies import AcceptInviteRequest, CreateInviteRequest
from api.organization.response_objects import (
    AcceptedUserObject,
    CreatedInviteObject,
    DeletedObject,
    InviteObject,
    deleted,
    invite_object,
)
from api.organization.roles import meant_role, shown_role
from api.pagination import Page, Paged, page
from tenants.errors import (
    InviteAccepted,
    InviteInvalid,
    InviteNotFound,
    NameTaken,
    OwnersOnly,
    ProjectArchived,
    ProjectNotFound,
    RightsNotHeld,
)
from tenants.roles import ProjectRole

router = Router(prefix="/v1/organization/invites", tags=["Users"])
open_router = Router(prefix=router.prefix, tags=["Users"])
"""Needs no API key."""


@router.post("", operation_id="createInvite", openapi_extra=json_body("CreateInviteRequest"))
@fails_with(
    RightsNotHeld("scopes", ["organization.billing.write"]),
    OwnersOnly(),
    ProjectNotFound("proj_1"),
    ProjectArchived("proj_1"),
    NameTaken("email", "ada@example.com"),
)
async def create_invite(request: Request) -> CreatedInviteObject:
    """Invites a person to the organization. No mail is sent: pass the `token`, which only this response has,
    on to them.
    """
    who = await authenticated_admin(request, WRITE_MEMBERS)
    body = await read_body(request, CreateInviteRequest)
    role = meant_role(body.role)
    with naming_fields():
        made = await who.accounts.invites.create(
            who.tenant_id,
            body.email,
            role,
            who.actor,
            projects=await _places(who, body),
            life=timedelta(seconds=body.expires_in_seconds),
        )
    return {**invite_object(made.invite, datetime.now(UTC)), "token": made.token}


@router.get("", operation_id="listInvites")
async def list_invites(request: Request, query: Paged) -> Page[InviteObject]:
    """Lists invitations."""
    who = await authenticated_admin(request, READ_MEMBERS)
    found = await who.accounts.invites.list(
        who.tenant_id, after=query.after, limit=query.limit + 1, newest_first=query.newest_first
    )
    now = datetime.now(UTC)
    return page([invite_object(invite, now) for invite in found], query.limit)


@open_router.post(
    "/accept",
    operation_id="acceptInvite",
    openapi_extra=json_body("AcceptInviteRequest") | {"security": []},
)
@fails_with(InviteInvalid(), NameTaken("email", "ada@example.com"))
async def accept_invite(request: Request) -> AcceptedUserObject:
    """Accepts an invitation and creates the user. It needs the invitation's token and no API key."""
    body = await read_body(request, AcceptInviteRequest)
    with naming_fields():
        account = await accounts_of(request).invites.accept(
            body.token,
            body.password,
            name=body.name or "",
            address=address_of(request),
            request_id=request.state.request_id,
        )
    return {
        "id": account.user_id,
        "object": "organization.user",
        "email": account.email,
        "role": shown_role(account.role),
        "organization": {"id": account.tenant_id, "name": account.tenant_name},
    }


@router.get("/{invite_id}", operation_id="retrieveInvite")
@fails_with(InviteNotFound("invite_1"))
async def retrieve_invite(request: Request, invite_id: str) -> InviteObject:
    """Retrieves an invitation."""
    who = await authenticated_admin(request, READ_MEMBERS)
    return invite_object(await who.accounts.invites.get(who.tenant_id, invite_id), datetime.now(UTC))


@router.delete("/{invite_id}", operation_id="deleteInvite")
@fails_with(InviteNotFound("invite_1"), InviteAccepted("invite_1"))
async def delete_invite(request: Request, invite_id: str) -> DeletedObject:
    """Deletes an invitation. Its token can no longer be used."""
    who = await authenticated_admin(request, WRITE_MEMBERS)
    await who.accounts.invites.delete(who.tenant_id, invite_id, who.actor)
    return deleted("organization.invite", invite_id)


async def _places(who: AdminCaller, body: CreateInviteRequest) -> dict[str, ProjectRole]:
    """Returns the requested projects and roles; by default the default project, as a member."""
    if body.projects is None:
        return {(await who.accounts.projects.default(who.tenant_id)).id: "member"}
    places = {place.id: place.role for place in body.projects}
    if len(places) != len(body.projects):
        raise InvalidValue("A project is named twice.", "projects")
    return places
