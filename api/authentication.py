"""Authenticates requests by API key, and checks the key's scopes, web origins and models.

It holds no database connection: keys resolve from a cache, and a miss opens and closes its own session before
the route goes on.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request

from api.edge import header_of
from api.errors import (
    InsufficientPermissions,
    MismatchedOrganization,
    MismatchedProject,
    MissingApiKey,
)
from api.services import services_of
from tenants.actors import Actor
from tenants.context import KeyKind, TenantContext
from tenants.errors import AccountSuspended


@dataclass(frozen=True, slots=True)
class Permission:
    """What a route asks of a key."""

    kind: KeyKind
    scope: str
    """Held by every key of the kind that was not restricted to other scopes."""


GENERATE = Permission("inference", "model.request")
READ_MODELS = Permission("inference", "models.read")
READ_FILES = Permission("inference", "files.read")
WRITE_FILES = Permission("inference", "files.write")
READ_ADAPTERS = Permission("inference", "adapters.read")
WRITE_ADAPTERS = Permission("inference", "adapters.write")
READ_GENERATIONS = Permission("inference", "generations.read")
READ_SLA = Permission("admin", "sla.read")
READ_USAGE = Permission("admin", "usage.read")
READ_MEMBERS = Permission("admin", "organization.members.read")
WRITE_MEMBERS = Permission("admin", "organization.members.write")
READ_PROJECTS = Permission("admin", "organization.projects.read")
WRITE_PROJECTS = Permission("admin", "organization.projects.write")
READ_KEYS = Permission("admin", "organization.keys.read")
WRITE_KEYS = Permission("admin", "organization.keys.write")
READ_LIMITS = Permission("admin", "organization.limits.read")
WRITE_LIMITS = Permission("admin", "organization.limits.write")
READ_BILLING = Permission("admin", "organization.billing.read")
WRITE_BILLING = Permission("admin", "organization.billing.write")
READ_AUDIT = Permission("admin", "organization.audit.read")
READ_WEBHOOKS = Permission("admin", "organization.webhooks.read")
WRITE_WEBHOOKS = Permission("admin", "organization.webhooks.write")


def bearer_of(request: Request) -> str:
    """Returns the API key as it was sent. Raises MissingApiKey."""
    scheme, _, plaintext = header_of(request, b"authorization").partition(" ")
    plaintext = plaintext.strip()
    if scheme.lower() != "bearer" or not plaintext:
        raise MissingApiKey("no bearer token")
    return plaintext


async def identify(request: Request) -> TenantContext:
    """Returns the context of the key's tenant, whatever the key may do; looks it up once per request.

    Raises MissingApiKey, tenants' InvalidApiKey; InsufficientPermissions for a page of a web origin that is
    not one of the key's.
    """
    state = request.scope["state"]
    caller: TenantContext | None = state.get("caller")
    if caller is None:
        caller = await services_of(request).keys.resolve(bearer_of(request), address_of(request))
        state["log"] = {"tenant_id": caller.tenant_id, "key_id": caller.key_id}
        state["key_owner"] = caller
        _check_origin(request, caller)
        state["caller"] = caller
    return caller


async def authenticate(request: Request, *needed: Permission) -> TenantContext:
    """Returns the caller, if its key has the permission: `needed` holds at most one for each kind of key.

    Raises:
        MissingApiKey, tenants' InvalidApiKey: 401, the same body for every reason.
        MismatchedOrganization, MismatchedProject: a header names another one than the key's.
        InsufficientPermissions: 403, also for a page of a web origin that is not one of the key's.
        AccountSuspended: for an inference key. Admin keys still work, so that the tenant can pay.
    """
    caller = await identify(request)
    _check_names(request, caller)
    scope = next((permission.scope for permission in needed if permission.kind == caller.kind), None)
    if scope is None:
        raise InsufficientPermissions(
            f"This needs an {needed[0].kind} API key; yours is an {caller.kind} key."
        )
    if caller.billing_state == "suspended" and caller.kind == "inference":
        raise AccountSuspended
    if caller.scopes and scope not in caller.scopes:
        raise InsufficientPermissions(f"This API key lacks the scope '{scope}'.")
    return caller


def _check_origin(request: Request, caller: TenantContext) -> None:
    """Lets a page of one of the key's web origins read the response. Raises InsufficientPermissions
    otherwise.

    A key without origins is refused to pages of other origins only: programs may send `Origin`, too.
    """
    origin = header_of(request, b"origin")
    if not origin:
        return
    if origin in caller.origins:
        request.state.allowed_origin = origin
    elif caller.origins or header_of(request, b"sec-fetch-site") in ("cross-site", "same-site"):
        raise InsufficientPermissions(
            f"This API key may not be used from the web origin '{origin[:200]}'; add it to the key's origins."
        )


def _check_names(request: Request, caller: TenantContext) -> None:
    """Raises when a header names another organization or project than the key's. Admin keys have none."""
    organization = header_of(request, b"openai-organization")
    if organization and organization not in (caller.tenant_id, caller.tenant_name):
        raise MismatchedOrganization("OpenAI-Organization header should match organization for API key.")
    project = header_of(request, b"openai-project")
    if project and caller.project_id is not None and project != caller.project_id:
        raise MismatchedProject("OpenAI-Project header should match project for API key.")


def address_of(request: Request) -> str | None:
    """Returns the client's address, as trusted proxies report it."""
    return None if request.client is None else request.client.host


def actor_of(request: Request, caller: TenantContext) -> Actor:
    """Returns whom the audit log names for what this request changes."""
    return Actor.of_key(caller, address_of(request), request.state.request_id)
