"""Keeps compiled grammars within bounds of memory: those that rows are held to, and those used last."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass, field

from engine.grammar.constraint import CompiledGrammar
from engine.grammar.tenant_cache import TenantCache
from engine.protocol import Grammar

MB = 1 << 20
MAX_BYTES = 256 * MB
"""Of compiled grammars kept for later, of all tenants together."""
MAX_BYTES_BY_TENANT = 32 * MB
"""Of one tenant: kept for later, and of large grammars also in use."""
LARGE_BYTES = 4 * MB
"""Grammars of so many wait until their tenant has room; of smaller ones rows may have any number."""
LANE_BYTES_BY_THREAD = 4 * MB
"""Of one tenant's further lanes, for each thread that fills masks."""
LEAST_BYTES = MB // 4
"""Counted for any grammar: what following it adds is not measured."""
BYTES_BY_CHARACTER = 150
"""Of a grammar that was not measured: the most seen is 120."""


@dataclass(frozen=True, slots=True)
class GrammarKey:
    """A grammar of one tenant: nothing compiled is shared between tenants."""

    tenant: str
    grammar: Grammar
    compiled_bytes: int = field(default=0, compare=False)
    """Memory that it takes compiled; 0: not measured."""

    @property
    def charge(self) -> int:
        """Bytes that are counted for it."""
        return max(LEAST_BYTES, self.compiled_bytes or BYTES_BY_CHARACTER * len(self.grammar.source))

    @property
    def is_large(self) -> bool:
        return self.charge >= LARGE_BYTES


class GrammarStore:
    """Counts a grammar from the moment it is to be compiled until no row and no cache has it.

    Methods belong to the thread that steps the engine; a grammar may end in any.
    """

    def __init__(self, max_lane_bytes: int) -> None:
        """`max_lane_bytes`: of one tenant's further lanes."""
        self._max_lane_bytes = max_lane_bytes
        self._cache: TenantCache[Grammar, CompiledGrammar] = TenantCache(MAX_BYTES, MAX_BYTES_BY_TENANT)
        self._living: weakref.WeakValueDictionary[GrammarKey, CompiledGrammar] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()
        self._large_bytes: dict[str, int] = {}
        """By tenant, from the start of compiling on."""
        self._lane_bytes: dict[str, int] = {}
        self.num_ended = 0
        """Grammars and lanes that gave their room back."""

    def get(self, key: GrammarKey) -> CompiledGrammar | None:
        """Returns the grammar if it is kept or in use."""
        return self._cache.get(key.tenant, key.grammar) or self._living.get(key)

    def reserve(self, key: GrammarKey) -> bool:
        """Counts a grammar that is to be compiled. Returns False while its tenant has no room for it; one
        large grammar always has.
        """
        if not key.is_large:
            return True
        while (held := self._large_bytes.get(key.tenant, 0)) and held + key.charge > MAX_BYTES_BY_TENANT:
            if not self._cache.discard_oldest(key.tenant):
                return False
        self._add(self._large_bytes, key.tenant, key.charge)
        return True

    def put(self, key: GrammarKey, compiled: CompiledGrammar) -> None:
        """Keeps a grammar that was reserved and is compiled."""
        weakref.finalize(compiled, self.release, key).atexit = False
        self._living[key] = compiled
        self._cache.put(key.tenant, key.grammar, compiled, key.charge)

    def release(self, key: GrammarKey) -> None:
        """Ends the count of a grammar."""
        if key.is_large:
            self._add(self._large_bytes, key.tenant, -key.charge)

    def reserve_lane(self, key: GrammarKey, grammar: CompiledGrammar) -> bool:
        """Counts a further lane of a grammar until the grammar's end. Returns False if there is no room."""
        if self._lane_bytes.get(key.tenant, 0) + key.charge > self._max_lane_bytes:
            return False
        self._add(self._lane_bytes, key.tenant, key.charge)
        weakref.finalize(grammar, self._add, self._lane_bytes, key.tenant, -key.charge).atexit = False
        return True

    def _add(self, sums: dict[str, int], tenant: str, num_bytes: int) -> None:
        with self._lock:
            sums[tenant] = sums.get(tenant, 0) + num_bytes
            if not sums[tenant]:
                del sums[tenant]
            self.num_ended += num_bytes < 0
