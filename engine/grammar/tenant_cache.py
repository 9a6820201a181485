"""Keeps the values used last, with a bound for each tenant and for all tenants together."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


class TenantCache(Generic[KeyT, ValueT]):
    """Values by (tenant, key): no tenant can find another one's, nor push out all of them.

    Bounds are sums of weights; a value that says nothing weighs 1.
    """

    def __init__(self, max_weight: int, max_weight_by_tenant: int) -> None:
        self._max_weight = max_weight
        self._max_weight_by_tenant = max_weight_by_tenant
        self._weight = 0
        self._values: OrderedDict[tuple[str, KeyT], tuple[ValueT, int]] = OrderedDict()
        self._by_tenant: dict[str, OrderedDict[KeyT, None]] = {}
        self._weights: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._values)

    def get(self, tenant: str, key: KeyT) -> ValueT | None:
        """Returns a value, and counts it as used."""
        found = self._values.get((tenant, key))
        if found is None:
            return None
        self._values.move_to_end((tenant, key))
        self._by_tenant[tenant].move_to_end(key)
        return found[0]

    def put(self, tenant: str, key: KeyT, value: ValueT, weight: int = 1) -> None:
        """Stores a value in place of those used longest ago, the tenant's own first. One that is heavier than
        a tenant's bound is not kept.
        """
        self.discard(tenant, key)
        if weight > self._max_weight_by_tenant:
            return
        while self._weights.get(tenant, 0) + weight > self._max_weight_by_tenant:
            self.discard_oldest(tenant)
        while self._weight + weight > self._max_weight:
            self.discard(*next(iter(self._values)))
        self._values[tenant, key] = value, weight
        self._by_tenant.setdefault(tenant, OrderedDict())[key] = None
        self._weights[tenant] = self._weights.get(tenant, 0) + weight
        self._weight += weight

    def discard_oldest(self, tenant: str) -> bool:
        """Removes the tenant's value used longest ago. Returns whether there was one."""
        own = self._by_tenant.get(tenant)
        if not own:
            return False
        self.discard(tenant, next(iter(own)))
        return True

    def discard(self, tenant: str, key: KeyT) -> None:
        """Removes a value, if there is one."""
        found = self._values.pop((tenant, key), None)
        if found is None:
            return
        own = self._by_tenant[tenant]
        del own[key]
        self._weights[tenant] -= found[1]
        self._weight -= found[1]
        if not own:
            del self._by_tenant[tenant], self._weights[tenant]
