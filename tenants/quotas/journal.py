"""Settling from the usage journal, for reservations whose API process says nothing any more.

Owns which reservation an event of the journal belongs to, and settling many in one round trip. What the API
has settled before stays as it is; what is not reserved is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import redis.asyncio

from tenants.limits.kinds import Amounts
from tenants.quotas.scripts import Scripts, settle_arguments, tag_of

_PART = re.compile(r"(.+-[0-9a-f]{32})-([0-9]{1,4})")
"""A prompt of a list: the engine meters each by itself, under the request's id and its place."""
MEMORY_MS = 7_200_000
"""For which an API process that was merely slow finds that the journal was faster."""


@dataclass(frozen=True, slots=True)
class MeteredRequest:
    """What a request, or one prompt of its list, has used in all."""

    tenant_id: str
    request_id: str
    used: Amounts


class JournalSettling:
    """Over a client that answers bytes."""

    def __init__(self, redis_client: redis.asyncio.Redis, scripts: Scripts | None = None) -> None:
        self._redis = redis_client
        self._script = redis_client.register_script((scripts or Scripts()).text("settle"))

    async def settle(self, metered: Sequence[MeteredRequest]) -> int:
        """Settle what is still open of these; how many reservations that changed. Raises RedisError."""
        if not metered:
            return 0
        async with self._redis.pipeline(transaction=False) as pipe:
            for one in metered:
                match = _PART.fullmatch(one.request_id)
                request_id, part = (match[1], int(match[2])) if match is not None else (one.request_id, 0)
                used = one.used
                keys, arguments = settle_arguments(
                    tag_of(one.tenant_id),
                    request_id.encode(),
                    (used.requests, used.input_tokens, used.output_tokens, used.spend),
                    part,
                    MEMORY_MS,
                )
                await self._script(keys=keys, args=arguments, client=pipe)
            answers = await pipe.execute()
        return sum(answer > 0 for answer in answers)
