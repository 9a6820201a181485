"""The cache of each tenant's values is bounded by their weight."""

from __future__ import annotations

from engine.grammar.tenant_cache import TenantCache


def test_bounds_are_sums_of_weights() -> None:
    cache: TenantCache[str, str] = TenantCache(10, 6)
    cache.put("acme", "kept", "a", 4)
    cache.put("mallory", "first", "b", 2)
    cache.put("mallory", "second", "c", 3)
    assert cache.get("mallory", "first") == "b"
    cache.put("mallory", "third", "d", 4)
    assert cache.get("mallory", "second") is None, "it was used longest ago"
    assert cache.get("mallory", "first") == "b"
    assert cache.get("acme", "kept") == "a"
    cache.put("globex", "one", "e", 3)
    assert cache.get("mallory", "third") is None, "all tenants together have a bound, too"
    assert (cache.get("mallory", "first"), cache.get("acme", "kept")) == ("b", "a")


def test_a_value_heavier_than_a_tenants_bound_is_not_kept() -> None:
    cache: TenantCache[str, str] = TenantCache(10, 6)
    cache.put("acme", "light", "a", 5)
    cache.put("acme", "heavy", "b", 7)
    assert cache.get("acme", "heavy") is None
    assert cache.get("acme", "light") == "a"


def test_a_value_that_is_replaced_or_discarded_weighs_nothing() -> None:
    cache: TenantCache[str, str] = TenantCache(6, 6)
    for _ in range(3):
        cache.put("acme", "one", "a", 4)
    assert cache.discard_oldest("acme")
    assert not cache.discard_oldest("acme")
    cache.put("acme", "one", "a", 6)
    assert cache.get("acme", "one") == "a"
    assert len(cache) == 1
