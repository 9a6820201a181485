"""Validates the scopes of a key: those that routes require and, for admin keys, those of roles.

Unknown scopes are refused, because they would restrict a key by mistake.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from api import authentication
from api.errors import InvalidValue
from tenants.context import KEY_KINDS, KeyKind
from tenants.roles import ROLES, admin_scopes

SCOPES: Mapping[KeyKind, frozenset[str]] = {
    kind: frozenset(
        permission.scope
        for permission in vars(authentication).values()
        if isinstance(permission, authentication.Permission) and permission.kind == kind
    )
    | (frozenset().union(*map(admin_scopes, ROLES)) if kind == "admin" else frozenset())
    for kind in KEY_KINDS
}


def check_scopes(kind: KeyKind, scopes: Collection[str]) -> None:
    """Raises InvalidValue."""
    for scope in sorted(scopes):
        if scope not in SCOPES[kind]:
            known = ", ".join(sorted(SCOPES[kind]))
            raise InvalidValue(f"'{scope}' is not a scope of an {kind} key. Use: {known}.", "scopes")
