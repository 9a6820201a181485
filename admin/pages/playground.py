"""The playground: which models there are to talk to, and which is meant. Refuses to know HTTP and engines."""

from __future__ import annotations

from dataclasses import dataclass

from adapters.resolver import ModelResolver


@dataclass(frozen=True)
class Stage:
    base: str
    models: list[str]
    """The base first."""
    chosen: str

    @property
    def choices(self) -> list[tuple[str, str]]:
        """(name, what a list shows)."""
        return [(name, f"{name} (the base)" if name == self.base else name) for name in self.models]


class PlaygroundPage:
    def __init__(self, models: ModelResolver) -> None:
        self._models = models

    async def gather(self, tenant_id: str, wanted: str | None) -> Stage:
        """`wanted` where it can be asked; else the newest adapter, or the base where there is none. Raises
        DatabaseUnavailable.
        """
        cards = await self._models.list(tenant_id)
        adapters = [card for card in cards if card.adapter_id is not None]
        names = [card.id for card in adapters]
        if wanted is not None and (wanted == self._models.base or wanted in names):
            chosen = wanted
        elif adapters:
            chosen = max(adapters, key=lambda card: card.created).id
        else:
            chosen = self._models.base
        return Stage(self._models.base, [self._models.base, *names], chosen)
