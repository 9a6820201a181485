"""`/v1/adapters/{adapter}/shares` and `/v1/shares`: shares adapters with other organizations.

The first are the owner's routes, the second those of the organization that an adapter is offered to. The
package `adapters` has the logic.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from fastapi import Request
from msgspec import Meta

from adapters.errors import AdapterNotFound
from adapters.shares import Offer, ShareView
from adapters.sharing.errors import AlreadyShared, OrganizationNotFound, ShareAnswered, ShareNotFound
from api.authentication import READ_ADAPTERS, WRITE_ADAPTERS, actor_of, authenticate
from api.body_fields import Body, Id
from api.json_bodies import BodyDecoders, read_json, unix
from api.openapi.routing import Router, fails_with, json_body
from api.pagination import Page, Paged, page
from api.services import onboarding_of
from tenants.errors import AccountSuspended
from tenants.share_terms import MAX_SURCHARGE

Surcharge = Annotated[int, Meta(ge=0, le=MAX_SURCHARGE)]


class CreateShareRequest(Body, frozen=True, kw_only=True):
    """An offer of an adapter to another organization. Surcharges are micro-USD per million tokens, besides
    the price list's prices.
    """

    organization_id: Id
    input_surcharge: Surcharge = 0
    """For prompt tokens, cached or not."""
    output_surcharge: Surcharge = 0
    owner_percent: Annotated[int, Meta(ge=0, le=100)] | None = None
    """The owner's part of the surcharge; the rest is the platform's. Default: the most that the operator
    allows.
    """


BODIES = (CreateShareRequest,)
_bodies = BodyDecoders(BODIES)


class SharingOrganization(TypedDict):
    """An organization."""

    id: str
    name: str


class ShareObject(TypedDict):
    """An adapter that one organization offers to or shares with another."""

    id: str
    object: Literal["adapter.share"]
    created_at: int | None
    adapter_id: str
    model: str
    """The name under which the other organization uses it."""
    state: str
    """`offered`, `active`, `declined` or `ended`."""
    owner: SharingOrganization
    organization: SharingOrganization
    """The organization that it is offered to."""
    input_surcharge: int
    """Micro-USD per million prompt tokens, besides the price list's prices."""
    output_surcharge: int
    owner_percent: int | None
    """The owner's part of the surcharge; null for the other organization."""
    accepted_at: int | None
    ended_at: int | None
    """When it was declined or ended."""
    ended_by: str | None
    """The organization that declined or ended it."""
    version: int | None
    """The version that the name serves; null while it serves none."""


owned = Router(prefix="/v1/adapters", tags=["Shared adapters"], errors=(AccountSuspended(),))
received = Router(prefix="/v1/shares", tags=["Shared adapters"], errors=(AccountSuspended(),))
_SHARE = "shr_01k0000000000000000000000"


@owned.post(
    "/{adapter}/shares",
    operation_id="createShare",
    openapi_extra=json_body("CreateShareRequest"),
    status_code=201,
)
@fails_with(
    AdapterNotFound("support"),
    OrganizationNotFound("tnt_1"),
    AlreadyShared("support", "tnt_1"),
)
async def create_share(request: Request, adapter: str) -> ShareObject:
    """Offers an adapter to another organization, which can use it once it has accepted. The adapter, its
    files and its versions stay yours.
    """
    caller = await authenticate(request, WRITE_ADAPTERS)
    body = _bodies.decode(CreateShareRequest, await read_json(request))
    offer = Offer(body.organization_id, body.input_surcharge, body.output_surcharge, body.owner_percent)
    made = await onboarding_of(request).sharing.offer(
        caller.tenant_id, adapter, offer, by=actor_of(request, caller)
    )
    return share_object(made, caller.tenant_id)


@owned.get("/{adapter}/shares", operation_id="listShares")
@fails_with(AdapterNotFound("support"))
async def list_shares(request: Request, query: Paged, adapter: str) -> Page[ShareObject]:
    """Lists the organizations that an adapter is offered to or shared with, and those that it was."""
    caller = await authenticate(request, READ_ADAPTERS)
    found = await onboarding_of(request).sharing.shares(
        caller.tenant_id, adapter, after=query.after, limit=query.limit + 1, newest_first=query.newest_first
    )
    return page([share_object(one, caller.tenant_id) for one in found], query.limit)


@owned.get("/{adapter}/shares/{share_id}", operation_id="retrieveShare")
@fails_with(AdapterNotFound("support"), ShareNotFound(_SHARE))
async def retrieve_share(request: Request, adapter: str, share_id: str) -> ShareObject:
    """Retrieves a share of an adapter."""
    caller = await authenticate(request, READ_ADAPTERS)
    found = await onboarding_of(request).sharing.share(caller.tenant_id, adapter, share_id)
    return share_object(found, caller.tenant_id)


@owned.delete("/{adapter}/shares/{share_id}", operation_id="endShare")
@fails_with(AdapterNotFound("support"), ShareNotFound(_SHARE))
async def end_share(request: Request, adapter: str, share_id: str) -> ShareObject:
    """Takes an offer back, or ends a share. Requests that are being generated finish."""
    caller = await authenticate(request, WRITE_ADAPTERS)
    ended = await onboarding_of(request).sharing.end(
        caller.tenant_id, adapter, share_id, by=actor_of(request, caller)
    )
    return share_object(ended, caller.tenant_id)


@received.get("", operation_id="listReceivedShares")
async def list_received(request: Request, query: Paged) -> Page[ShareObject]:
    """Lists what other organizations offer to and share with yours."""
    caller = await authenticate(request, READ_ADAPTERS)
    found = await onboarding_of(request).sharing.received(
        caller.tenant_id, after=query.after, limit=query.limit + 1, newest_first=query.newest_first
    )
    return page([share_object(one, caller.tenant_id) for one in found], query.limit)


@received.get("/{received_share_id}", operation_id="retrieveReceivedShare")
@fails_with(ShareNotFound(_SHARE))
async def retrieve_received(request: Request, received_share_id: str) -> ShareObject:
    """Retrieves an offer or a share of another organization."""
    caller = await authenticate(request, READ_ADAPTERS)
    found = await onboarding_of(request).sharing.received_share(caller.tenant_id, received_share_id)
    return share_object(found, caller.tenant_id)


@received.post("/{received_share_id}/accept", operation_id="acceptShare")
@fails_with(ShareNotFound(_SHARE), ShareAnswered(_SHARE, "ended"))
async def accept_share(request: Request, received_share_id: str) -> ShareObject:
    """Accepts an offer. From then on your organization can use its `model`, and pays the surcharge."""
    caller = await authenticate(request, WRITE_ADAPTERS)
    accepted = await onboarding_of(request).sharing.accept(
        caller.tenant_id, received_share_id, by=actor_of(request, caller)
    )
    return share_object(accepted, caller.tenant_id)


@received.post("/{received_share_id}/decline", operation_id="declineShare")
@fails_with(ShareNotFound(_SHARE), ShareAnswered(_SHARE, "active"))
async def decline_share(request: Request, received_share_id: str) -> ShareObject:
    """Declines an offer."""
    caller = await authenticate(request, WRITE_ADAPTERS)
    declined = await onboarding_of(request).sharing.decline(
        caller.tenant_id, received_share_id, by=actor_of(request, caller)
    )
    return share_object(declined, caller.tenant_id)


@received.delete("/{received_share_id}", operation_id="leaveShare")
@fails_with(ShareNotFound(_SHARE))
async def leave_share(request: Request, received_share_id: str) -> ShareObject:
    """Ends a share, or declines an offer. Requests that are being generated finish."""
    caller = await authenticate(request, WRITE_ADAPTERS)
    left = await onboarding_of(request).sharing.leave(
        caller.tenant_id, received_share_id, by=actor_of(request, caller)
    )
    return share_object(left, caller.tenant_id)


def share_object(view: ShareView, seen_by: str) -> ShareObject:
    """Returns a share as one of the two organizations sees it."""
    row = view.row
    return {
        "id": row.id,
        "object": "adapter.share",
        "created_at": unix(row.created_at),
        "adapter_id": row.adapter_id,
        "model": row.model,
        "state": str(row.state),
        "owner": {"id": row.tenant_id, "name": view.owner},
        "organization": {"id": row.recipient_id, "name": view.recipient},
        "input_surcharge": row.input_surcharge,
        "output_surcharge": row.output_surcharge,
        "owner_percent": row.owner_percent if seen_by == row.tenant_id else None,
        "accepted_at": unix(row.accepted_at),
        "ended_at": unix(row.ended_at),
        "ended_by": row.ended_by,
        "version": view.serving_version,
    }
