"""`POST /v1/oauth/token`: exchanges a token of a trusted issuer for a short-lived API key."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from fastapi import Request
from msgspec import Meta

from api.authentication import address_of
from api.body_fields import Body, Id
from api.errors import IssuerUnavailable
from api.json_bodies import BodyDecoders, read_json
from api.openapi.routing import Router, fails_with, json_body
from api.services import served, services_of
from tenants.workload_identity.errors import TokenNotAccepted

open_router = Router(prefix="/v1/oauth", tags=["Workload identity"])
"""Needs no API key."""

GRANT = "urn:ietf:params:oauth:grant-type:token-exchange"
JWT = "urn:ietf:params:oauth:token-type:jwt"
ID_TOKEN = "urn:ietf:params:oauth:token-type:id_token"  # noqa: S105  a type, no token
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105


class TokenExchangeRequest(Body, frozen=True, kw_only=True):
    """An exchange as RFC 8693 has it, in JSON."""

    grant_type: Literal["urn:ietf:params:oauth:grant-type:token-exchange"]
    subject_token: Annotated[str, Meta(min_length=1, max_length=16_384)]
    """The token of the workload, which its platform has signed."""
    subject_token_type: Literal[
        "urn:ietf:params:oauth:token-type:jwt", "urn:ietf:params:oauth:token-type:id_token"
    ]
    identity_provider_id: Id
    """The workload identity provider whose issuer has signed the token."""
    service_account_id: Id
    """The service account to act as."""


class ExchangedTokenObject(TypedDict):
    """A short-lived API key."""

    access_token: str
    """An inference key of the service account."""
    issued_token_type: Literal["urn:ietf:params:oauth:token-type:access_token"]
    token_type: Literal["Bearer"]
    expires_in: int
    """Seconds until the key expires."""
    scope: NotRequired[str]
    """The scopes of the key, if it is restricted."""


BODIES = (TokenExchangeRequest,)
_bodies = BodyDecoders(BODIES)


@open_router.post(
    "/token",
    operation_id="exchangeToken",
    openapi_extra=json_body("TokenExchangeRequest") | {"security": []},
)
@fails_with(TokenNotAccepted("it has expired"), IssuerUnavailable("The issuer does not answer."))
async def exchange_token(request: Request) -> ExchangedTokenObject:
    """Exchanges a token of a trusted issuer, such as a CI system, for a short-lived API key. It needs no API
    key: a federation rule of the organization decides.
    """
    body = _bodies.decode(TokenExchangeRequest, await read_json(request))
    made = await served(services_of(request).token_exchange, "Token exchanges").exchange(
        body.identity_provider_id,
        body.service_account_id,
        body.subject_token,
        address=address_of(request),
        request_id=request.state.request_id,
    )
    shown: ExchangedTokenObject = {
        "access_token": made.plaintext,
        "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
        "token_type": "Bearer",
        "expires_in": made.seconds,
    }
    if made.scopes:
        shown["scope"] = " ".join(made.scopes)
    return shown
