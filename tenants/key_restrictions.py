"""Validates the restrictions of an API key: scopes, models, networks, origins and expiry."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, Literal

from tenants.actors import Actor
from tenants.context import KeyKind
from tenants.errors import KeyNotActive, RightsNotHeld
from tenants.ip_networks import parse_networks
from tenants.limits.kinds import COVERED_MODEL
from tenants.models import ApiKey
from tenants.validation import checked_name
from tenants.web_origins import parse_origins

MAX_MODELS = 256
_SCOPE = re.compile(r"[a-z0-9_.:-]{1,64}")
_MODEL = re.compile(COVERED_MODEL)


class Keep(Enum):
    KEEP = "keep"


KEEP: Final = Keep.KEEP
"""Marks a field to leave unchanged, where None means to clear it."""


@dataclass(frozen=True, slots=True)
class KeyRestrictions:
    """Restrictions of a key, and its expiry."""

    scopes: frozenset[str] = frozenset()
    """Empty: all scopes of its kind."""
    models: frozenset[str] = frozenset()
    """See `TenantContext.may_use`. Empty: all."""
    networks: tuple[str, ...] = ()
    """Networks such as `10.0.0.0/8`, or single addresses. Empty: any."""
    expires_at: datetime | None = None
    origins: tuple[str, ...] = ()
    """Web origins whose pages can use it, such as `https://app.example`. Empty: none."""


@dataclass(frozen=True, slots=True)
class KeyChanges:
    """Changes to a key; None leaves a field unchanged."""

    name: str | None = None
    scopes: frozenset[str] | None = None
    models: frozenset[str] | None = None
    networks: tuple[str, ...] | None = None
    origins: tuple[str, ...] | None = None
    expires_at: datetime | Literal[Keep.KEEP] | None = KEEP


def changed_columns(row: ApiKey, changes: KeyChanges, actor: Actor) -> dict[str, Any]:
    """Returns the columns to set. Raises KeyNotActive, RightsNotHeld, ValueError."""
    changed: dict[str, Any] = {}
    if changes.name is not None:
        changed["name"] = checked_name("name", changes.name)
    if changes.scopes is not None:
        changed["scopes"] = _checked_scopes(changes.scopes, row.kind, actor)
    if changes.models is not None:
        changed["models"] = checked_models(changes.models)
    if changes.networks is not None:
        changed["networks"] = [*parse_networks(changes.networks)]
    if changes.origins is not None:
        changed["origins"] = parse_origins(changes.origins)
    if changes.expires_at is not KEEP:
        if row.replaced_by is not None:
            raise KeyNotActive(row.id, "already rotated: it expires when its grace period ends")
        changed["expires_at"] = _checked_expiry(changes.expires_at)
    return changed


def columns_of(restrictions: KeyRestrictions, kind: KeyKind, actor: Actor) -> dict[str, Any]:
    """Returns the columns of a new key. Raises RightsNotHeld, ValueError."""
    return {
        "scopes": _checked_scopes(restrictions.scopes, kind, actor),
        "models": checked_models(restrictions.models),
        "networks": [*parse_networks(restrictions.networks)],
        "origins": parse_origins(restrictions.origins),
        "expires_at": _checked_expiry(restrictions.expires_at),
    }


def _checked_scopes(scopes: frozenset[str], kind: str, actor: Actor) -> list[str]:
    for scope in scopes:
        if _SCOPE.fullmatch(scope) is None:
            raise ValueError(f"scopes: {scope[:80]!r} is not a scope")
    if kind == "admin":
        require_held("scopes", scopes, actor)
    return sorted(scopes)


def require_held(field_name: str, scopes: frozenset[str], actor: Actor) -> None:
    """Checks that the actor holds all scopes that it would grant. Raises RightsNotHeld."""
    if not actor.scopes:
        return
    more = scopes - actor.scopes if scopes else {"everything"}
    if more:
        raise RightsNotHeld(field_name, more)


def checked_models(models: Iterable[str]) -> list[str]:
    wanted = sorted(set(models))
    for model in wanted:
        if _MODEL.fullmatch(model) is None:
            raise ValueError(f"models: {model[:80]!r} is not a model name, nor `base:*`")
    if len(wanted) > MAX_MODELS:
        raise ValueError(f"models must be at most {MAX_MODELS}, not {len(wanted)}")
    return wanted


def _checked_expiry(moment: datetime | None) -> datetime | None:
    if moment is not None and (moment.tzinfo is None or moment <= datetime.now(UTC)):
        raise ValueError("expires_at must be in the future, with a time zone")
    return moment
