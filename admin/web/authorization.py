"""Checks that a request may do what it asks for: private connection, same origin, CSRF token, role.

Each check raises an `HTTPException` with status 403 and a message that says what to do about it.
"""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request

from admin.web import security
from admin.web.principals import Operator, Principal, TenantUser
from tenants.roles import Right

FOREIGN = "This form was sent from another site. Open the page in the console and submit it there."
EXPIRED = "This form has expired. Please try again."
MEMBERS_ONLY = (
    "Only members of the organization can do this, because it spends the organization's money or creates "
    "credentials. Operators cannot do it on a member's behalf."
)
_NEEDS_HTTPS = (
    "The console requires HTTPS, except on this machine (http://127.0.0.1 or http://localhost). "
    "Put a TLS proxy that sets X-Forwarded-Proto in front of the service, "
    "and list it in ROOTSTOCK_API_FORWARDED_ALLOW_IPS."
)
_READ_ONLY = (
    "You opened this console read-only, so nothing can be changed. To make changes, leave and open it again "
    "with full access."
)


def require_private(request: Request) -> None:
    if not security.is_private_connection(request):
        raise HTTPException(403, _NEEDS_HTTPS)


def require_same_origin(request: Request) -> None:
    if not security.is_same_origin(request):
        raise HTTPException(403, FOREIGN)


def require_token(principal: Principal, token: str) -> None:
    if not principal.session.accepts(token):
        raise HTTPException(403, EXPIRED)


def require_right(user: TenantUser, right: Right) -> None:
    if not user.may(right):
        raise HTTPException(
            403,
            f"Your role ({user.role}) doesn't allow this. Ask an admin of your organization to do it, or to "
            "change your role.",
        )


def require_admin(user: TenantUser) -> None:
    if not user.is_admin:
        raise HTTPException(403, "Only admins of your organization can do this.")


def require_owner(user: TenantUser) -> None:
    if user.role != "owner":
        raise HTTPException(
            403, f"Your role ({user.role}) doesn't allow this. Ask an owner of your organization."
        )


def require_change(user: TenantUser, right: Right, *, members_alone: bool) -> None:
    """`members_alone`: refuses an operator who acts for a member."""
    if user.is_read_only:
        raise HTTPException(403, _READ_ONLY)
    if members_alone and user.operator is not None:
        raise HTTPException(403, MEMBERS_ONLY)
    require_right(user, right)


def operator_of(principal: Principal) -> Operator:
    """Returns the operator, also while they are in a tenant's console. Raises `HTTPException` 404 for anyone
    else, as for a path that does not exist.
    """
    if isinstance(principal, Operator):
        return principal
    if principal.operator is None:
        raise HTTPException(404)
    return Operator(principal.operator, principal.opened)
