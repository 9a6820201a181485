"""Keeps the values used last, with a bound for each tenant and for all tenants together."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


class TenantCache(Generic[KeyT, ValueT]):
    """Values by (tenant, key): no tenant can find another one's, nor push out all of them."""

    def __init__(self, max_entries: int, max_entries_by_tenant: int) -> None:
        self._max_entries = max_entries
        self._max_entries_by_tenant = max_entries_by_tenant
        self._values: OrderedDict[tuple[str, KeyT], ValueT] = OrderedDict()
        self._by_tenant: dict[str, OrderedDict[KeyT, None]] = {}

    def __len__(self) -> int:
        return len(self._values)

    def get(self, tenant: str, key: KeyT) -> ValueT | None:
        """Returns a value, and counts it as used."""
        value = self._values.get((tenant, key))
        if value is not None:
            self._values.move_to_end((tenant, key))
            self._by_tenant[tenant].move_to_end(key)
        return value

    def put(self, tenant: str, key: KeyT, value: ValueT) -> None:
        """Stores a value in place of the one used longest ago, the tenant's own first."""
        self.discard(tenant, key)
        own = self._by_tenant.get(tenant, ())
        if len(own) >= self._max_entries_by_tenant:
            self.discard(tenant, next(iter(own)))
        elif len(self._values) >= self._max_entries:
            self.discard(*next(iter(self._values)))
        self._values[tenant, key] = value
        self._by_tenant.setdefault(tenant, OrderedDict())[key] = None

    def discard(self, tenant: str, key: KeyT) -> None:
        """Removes a value, if there is one."""
        if self._values.pop((tenant, key), None) is None:
            return
        own = self._by_tenant[tenant]
        del own[key]
        if not own:
            del self._by_tenant[tenant]
