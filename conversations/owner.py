"""Defines whose stored state a request may see: that of one project of one tenant."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from tenants.actors import Actor
from tenants.context import TenantContext


@dataclass(frozen=True, slots=True)
class Owner:
    """A project, and for how long its state is kept."""

    tenant_id: str
    project_id: str
    key_id: str
    """The key that is asking."""
    keep: timedelta
    """From the last change on."""

    @property
    def actor(self) -> Actor:
        """The key, as the actor of what the request deletes."""
        return Actor("api_key", self.key_id)

    @classmethod
    def of(cls, caller: TenantContext) -> Owner:
        """Returns the owner that a caller with an inference key acts for."""
        assert caller.project_id is not None, "inference keys belong to a project"
        keep = timedelta(days=caller.plan.response_days)
        return cls(caller.tenant_id, caller.project_id, caller.key_id, keep)
