"""Defines the roles of console users and the rights of each role."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, get_args

Role = Literal["owner", "admin", "developer", "billing", "viewer"]
ROLES: tuple[Role, ...] = get_args(Role)

ProjectRole = Literal["owner", "member"]
PROJECT_ROLES: tuple[ProjectRole, ...] = get_args(ProjectRole)

Right = Literal[
    "members.read",
    "members.write",
    "keys.read",
    "keys.write",
    "projects.read",
    "projects.write",
    "adapters.read",
    "adapters.write",
    "limits.read",
    "limits.write",
    "billing.read",
    "billing.write",
    "webhooks.read",
    "webhooks.write",
    "audit.read",
]
RIGHTS: frozenset[Right] = frozenset(get_args(Right))

_READ: frozenset[Right] = frozenset(
    {"members.read", "keys.read", "projects.read", "adapters.read", "limits.read"}
)

RIGHTS_OF: Mapping[Role, frozenset[Right]] = MappingProxyType(
    {
        # Owners alone appoint and remove owners: see `tenants.members.service`.
        "owner": RIGHTS,
        "admin": RIGHTS - {"billing.write"},
        "developer": _READ | {"adapters.write"},
        "billing": frozenset(
            {
                *("members.read", "projects.read", "limits.read", "webhooks.read"),
                *("billing.read", "billing.write"),
            }
        ),
        "viewer": _READ,
    }
)


def may(role: Role, right: Right) -> bool:
    return right in RIGHTS_OF[role]


def checked_role(role: str) -> Role:
    """Returns the role. Raises ValueError if it is unknown."""
    if role not in ROLES:
        raise ValueError(f"role must be one of {', '.join(ROLES)}, not {str(role)[:40]!r}")
    return role  # type: ignore[return-value]


def checked_project_role(role: str) -> ProjectRole:
    """Returns the project role. Raises ValueError if it is unknown."""
    if role not in PROJECT_ROLES:
        raise ValueError(f"role must be one of {', '.join(PROJECT_ROLES)}, not {str(role)[:40]!r}")
    return role  # type: ignore[return-value]


def admin_scopes(role: Role) -> frozenset[str]:
    """Returns the scopes of an admin key with the rights of `role`. Empty, meaning all scopes, for an
    owner.
    """
    if RIGHTS_OF[role] == RIGHTS:
        return frozenset()
    scopes = {f"organization.{right}" for right in RIGHTS_OF[role]}
    return frozenset(scopes | ({"usage.read"} if may(role, "billing.read") else set()))
