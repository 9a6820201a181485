"""Defines the caller of a request: an immutable view of the tenant, its plan and the API key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from engine.protocol import PriorityClass
from tenants.ip_networks import Network
from tenants.limits.kinds import Limit
from tenants.views import STANDARD, PlanView

KeyKind = Literal["inference", "admin"]
BillingState = Literal["active", "grace", "suspended"]
KEY_KINDS: tuple[KeyKind, ...] = get_args(KeyKind)


@dataclass(frozen=True, slots=True)
class TenantContext:
    """An authenticated caller: the key was valid when it was resolved."""

    tenant_id: str
    tenant_name: str
    key_id: str
    kind: KeyKind
    scopes: frozenset[str] = frozenset()
    """Empty: all scopes of its kind."""
    plan: PlanView = STANDARD
    project_id: str | None = None
    """The project whose usage and limits its requests count towards; None for an admin key."""
    user_id: str | None = None
    """Id of the user or service account it belongs to, if any."""
    models: frozenset[str] = frozenset()
    """Model names it can use, see `may_use`. Empty: all models of its tenant."""
    project_models: frozenset[str] = frozenset()
    """Model names that its project allows, or with `project_denies` forbids. Empty: no such rule."""
    project_denies: bool = False
    auto_tier: PriorityClass | None = None
    """The service tier that `auto` stands for in its project. None: the plan's best."""
    networks: tuple[Network, ...] = ()
    """Networks it can be used from, which the resolver has checked. Empty: any."""
    origins: frozenset[str] = frozenset()
    """Web origins whose pages can use it. Empty: none."""
    billing_state: BillingState = "active"
    """`suspended`: a payment is overdue, and inference keys are refused until it is made."""
    stores_nothing: bool = False
    """Its organization stores no responses and conversations."""
    limits: tuple[Limit, ...] = ()
    """All limits that its requests count towards: of the plan, the tenant, the project and the key."""

    def may_use(self, model_name: str) -> bool:
        """Returns whether the key and its project allow this model, by its name in `/v1/models`.

        `base` matches the base model alone and `base:*` its adapters alone; `base:adapter` also matches its
        pinned versions, and `base:adapter@version` that version only. Ids (`adp_...`) never match: resolve
        them to the adapter's name first.
        """
        if self.models and not _is_on(self.models, model_name):
            return False
        return not self.project_models or _is_on(self.project_models, model_name) != self.project_denies


def _is_on(models: frozenset[str], model_name: str) -> bool:
    if model_name in models:
        return True
    base, colon, _ = model_name.partition(":")
    return bool(colon) and (f"{base}:*" in models or model_name.partition("@")[0] in models)
