"""Shares of tenants over two engine processes, whose reports a replica set carries."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter

from engine.client import EngineClient
from tests.engine.process.engines import read, submission, tokens_of
from tests.routing.conftest import Connect, StartEngine

SETTLE_S, MEASURED_S = 5.0, 3.0


async def test_a_tenant_on_two_engines_leaves_more_of_one_to_a_tenant_that_has_no_other(
    start_replica: StartEngine, connect: Connect
) -> None:
    processes = [start_replica(number, max_rows=4) for number in range(2)]
    engines = await connect(*processes)
    # Past the router, which would move requests to where they wait less.
    first, second = direct = [EngineClient(process.endpoint, "direct") for process in processes]
    for client in direct:
        await client.start()
        await client.wait_ready()
    received: Counter[str] = Counter()
    numbers = itertools.count()

    async def keep_asking(tenant: str, engine: EngineClient) -> None:
        while True:
            generation = engine.submit(submission(f"r-{next(numbers)}", 8, tenant=tenant))
            tokens = tokens_of(await read(generation))
            received[tenant] += len(tokens)

    asking = [
        asyncio.create_task(keep_asking(tenant, engine))
        for tenant, engine in (("narrow", first), ("wide", first), ("wide", second))
        for _ in range(20)
    ]
    await asyncio.sleep(SETTLE_S)
    received.clear()
    await asyncio.sleep(MEASURED_S)
    shares = received.copy()
    assert not any(task.done() for task in asking)
    assert all(stats.served for stats in engines.latest_stats())
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    for client in direct:
        await client.close()
    # Without what engines say of one another, half an engine and one and a half.
    assert shares["narrow"] > 0.65 * shares["wide"], shares
