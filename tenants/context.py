"""Who is asking: the frozen view of a tenant and its key that a request carries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from tenants.views import STANDARD, PlanView

KeyKind = Literal["inference", "admin"]
KEY_KINDS: tuple[KeyKind, ...] = get_args(KeyKind)

Role = Literal["admin", "developer"]
ROLES: tuple[Role, ...] = get_args(Role)


@dataclass(frozen=True, slots=True)
class TenantContext:
    """Authenticated: holding one means the key was good when it was resolved."""

    tenant_id: str
    tenant_name: str
    key_id: str
    kind: KeyKind
    scopes: frozenset[str] = frozenset()
    """Empty: everything its kind may do."""
    plan: PlanView = STANDARD
