"""Remembers in Redis which subject tokens were exchanged, until they expire, so that none is used twice.

A token is known by what is signed of it: its signature can be written in several ways.
"""

from __future__ import annotations

import hashlib
import time

import redis.asyncio
from redis.exceptions import RedisError

from tenants.idempotency.records import RecordsUnavailable

_PREFIX = "rootstock:workload-identity:spent:"
MARGIN_S = 120
"""How long a token is remembered beyond its expiry: clocks differ."""


class SpentTokens:
    """Tokens of all providers."""

    def __init__(self, redis_client: redis.asyncio.Redis) -> None:
        self._redis = redis_client

    async def spend(self, provider_id: str, token: str, expires_at: float) -> bool:
        """Returns whether the token is spent by this call. Raises RecordsUnavailable."""
        signed = hashlib.sha256(f"{provider_id} {token.rpartition('.')[0]}".encode()).hexdigest()
        seconds = max(1, round(expires_at - time.time())) + MARGIN_S
        try:
            return bool(await self._redis.set(_PREFIX + signed, b"1", nx=True, ex=seconds))
        except RedisError as error:
            raise RecordsUnavailable("it is unknown whether the token was used before") from error
