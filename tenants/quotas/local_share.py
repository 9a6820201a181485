"""Enforces rate limits while Redis is unreachable: each process grants its share of every limit.

A share starts with the bucket's level when Redis last replied. If other processes share the limit, they may
have used all of it since, so the share starts full and grants only what drains. Levels raised here are
reported to Redis before its next grant. Requests that count towards budgets are refused meanwhile.
"""

from __future__ import annotations

import math
import struct
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tenants.quotas.plan import CONTRACT, KINDS, Bucket, CompiledPlan

UNIT = 60_000
"""Redis counts levels in sixty-thousandths of a unit."""
MAX_BUCKETS = 50_000
MAX_TENANTS = 20_000
MAX_PLANS_OF_TENANT = 200
"""Plans per tenant whose last reply from Redis is kept."""
HELD_WAIT = 1.0
"""Seconds after which to retry for a concurrency slot: when a running request ends is unknown."""

Likely = tuple[int, int, int, int]
"""Requests, input tokens, output tokens, tokens."""


@dataclass(slots=True)
class _Level:
    level: float
    at: float
    outage: int = 0
    """Number of the outage for which it was last initialized from Redis's level."""


@dataclass(frozen=True, slots=True)
class RaisedLevel:
    """A rate limit's bucket that this process granted from while Redis was unreachable."""

    bucket: Bucket
    level: int
    """Level of the whole limit, in sixty-thousandths of a unit."""


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
        self._answers: OrderedDict[bytes, OrderedDict[CompiledPlan, tuple[bytes, float]]] = OrderedDict()
        """By tenant and plan, the packed levels of the last reply from Redis, and its time."""
        self._outage = 0
        self._is_away = False
        self._away_since = 0.0
        self._unreported: dict[tuple[bytes, str], Bucket] = {}

    @property
    def has_unreported(self) -> bool:
        """Whether Redis has not yet received everything that was granted here."""
        return bool(self._unreported)

    def redis_answered(self, plan: CompiledPlan, levels: bytes) -> None:
        """Keeps the `levels` of a reply from Redis: those of the plan's rates and contracts, in the plan's
        order, as packed doubles.
        """
        self._is_away = False
        of_tenant = self._answers.get(plan.tag)
        if of_tenant is None:
            of_tenant = self._answers[plan.tag] = OrderedDict()
            if len(self._answers) > MAX_TENANTS:
                self._answers.popitem(last=False)
        of_tenant[plan] = levels, self._clock()
        if len(of_tenant) > MAX_PLANS_OF_TENANT:
            of_tenant.popitem(last=False)

    def take_unreported(self) -> dict[bytes, list[RaisedLevel]]:
        """Returns, by tenant, the levels to report to Redis. Those of a shared limit count the other
        processes' shares as used: they report the same when they reach Redis.
        """
        now = self._clock()
        raised: dict[bytes, list[RaisedLevel]] = {}
        for (tag, name), bucket in self._unreported.items():
            rate = self._rates.get((tag, name))
            if rate is not None:
                self._drain(rate, bucket, now)
                level = rate.level + bucket.amount - self._share(bucket)
                raised.setdefault(tag, []).append(RaisedLevel(bucket, math.ceil(level * UNIT)))
        self._unreported.clear()
        return raised

    def report_again(self, tag: bytes, raised: Iterable[RaisedLevel]) -> None:
        """Queues a report again that Redis did not receive."""
        self._unreported |= {(tag, one.bucket.name): one.bucket for one in raised}

    def reserve(
        self, plan: CompiledPlan, likely: Likely, held_in_redis: Callable[[str], int] = lambda name: 0
    ) -> LocalRefusal | None:
        """Takes a request's amounts from every bucket, or from none and returns the refusal. Contracts refuse
        nothing; `within_contract` takes from them. `held_in_redis` returns the concurrency slots that this
        process holds in Redis, by bucket name.
        """
        now = self._clock()
        if not self._is_away:
            self._is_away, self._away_since = True, now
            self._outage += 1
        refusal: LocalRefusal | None = None
        for bucket in plan.buckets:
            wait = self._wait(plan, bucket, likely, now, held_in_redis)
            if wait > 0 and (refusal is None or wait > refusal.retry_after):
                refusal = LocalRefusal(bucket, wait)
        if refusal is not None:
            return refusal
        for bucket in plan.buckets:
            key = (plan.tag, bucket.name)
            if bucket.kind == KINDS["rate"]:
                self._drained(plan.tag, bucket, now).level += likely[bucket.measure - 1]
                self._unreported[key] = bucket
            elif bucket.kind == KINDS["held"]:
                self._held[key] = self._held.get(key, 0) + 1
        return None

    def within_contract(self, plan: CompiledPlan, likely: Likely) -> bool:
        """Returns whether an admitted request is within this process's share of the plan's contract, and if
        so takes it from the contract.
        """
        now = self._clock()
        for bucket in plan.buckets:
            if bucket.kind != CONTRACT:
                continue
            need = likely[bucket.measure - 1]
            rate, share = self._drained(plan.tag, bucket, now), self._share(bucket)
            if need > bucket.amount or rate.level + min(need, share) > share + 1e-9:
                return False
            rate.level += need
            self._unreported[plan.tag, bucket.name] = bucket
        return True

    def settle(self, plan: CompiledPlan, likely: Likely, used: Likely, began: float, within: bool) -> None:
        """Returns the unused part of a reservation made at `began` to its buckets; with `within`, to the
        contract too.
        """
        now = self._clock()
        for bucket in plan.buckets:
            key = (plan.tag, bucket.name)
            if bucket.kind == KINDS["rate"] or (bucket.kind == CONTRACT and within):
                unused = float(likely[bucket.measure - 1] - used[bucket.measure - 1])
                if unused > 0:
                    unused = max(0.0, unused - (now - began) * self._share(bucket) / 60)
                rate = self._drained(plan.tag, bucket, now)
                rate.level = max(0.0, rate.level - unused)
            elif bucket.kind == KINDS["held"]:
                held = self._held.get(key, 0) - 1
                if held > 0:
                    self._held[key] = held
                else:
                    self._held.pop(key, None)

    def now(self) -> float:
        return self._clock()

    def _wait(
        self,
        plan: CompiledPlan,
        bucket: Bucket,
        likely: Likely,
        now: float,
        held_in_redis: Callable[[str], int],
    ) -> float:
        """Returns the seconds until the bucket has room; infinite if it never will."""
        if bucket.kind == CONTRACT:
            return 0.0
        if bucket.kind == KINDS["held"]:
            if bucket.amount < 1:
                return math.inf
            held = self._held.get((plan.tag, bucket.name), 0) + held_in_redis(bucket.name)
            return HELD_WAIT if held + 1 > self._share(bucket) else 0.0
        need = likely[bucket.measure - 1]
        if need > bucket.amount:
            return math.inf
        level = self._drained(plan.tag, bucket, now).level
        # A request within the limit but above the share passes when the share is empty, and then fills it.
        share = self._share(bucket)
        over = level + min(need, share) - share
        return over * 60 / share if over > 1e-9 else 0.0

    def _share(self, bucket: Bucket) -> int:
        """Returns this process's share: at least one, so that small limits still admit requests."""
        return max(1, bucket.amount // self.processes)

    def _drained(self, tag: bytes, bucket: Bucket, now: float) -> _Level:
        key = (tag, bucket.name)
        rate = self._rates.get(key)
        if rate is None:
            rate = self._rates[key] = _Level(0.0, now)
            if len(self._rates) > MAX_BUCKETS:
                self._rates.popitem(last=False)
        else:
            self._rates.move_to_end(key)
            self._drain(rate, bucket, now)
        if rate.outage != self._outage:
            rate.outage = self._outage
            rate.level = max(rate.level, self._level_at_first(tag, bucket, now))
        return rate

    def _drain(self, rate: _Level, bucket: Bucket, now: float) -> None:
        rate.level = max(0.0, rate.level - (now - rate.at) * self._share(bucket) / 60)
        rate.at = now

    def _level_at_first(self, tag: bytes, bucket: Bucket, now: float) -> float:
        """Returns the level that a share starts an outage with."""
        known = self._level_in_redis(tag, bucket, now) / self.processes
        if self.processes == 1:
            return known
        return max(known, self._share(bucket) * (1 - (now - self._away_since) / 60))

    def _level_in_redis(self, tag: bytes, bucket: Bucket, now: float) -> float:
        """Returns the bucket's level in the latest reply that contains it, less what has drained since."""
        level, at = 0.0, -math.inf
        for plan, (levels, when) in self._answers.get(tag, {}).items():
            if when > at and bucket.name in plan.rate_names:
                position = plan.rate_names.index(bucket.name)
                level, at = struct.unpack_from("<d", levels, 8 * position)[0], when
        return max(0.0, level / UNIT - (now - at) * bucket.amount / 60) if level else 0.0
