"""Defines a slice of a tenant's usage: the values that count in each dimension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Slice:
    """The values that count in each dimension; no values means all. An empty text means none of it."""

    project_ids: tuple[str, ...] = ()
    user_ids: tuple[str, ...] = ()
    key_ids: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    adapter_ids: tuple[str, ...] = ()
    service_tiers: tuple[str, ...] = ()
    excluded_key_ids: tuple[str, ...] = ()
    """Keys that do not count. Charges, which belong to no key, count nevertheless."""

    @property
    def is_whole(self) -> bool:
        return not self.columns

    @property
    def filters(self) -> dict[str, Sequence[str] | None]:
        """The filters of `UsageRepository.sums`."""
        return {name: values or None for name, values in asdict(self).items()}

    @property
    def columns(self) -> dict[str, tuple[str, ...]]:
        """The values that count, by the ledger's column."""
        return {_FIELDS[name]: values for name, values in asdict(self).items() if values and name in _FIELDS}


WHOLE = Slice()
_FIELDS = {
    "project_ids": "project_id",
    "user_ids": "user_id",
    "key_ids": "key_id",
    "models": "model",
    "adapter_ids": "adapter_id",
    "service_tiers": "service_tier",
}
