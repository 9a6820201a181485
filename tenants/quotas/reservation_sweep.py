"""Sweeps expired reservations of tenants without traffic, whose API process died."""

from __future__ import annotations

import time
from typing import Any

import redis.asyncio

from tenants.quotas.scripts import TENANTS, Scripts, tag_of

BATCH = 500
MOST_TENANTS = 5_000
"""Most tenants that one sweep visits, starting with the longest idle."""
FORGET_AFTER = 1_200.0
"""Seconds without a reservation after which a tenant is no longer swept. Longer than the interval at which
API processes register their tenants again.
"""


class ReservationSweep:
    """Sweeps with a Redis client that returns bytes."""

    def __init__(self, redis_client: redis.asyncio.Redis, scripts: Scripts | None = None) -> None:
        self._redis = redis_client
        self._script = redis_client.register_script((scripts or Scripts()).text("sweep"))

    async def sweep(self) -> int:
        """Sweeps every tenant with reservations. Returns how many still hold some. Raises RedisError."""
        entries: Any = await self._redis.zrange(TENANTS, 0, MOST_TENANTS - 1, withscores=True)
        left: list[int] = []
        for first in range(0, len(entries), BATCH):
            async with self._redis.pipeline(transaction=False) as pipe:
                for tenant, _ in entries[first : first + BATCH]:
                    tag = tag_of(tenant.decode())
                    await self._script(keys=[tag + b"open"], args=[tag, BATCH], client=pipe)
                left += await pipe.execute()
        long_ago = time.time() - FORGET_AFTER
        swept = zip(entries, left, strict=True)
        idle = [tenant for (tenant, seen), num_open in swept if num_open == 0 and seen < long_ago]
        if idle:
            await self._redis.zrem(TENANTS, *idle)
        return sum(num_open != 0 for num_open in left)
