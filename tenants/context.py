"""Who is asking: the frozen view of a tenant and its key that a request carries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from engine.protocol import PriorityClass
from tenants.limits.kinds import Limit
from tenants.networks import Network
from tenants.views import STANDARD, PlanView

KeyKind = Literal["inference", "admin"]
BillingState = Literal["active", "grace", "suspended"]
KEY_KINDS: tuple[KeyKind, ...] = get_args(KeyKind)


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
    project_id: str | None = None
    """The project whose usage and limits its requests count to; None for an admin key."""
    user_id: str | None = None
    """Of the user or service account it was made for, if any."""
    models: frozenset[str] = frozenset()
    """Names it may ask for, see `may_use`. Empty: all of its tenant's."""
    project_models: frozenset[str] = frozenset()
    """Names that keys of its project may ask for, or with `project_denies` may not. Empty: no such rule."""
    project_denies: bool = False
    auto_tier: PriorityClass | None = None
    """What `auto` means in its project. None: the best of the plan's."""
    networks: tuple[Network, ...] = ()
    """Where it may be used from; the resolver has seen to it. Empty: anywhere."""
    origins: frozenset[str] = frozenset()
    """Web origins whose pages may use it. Empty: no page may."""
    billing_state: BillingState = "active"
    """Suspended: what is owed was not paid, and its inference keys are refused until it is."""
    limits: tuple[Limit, ...] = ()
    """All that its requests count to: of its tenant, its project and itself, the plan's among them."""

    def may_use(self, model_name: str) -> bool:
        """Whether the key's list of models has this one, and its project's lets it, by a name as
        `/v1/models` shows it.

        `base` is the base alone and `base:*` its adapters alone; `base:adapter` has every pinned version of
        it too, and `base:adapter@version` that one only. An id (`adp_...`) is on no list: ask with the
        adapter's name once it is known.
        """
        if self.models and not _is_on(self.models, model_name):
            return False
        return not self.project_models or _is_on(self.project_models, model_name) != self.project_denies


def _is_on(models: frozenset[str], model_name: str) -> bool:
    if model_name in models:
        return True
    base, colon, _ = model_name.partition(":")
    return bool(colon) and (f"{base}:*" in models or model_name.partition("@")[0] in models)
