"""Settles reservations from the usage journal, for requests whose API process died before it could.

Many reservations are settled in one round trip. Those that the API has settled, and requests without a
reservation, are left unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import redis.asyncio

from tenants.limits.kinds import Amounts
from tenants.quotas.scripts import Scripts, settle_arguments, tag_of

_PART = re.compile(r"(.+-[0-9a-f]{32})-([0-9]{1,4})")
"""Id of one prompt of a list: the engine meters each separately, under the request's id and its position."""
MEMORY_MS = 7_200_000
"""Milliseconds for which a settlement is remembered, in case the API process was only slow and settles
later.
"""


@dataclass(frozen=True, slots=True)
class MeteredRequest:
    """Total usage of a request, or of one prompt of its list."""

    tenant_id: str
    request_id: str
    used: Amounts


class JournalSettling:
    """Settles with a Redis client that returns bytes."""

    def __init__(self, redis_client: redis.asyncio.Redis, scripts: Scripts | None = None) -> None:
        self._redis = redis_client
        self._script = redis_client.register_script((scripts or Scripts()).text("settle"))

    async def settle(self, metered: Sequence[MeteredRequest]) -> int:
        """Settles those of the requests that are still open. Returns the number settled. Raises
        RedisError.
        """
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
