"""Describes whether a tenant is served: active, overdue, unpaid or suspended."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from admin.badge import Badge

_STATES = {
    "active": Badge("Active", "good"),
    "grace": Badge("Overdue", "warn"),
    "suspended": Badge("Unpaid", "bad"),
}
_DISABLED = Badge("Suspended", "off")


class HasState(Protocol):
    @property
    def billing_state(self) -> str: ...
    @property
    def disabled_at(self) -> datetime | None: ...


def state_of(tenant: HasState) -> Badge:
    return _DISABLED if tenant.disabled_at is not None else _STATES[tenant.billing_state]
