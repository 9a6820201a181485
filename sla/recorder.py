"""Counts how this process's requests were served, and sends the counts to Redis every second.

A batch that may or may not have arrived is sent again under its number, and counted once (`sla.folding`). A
process that is killed loses at most what it counted in the last second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from secrets import token_hex

import msgspec
import redis.asyncio
import structlog
from redis.exceptions import RedisError

from engine.protocol import PriorityClass
from sla.measures import first_token_bucket, output_rate_bucket
from tenants.tier_terms import Terms

log = structlog.get_logger(__name__)

STREAM = "rootstock:sla"
"""The Redis stream of batches: fields `source`, `number`, `counts` (MessagePack of a list of Deltas)."""
FLUSH_SECONDS = 1.0
MOST_HELD = 100_000
"""Deltas kept while Redis is unavailable; more are dropped, and the number is logged."""
MINUTE = 60


class Delta(msgspec.Struct, frozen=True, array_like=True):
    """What one process counted of one tenant, tier and minute since its last batch. Histograms are sparse:
    (bucket, count).
    """

    tenant_id: str
    service_tier: str
    minute: int
    """The start of the minute in Unix seconds."""
    requests: int
    failed: int
    first_tokens: int
    first_tokens_in_time: int
    rated: int
    rated_fast: int
    first_token_buckets: list[tuple[int, int]]
    output_rate_buckets: list[tuple[int, int]]


class SlaRecorder:
    """Counts the requests of one process. `start` it with the process; `close` it after the last request."""

    def __init__(self, redis_client: redis.asyncio.Redis, *, clock: Callable[[], float] = time.time) -> None:
        self._redis = redis_client
        self._clock = clock
        self._source = token_hex(8)
        self._number = 0
        self._tallies: dict[tuple[str, str, int], _Tally] = {}
        self._unsent: bytes | None = None
        self._dropped = 0
        self._flusher: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._flusher = asyncio.create_task(self._keep_flushing(), name="hand on service levels")

    async def close(self) -> None:
        """Sends what is left, if Redis is available."""
        flusher, self._flusher = self._flusher, None
        if flusher is not None:
            flusher.cancel()
            await asyncio.wait({flusher})
        await self.flush()

    def answered(
        self,
        tenant_id: str,
        tier: PriorityClass,
        terms: Terms,
        first_token_seconds: float | None,
        tokens_per_second: float | None,
    ) -> None:
        """Counts a response that the client read as far as it wanted; None where there was no such value."""
        tally = self._of(tenant_id, tier)
        if tally is None:
            return
        tally.requests += 1
        if first_token_seconds is not None:
            in_time = first_token_seconds <= terms.ttft_target_ms / 1000
            tally.first_tokens.count(first_token_bucket(first_token_seconds), in_time)
        if tokens_per_second is not None:
            fast = tokens_per_second >= terms.min_output_tokens_per_second
            tally.rated.count(output_rate_bucket(tokens_per_second), fast)

    def failed(self, tenant_id: str, tier: PriorityClass) -> None:
        """Counts a request that got no complete response by the service's fault."""
        tally = self._of(tenant_id, tier)
        if tally is not None:
            tally.requests += 1
            tally.failed += 1

    async def flush(self) -> bool:
        """Sends the counts. Returns False if that must be retried."""
        while self._unsent is not None or self._tallies:
            if self._unsent is None:
                self._number += 1
                self._unsent = msgspec.msgpack.encode([_delta(*item) for item in self._tallies.items()])
                self._tallies = {}
            batch = {"source": self._source, "number": self._number, "counts": self._unsent}
            try:
                await self._redis.xadd(STREAM, batch)  # type: ignore[arg-type]
            except (RedisError, OSError) as error:
                log.warning("service levels are kept for a retry", error=type(error).__name__)
                return False
            self._unsent = None
        if self._dropped:
            log.error("service levels lack requests: too many were kept", requests=self._dropped)
            self._dropped = 0
        return True

    async def _keep_flushing(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            await self.flush()

    def _of(self, tenant_id: str, tier: PriorityClass) -> _Tally | None:
        place = (tenant_id, tier.value, int(self._clock()) // MINUTE * MINUTE)
        tally = self._tallies.get(place)
        if tally is None:
            if len(self._tallies) >= MOST_HELD:
                self._dropped += 1
                return None
            tally = self._tallies[place] = _Tally()
        return tally


class _Measured:
    """Measurements of some requests. Most tenants have few in a second, so the buckets are sparse."""

    __slots__ = ("buckets", "num", "num_kept")

    def __init__(self) -> None:
        self.num = 0
        self.num_kept = 0
        """Measurements that kept the promise."""
        self.buckets: dict[int, int] = {}

    def count(self, bucket: int, kept: bool) -> None:
        self.num += 1
        self.num_kept += kept
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1


class _Tally:
    """The growing counts of a Delta."""

    __slots__ = ("failed", "first_tokens", "rated", "requests")

    def __init__(self) -> None:
        self.requests = 0
        self.failed = 0
        self.first_tokens = _Measured()
        self.rated = _Measured()


def _delta(place: tuple[str, str, int], tally: _Tally) -> Delta:
    first_tokens, rated = tally.first_tokens, tally.rated
    return Delta(
        *place,
        tally.requests,
        tally.failed,
        first_tokens.num,
        first_tokens.num_kept,
        rated.num,
        rated.num_kept,
        [*first_tokens.buckets.items()],
        [*rated.buckets.items()],
    )
