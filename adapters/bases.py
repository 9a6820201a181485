"""Names the base models that are served together, and finds the base of an adapter that a caller names."""

from __future__ import annotations

from collections.abc import Iterator

from adapters.errors import AdapterNotFound
from adapters.model_names import ADAPTER_ID, PART, InvalidModelName, ModelName, checked_part, parse


class Bases:
    """The names of the base models that are served, the default one first."""

    def __init__(self, *names: str) -> None:
        """Raises ValueError without a name, for an invalid one, and when one is named twice."""
        if not names or len(set(names)) < len(names):
            raise ValueError(f"base models {', '.join(names)!r}: name each once, at least one")
        self.names = tuple(checked_part("base", name) for name in names)

    @property
    def default(self) -> str:
        """The base of adapters that are named without one."""
        return self.names[0]

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def reference(self, adapter: str) -> ModelName:
        """Parses an adapter's id, `base:name`, or its name alone, which means the default base, for a
        look-up. Raises AdapterNotFound for anything else.
        """
        if PART.fullmatch(adapter) is not None and ADAPTER_ID.fullmatch(adapter) is None:
            return ModelName(self.default, adapter)
        try:
            name = parse(adapter)
        except InvalidModelName:
            raise AdapterNotFound(adapter) from None
        if name.version is not None or not self.has_adapter(name):
            raise AdapterNotFound(adapter)
        return name

    def has_adapter(self, name: ModelName) -> bool:
        """Whether a parsed name can be that of a tenant's own adapter on one of these bases."""
        return name.adapter_id is not None or (name.owner is None and self.has_model(name))

    def has_model(self, name: ModelName) -> bool:
        """Whether it can be that of an adapter on one of these bases, the tenant's own or one that another
        organization shares.
        """
        return name.adapter_id is not None or (name.base in self.names and name.adapter is not None)
