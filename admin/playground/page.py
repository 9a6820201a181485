"""Gathers the playground page: the models to choose from, and their prices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from adapters.errors import ModelNotFound, ModelNotReady
from adapters.resolver import ModelResolver
from admin import formatting
from billing.rates import Rate
from engine.protocol import PriorityClass
from tenants.share_terms import ShareTerms


@dataclass(frozen=True)
class Stage:
    bases: list[str]
    models: list[str]
    """The bases first."""
    chosen: str
    versus: str
    """The model that answers beside it; empty: none."""
    surcharges: Mapping[str, str] = field(default_factory=dict)
    """What other organizations ask for their adapters, in words, by model."""

    @property
    def choices(self) -> list[tuple[str, str]]:
        """(name, what a list shows)."""
        return [(name, self._shown(name)) for name in self.models]

    def _shown(self, name: str) -> str:
        if name in self.bases:
            return f"{name} (base model)"
        surcharge = self.surcharges.get(name.partition("@")[0])
        return name if surcharge is None else f"{name} (shared, {surcharge})"


@dataclass(frozen=True)
class Prices:
    """What an answer costs, in words."""

    tier: str
    base: str
    adapter: str | None
    """None: the same as the base."""


def prices_of(tier: PriorityClass, base: Rate, adapter: Rate) -> Prices | None:
    """None before there is a price list."""
    if not base.price_id:
        return None
    on_base, on_adapter = _per_million(base), _per_million(adapter)
    return Prices(tier.value, on_base, None if on_adapter == on_base else on_adapter)


def _per_million(rate: Rate) -> str:
    read, written = (formatting.usd(price * rate.percent / 100) for price in (rate.input, rate.output))
    return f"{read} per million input tokens, {written} per million output tokens"


def _surcharge(terms: ShareTerms) -> str:
    read, written = formatting.usd(terms.input), formatting.usd(terms.output)
    return f"plus {read} per million input tokens, {written} per million output tokens"


class PlaygroundPage:
    def __init__(self, models: ModelResolver) -> None:
        self._models = models

    async def gather(self, tenant_id: str, wanted: str | None, versus: str | None = None) -> Stage:
        """`wanted` where it can be asked, also one version as `base:adapter@2`; else the newest adapter, or
        the default base where there is none. Raises DatabaseUnavailable.
        """
        cards = await self._models.list(tenant_id)
        adapters = [card for card in cards if card.adapter_id is not None]
        bases = list(self._models.bases)
        names = [*bases, *(card.id for card in adapters)]
        for name in (wanted, versus):
            if name is not None and name not in names and await self._is_version(tenant_id, name):
                names.append(name)
        chosen = bases[0]
        if wanted in names:
            chosen = wanted
        elif adapters:
            chosen = max(adapters, key=lambda card: card.created).id
        surcharges = {card.id: _surcharge(card.share) for card in adapters if card.share is not None}
        return Stage(bases, names, chosen, versus if versus in names and versus != chosen else "", surcharges)

    async def _is_version(self, tenant_id: str, name: str) -> bool:
        if "@" not in name:
            return False
        try:
            await self._models.resolve(tenant_id, name)
        except (ModelNotFound, ModelNotReady):
            return False
        return True
