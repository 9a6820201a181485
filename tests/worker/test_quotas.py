"""The worker looks after reservations: it settles them from the journal, and sweeps."""

from __future__ import annotations

from pathlib import Path

import redis.asyncio

from tenants.limits.kinds import Amounts, Limit, Metric
from tests.support.journal import usage_event, write_events
from tests.support.waiting import eventually
from tests.support.workers import worker
from tests.tenants.quotas.conftest import caller, opened


async def test_it_settles_what_the_journal_tells_and_sweeps(
    database_url: str, redis_url: str, redis_client: redis.asyncio.Redis, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    name, daily = "chatcmpl-" + "0" * 32, Limit("tenant", "tnt_a", "", Metric.TOKENS_PER_DAY, 1000)
    async with opened(redis_url) as quotas:
        await quotas.reserve(name, caller(daily, tenant="tnt_a"), "sapling", Amounts(1, 50, 50))
        write_events(redis_url, [usage_event(name, 10, 5, finish_reason="stop")])
        with worker(database_url, redis_url, log):

            async def settled() -> bool:
                [state] = await quotas.state("tnt_a", [daily])
                return (state.used, state.held) == (15, 0)

            async def swept() -> bool:
                return bool(await redis_client.exists("rootstock:quota:{tnt_a}:heard"))

            await eventually(settled, 60)
            await eventually(swept, 60)
    assert "Traceback" not in log.read_text()
