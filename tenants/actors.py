"""On whose behalf something changes: what the audit log names, and what bounds the rights they pass on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tenants.context import TenantContext

ActorKind = Literal["api_key", "user", "operator", "system"]


@dataclass(frozen=True, slots=True)
class Actor:
    kind: ActorKind
    id: str
    """Of the key or the user; what the operator or the system calls itself."""
    address: str | None = None
    """The client's, as seen through trusted proxies."""
    request_id: str | None = None
    scopes: frozenset[str] = frozenset()
    """What it may do and so pass on to an admin key. Empty: everything."""
    user_id: str | None = None
    """The user behind it: an owner's or an admin's key acts for that person. Or a service account."""
    email: str | None = None

    @classmethod
    def of_key(cls, caller: TenantContext, address: str | None, request_id: str | None) -> Actor:
        """Whoever holds a key."""
        return cls("api_key", caller.key_id, address, request_id, caller.scopes, caller.user_id)

    def described(self) -> dict[str, Any]:
        """For the audit log: who it was, nothing of what they may do."""
        facts = {
            "type": self.kind,
            "id": self.id,
            "user_id": self.user_id,
            "email": self.email,
            "address": self.address,
            "request_id": self.request_id,
        }
        return {name: fact for name, fact in facts.items() if fact is not None}


OPERATOR = Actor("operator", "operator")
"""Whoever may run commands on the service's machines."""
SYSTEM = Actor("system", "system")
"""The service itself: schedules, sweeps, migrations."""
