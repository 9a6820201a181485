"""Remembers which grammars were accepted and refused, by tenant, with a bound for each tenant and for all."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from engine.grammar.tenant_cache import TenantCache
from tokenization.grammars.errors import GrammarRefused

MAX_VERDICTS = 8192
MAX_VERDICTS_BY_TENANT = 512
PASSING_S = 60.0
"""Seconds for which a refusal is remembered that may be due to a busy machine."""

TenantDigest = tuple[str, bytes]
"""A tenant's id, and the digest of a grammar: no tenant can tell what another one has sent."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check."""

    refused: GrammarRefused | None
    compiled_bytes: int
    """Of an accepted grammar: memory that it takes compiled."""
    until: float
    """On the monotonic clock, seconds."""


class VerdictCache:
    """The verdicts used last."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._verdicts: TenantCache[bytes, Verdict] = TenantCache(MAX_VERDICTS, MAX_VERDICTS_BY_TENANT)

    def __len__(self) -> int:
        return len(self._verdicts)

    def get(self, key: TenantDigest) -> Verdict | None:
        """Returns what a check came to, if it was lately."""
        verdict = self._verdicts.get(*key)
        if verdict is not None and verdict.until < self._clock():
            self._verdicts.discard(*key)
            return None
        return verdict

    def put(self, key: TenantDigest, refused: GrammarRefused | None, compiled_bytes: int = 0) -> None:
        """Remembers a verdict in place of the one used longest ago, the tenant's own first."""
        is_passing = refused is not None and not refused.is_final
        until = self._clock() + PASSING_S if is_passing else float("inf")
        self._verdicts.put(*key, Verdict(refused, compiled_bytes, until))
