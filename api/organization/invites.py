"""`/v1/organization/invites`: people who may become users.

No mail is sent: the answer to whoever invites has a token, once, to be passed on. Accepting it needs no key.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi import APIRouter, Request

from api.deps import READ_MEMBERS, WRITE_MEMBERS, address_of
from api.errors import InvalidValue
from api.openapi import ERROR_RESPONSES, json_body
from api.organization.bodies import AcceptInviteRequest, CreateInviteRequest
from api.organization.objects import deleted, invite_object
from api.organization.requests import AdminCaller, accounts_of, asking, naming_fields, read_body
from api.organization.roles import meant_role, shown_role
from api.pages import Paged, page
from tenants.roles import ProjectRole

router = APIRouter(prefix="/v1/organization/invites", responses=ERROR_RESPONSES, tags=["Users"])
open_router = APIRouter(prefix=router.prefix, responses=ERROR_RESPONSES, tags=["Users"])
"""Needs no API key."""


@router.post("", operation_id="createInvite", openapi_extra=json_body("CreateInviteRequest"))
async def create_invite(request: Request) -> dict[str, Any]:
    """Invite an address. `token` is in this answer and nowhere else."""
    who = await asking(request, WRITE_MEMBERS)
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
    return invite_object(made.invite, datetime.now(UTC)) | {"token": made.token}


@router.get("", operation_id="listInvites")
async def list_invites(request: Request, query: Paged) -> dict[str, Any]:
    who = await asking(request, READ_MEMBERS)
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
async def accept_invite(request: Request) -> dict[str, Any]:
    """Become a user, with a password of one's own, by the token of an invitation. No key is needed."""
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
async def retrieve_invite(request: Request, invite_id: str) -> dict[str, Any]:
    who = await asking(request, READ_MEMBERS)
    return invite_object(await who.accounts.invites.get(who.tenant_id, invite_id), datetime.now(UTC))


@router.delete("/{invite_id}", operation_id="deleteInvite")
async def delete_invite(request: Request, invite_id: str) -> dict[str, Any]:
    """Its token is good for nothing any more."""
    who = await asking(request, WRITE_MEMBERS)
    await who.accounts.invites.delete(who.tenant_id, invite_id, who.actor)
    return deleted("organization.invite", invite_id)


async def _places(who: AdminCaller, body: CreateInviteRequest) -> dict[str, ProjectRole]:
    """The projects asked for; unless told otherwise, the default one, as a member."""
    if body.projects is None:
        return {(await who.accounts.projects.default(who.tenant_id)).id: "member"}
    places = {place.id: place.role for place in body.projects}
    if len(places) != len(body.projects):
        raise InvalidValue("A project is named twice.", "projects")
    return places
