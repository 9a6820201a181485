"""Rates while Redis is away: each process lets through its share of every limit, and counts by itself.

Owns this process's buckets. Approximate by nature: whoever is let through is told. Budgets are not here:
nobody can say what is left of one.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from tenants.quotas.plan import CONTRACT, KINDS, Bucket, CompiledPlan

MAX_BUCKETS = 50_000
HELD_WAIT = 1.0
"""Seconds after which to ask again for one of the places that others hold: nobody knows when they end."""

Likely = tuple[int, int, int, int]
"""Requests, input tokens, output tokens, tokens."""


@dataclass(slots=True)
class _Level:
    level: float = 0.0
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class LocalRefusal:
    bucket: Bucket
    retry_after: float
    """Seconds."""


class LocalShare:
    """Buckets of one process, among `processes` that share each limit evenly."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.processes = 1
        self._clock = clock
        self._rates: OrderedDict[tuple[bytes, str], _Level] = OrderedDict()
        self._held: dict[tuple[bytes, str], int] = {}

    def reserve(self, plan: CompiledPlan, likely: Likely) -> LocalRefusal | None:
        """Take a request's amounts of every bucket, or of none: then why not. A contract refuses nothing, and
        is taken of by `within_contract`.
        """
        now = self._clock()
        refusal: LocalRefusal | None = None
        for bucket in plan.buckets:
            wait = self._wait(plan, bucket, likely, now)
            if wait > 0 and (refusal is None or wait > refusal.retry_after):
                refusal = LocalRefusal(bucket, wait)
        if refusal is not None:
            return refusal
        for bucket in plan.buckets:
            key = (plan.tag, bucket.name)
            if bucket.kind == KINDS["rate"]:
                self._drained(key, bucket, now).level += likely[bucket.measure - 1]
            elif bucket.kind == KINDS["held"]:
                self._held[key] = self._held.get(key, 0) + 1
        return None

    def within_contract(self, plan: CompiledPlan, likely: Likely) -> bool:
        """Whether a request that was let through is within this process's share of the plan's contract, which
        it is taken of then.
        """
        now = self._clock()
        for bucket in plan.buckets:
            if bucket.kind != CONTRACT:
                continue
            need = likely[bucket.measure - 1]
            rate, share = self._drained((plan.tag, bucket.name), bucket, now), self._share(bucket)
            if need > bucket.amount or rate.level + min(need, share) > share + 1e-9:
                return False
            rate.level += need
        return True

    def settle(self, plan: CompiledPlan, likely: Likely, used: Likely, began: float, within: bool) -> None:
        """Return what was not used of a reservation made at `began` by `now`; `within`: its contract, too."""
        now = self._clock()
        for bucket in plan.buckets:
            key = (plan.tag, bucket.name)
            if bucket.kind == KINDS["rate"] or (bucket.kind == CONTRACT and within):
                unused = float(likely[bucket.measure - 1] - used[bucket.measure - 1])
                if unused > 0:
                    unused = max(0.0, unused - (now - began) * self._share(bucket) / 60)
                rate = self._drained(key, bucket, now)
                rate.level = max(0.0, rate.level - unused)
            elif bucket.kind == KINDS["held"]:
                held = self._held.get(key, 0) - 1
                if held > 0:
                    self._held[key] = held
                else:
                    self._held.pop(key, None)

    def now(self) -> float:
        return self._clock()

    def _wait(self, plan: CompiledPlan, bucket: Bucket, likely: Likely, now: float) -> float:
        """Seconds until the bucket has room; infinite when it never has."""
        if bucket.kind == CONTRACT:
            return 0.0
        if bucket.kind == KINDS["held"]:
            if bucket.amount < 1:
                return math.inf
            held = self._held.get((plan.tag, bucket.name), 0)
            return HELD_WAIT if held + 1 > self._share(bucket) else 0.0
        need = likely[bucket.measure - 1]
        if need > bucket.amount:
            return math.inf
        level = self._drained((plan.tag, bucket.name), bucket, now).level
        # What is within the limit but not within the share passes alone, and the share waits for it.
        share = self._share(bucket)
        over = level + min(need, share) - share
        return over * 60 / share if over > 1e-9 else 0.0

    def _share(self, bucket: Bucket) -> int:
        """At least one: a limit below the number of processes shuts nobody out."""
        return max(1, bucket.amount // self.processes)

    def _drained(self, key: tuple[bytes, str], bucket: Bucket, now: float) -> _Level:
        rate = self._rates.get(key)
        if rate is None:
            rate = self._rates[key] = _Level(0.0, now)
            if len(self._rates) > MAX_BUCKETS:
                self._rates.popitem(last=False)
        else:
            self._rates.move_to_end(key)
            rate.level = max(0.0, rate.level - (now - rate.at) * self._share(bucket) / 60)
            rate.at = now
        return rate
