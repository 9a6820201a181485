"""Adds costs without an API request, such as a day's storage, to the counts of spend budgets.

A cost is reserved regardless of room before it is written to the ledger, and settled afterwards, so that a
budget count that starts in between includes it once.
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
from tenants.quotas.reservation import UsageReader
from tenants.quotas.scripts import Scripts, settle_arguments, tag_of

MEMORY_MS = 7_200_000
"""Milliseconds for which a settlement is remembered: longer than any retry takes."""
_TRIES = 3


class UnreservedSpend:
    """Reserves and settles such costs. `redis_client` returns bytes. Every method raises RedisError."""

    def __init__(
        self, redis_client: redis.asyncio.Redis, read_usage: UsageReader, scripts: Scripts | None = None
    ) -> None:
        self._scripts = scripts or Scripts()
        self._read_usage = read_usage
        self._reserve = redis_client.register_script(self._scripts.text("reserve"))
        self._settle = redis_client.register_script(self._scripts.text("settle"))

    async def hold(self, tenant_id: str, cost_id: str, limits: Sequence[Limit], amount: int) -> None:
        """Reserves `amount` micro-USD of these budgets, whatever is left of them. Repeating it changes
        nothing. Raises DatabaseUnavailable too.
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
                seeds[number] = await self._read_usage(tenant_id, limit, window_start(limit, now))
            arguments = [*arguments[:4], msgspec.msgpack.encode(seeds)]
        raise redis.RedisError("redis keeps losing the counts of these budgets")

    async def settle(self, tenant_id: str, cost_id: str, amount: int) -> bool:
        """Charges what was reserved, once it is in the ledger. Returns False if Redis has no such
        reservation.
        """
        keys, arguments = settle_arguments(
            tag_of(tenant_id), cost_id.encode(), (0, 0, 0, amount), lua.ALL_PARTS, MEMORY_MS
        )
        return bool(await self._settle(keys=keys, args=arguments) != lua.UNKNOWN)


def window_start(limit: Limit, now: datetime) -> datetime:
    """Returns when the budget's current window began; the epoch for one over all time."""
    if limit.metric.kind == "ever":
        return datetime.fromtimestamp(0, UTC)
    day = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return day.replace(day=1) if limit.metric.kind == "month" else day
