"""Describes who makes a change: the identity that the audit log records, and the rights it can pass on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tenants.context import TenantContext

ActorKind = Literal[
    "api_key", "user", "operator", "scim_token", "saml_connection", "workload_identity", "system"
]


@dataclass(frozen=True, slots=True)
class Actor:
    kind: ActorKind
    id: str
    """Id of the key, the user, the identity provider's token or connection, or the workload's issuer; a fixed
    name for the operator and the system.
    """
    address: str | None = None
    """The client's IP address, as seen through trusted proxies."""
    request_id: str | None = None
    scopes: frozenset[str] = frozenset()
    """Scopes that it holds and can pass on to an admin key. Empty: all scopes."""
    user_id: str | None = None
    """The user that the key acts for, such as an owner or an admin; or a service account."""
    email: str | None = None

    @classmethod
    def of_key(cls, caller: TenantContext, address: str | None, request_id: str | None) -> Actor:
        """Returns the actor of a request made with an API key."""
        return cls("api_key", caller.key_id, address, request_id, caller.scopes, caller.user_id)

    def audit_fields(self) -> dict[str, Any]:
        """Returns the fields that the audit log records: the actor's identity, without its rights."""
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
"""A person with access to the service's command line."""
SYSTEM = Actor("system", "system")
"""The service itself: schedules, sweeps, migrations."""
