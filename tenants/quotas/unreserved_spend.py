"""Costs that no request of the API reserved, such as a day's storage, as budgets of spend count them.

Owns taking such a cost as a reservation that asks for no room: held before it is written down, settled after,
so that a count that begins in between has it once. Over the general client: nobody waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import redis.asyncio

from tenants.limits.kinds import Limit
from tenants.quotas import scripts as lua
from tenants.quotas.plan import compile_plan
from tenants.quotas.reservation import Seed
from tenants.quotas.scripts import Scripts, settle_arguments, tag_of

MEMORY_MS = 7_200_000
"""For which it is known to be settled: more than anybody waits before saying so again."""
_TRIES = 3


class UnreservedSpend:
    """`redis_client` answers bytes. `seed`: see `tenants.quotas.Seed`. Every method raises RedisError."""

    def __init__(self, redis_client: redis.asyncio.Redis, seed: Seed, scripts: Scripts | None = None) -> None:
        self._scripts = scripts or Scripts()
        self._seed = seed
        self._reserve = redis_client.register_script(self._scripts.text("reserve"))
        self._settle = redis_client.register_script(self._scripts.text("settle"))

    async def hold(self, tenant_id: str, cost_id: str, limits: Sequence[Limit], amount: int) -> None:
        """Take micro-USD of these budgets, whatever is left of them. Again it changes nothing. Raises
        DatabaseUnavailable too.
        """
        tag, plan = tag_of(tenant_id), compile_plan(self._scripts, tenant_id, limits)
        if plan is None:
            return
        keys = [tag + b"open", tag + b"r:" + cost_id.encode()]
        packed = self._scripts.reserve_arguments((0, 0, 0, max(amount, 0), 0, 0), force=True)
        arguments: list[Any] = [tag, plan.packed, packed, cost_id.encode()]
        for _ in range(_TRIES):
            answer: bytes = await self._reserve(keys=keys, args=arguments)
            if answer[:8] != lua.MISSING_BYTES:
                return
            now = datetime.fromtimestamp(lua.MISSING_REPLY.unpack_from(answer)[3] / 1000, UTC)
            missing: list[int] = msgspec.msgpack.decode(answer[lua.MISSING_REPLY.size :])
            seeds = {}
            for number in missing:
                limit = plan.buckets[number - 1].limit
                assert limit is not None
                seeds[number] = await self._seed(tenant_id, limit, window_start(limit, now))
            arguments = [*arguments[:4], msgspec.msgpack.encode(seeds)]
        raise redis.RedisError("counts are forgotten as fast as they are made")

    async def settle(self, tenant_id: str, cost_id: str, amount: int) -> bool:
        """Charge what was held: it is written down. False: Redis knows nothing of it."""
        keys, arguments = settle_arguments(
            tag_of(tenant_id), cost_id.encode(), (0, 0, 0, amount), lua.ALL_PARTS, MEMORY_MS
        )
        return bool(await self._settle(keys=keys, args=arguments) != lua.UNKNOWN)


def window_start(limit: Limit, now: datetime) -> datetime:
    """When the budget's present window began; of one that is for ever, the earliest time there is."""
    if limit.metric.kind == "ever":
        return datetime.fromtimestamp(0, UTC)
    day = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return day.replace(day=1) if limit.metric.kind == "month" else day
