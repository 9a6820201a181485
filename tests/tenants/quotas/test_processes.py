"""Several real processes on one Redis: no more is let through than one alone would let through, and what the
dead held is returned.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis.asyncio

from tenants.errors import RateLimited
from tenants.limits.kinds import Amounts, Metric
from tenants.quotas.journal import JournalSettling, MeteredRequest
from tenants.quotas.reservation_sweep import ReservationSweep
from tenants.quotas.scripts import Scripts
from tests.support.nursery import Nursery
from tests.support.reserving import Task
from tests.support.waiting import eventually
from tests.tenants.quotas.conftest import QUICK, TENANT, caller, counted, limit, opened

PROCESSES = 4
DAILY = limit(Metric.TOKENS_PER_DAY, 1000)
PLACES = limit(Metric.CONCURRENT_REQUESTS, 10)


_nursery = Nursery("tests.support.reserving")


class Reserving:
    """One such process."""

    def __init__(self, task: Task, directory: Path) -> None:
        pipes = [directory / f"{task.name}.{end}" for end in ("asked", "told")]
        for pipe in pipes:
            os.mkfifo(pipe)
        words = [msgspec.json.encode(task).decode(), *map(str, pipes)]
        self.process = _nursery.start("tests.support.reserving:run", directory / "log", os.environ, words)
        self._asked, self._told = pipes[0].open("w"), pipes[1].open()

    def hear(self) -> dict[str, Any]:
        heard: dict[str, Any] = json.loads(self._told.readline())
        return heard

    def go(self) -> None:
        self._asked.write("go\n")
        self._asked.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        self._asked.close()
        self._told.close()


class Processes(list[Reserving]):
    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    started = Processes(tmp_path)
    yield started
    for process in started:
        process.close()


async def run_at_once(processes: Processes, tasks: list[Task]) -> list[dict[str, Any]]:
    processes += [Reserving(task, processes.directory) for task in tasks]
    for process in processes:
        assert "ready" in await asyncio.to_thread(process.hear)
    for process in processes:
        process.go()
    return [await asyncio.to_thread(process.hear) for process in processes]


async def test_a_budget_of_1000_tokens_against_500_requests_at_once(
    redis_url: str, processes: Processes
) -> None:
    """Four processes, 125 requests each, each of which may take 16 tokens and takes fewer."""
    tasks = [
        Task(redis_url, f"p{k}", [DAILY, PLACES], 125, Amounts(1, 3, 13), [0, 1, 5, 13], seed=k, rounds=3)
        for k in range(PROCESSES)
    ]
    results = await run_at_once(processes, tasks)
    tokens = sum(result["tokens"] for result in results)
    assert tokens <= 1000
    assert sum(result["refused"] for result in results) > 0
    async with opened(redis_url, "looker") as quotas:
        assert await counted(quotas, DAILY, PLACES) == [(tokens, 0), (0, 0)]


async def test_exactly_as_many_as_there_is_room_for(redis_url: str, processes: Processes) -> None:
    """None of the requests ends, so what the limits let through is known to the last one."""
    limits = [limit(Metric.TOKENS_PER_DAY, 1000), limit(Metric.REQUESTS_PER_DAY, 45)]
    tasks = [Task(redis_url, f"p{k}", limits, 50, Amounts(1, 3, 17), []) for k in range(PROCESSES)]
    results = await run_at_once(processes, tasks)
    assert sum(result["taken"] for result in results) == 45
    assert sum(result["refused"] for result in results) == 4 * 50 - 45


async def test_a_prepaid_balance_against_500_requests_at_once(redis_url: str, processes: Processes) -> None:
    """Never more is spent than was paid in; what is paid in later is there to be spent, and not more."""
    paid_in = limit(Metric.PREPAID_BALANCE, 1000)
    tasks = [
        Task(redis_url, f"p{k}", [paid_in], 125, Amounts(1, 0, 13, 13), [0, 1, 5, 13], seed=k, rounds=3)
        for k in range(PROCESSES)
    ]
    results = await run_at_once(processes, tasks)
    spent = sum(result["tokens"] for result in results)
    assert 0 < spent <= 1000
    assert sum(result["refused"] for result in results) > 0
    async with opened(redis_url, "looker") as quotas:
        assert await counted(quotas, paid_in) == [(spent, 0)]
        more = limit(Metric.PREPAID_BALANCE, 1500)
        await quotas.reserve("rest", caller(more), "sapling", Amounts(1, 0, 1, 1500 - spent))
        with pytest.raises(RateLimited, match="prepaid balance"):
            await quotas.reserve("another", caller(more), "sapling", Amounts(1, 0, 1, 1))


async def test_a_rate_over_four_processes_is_the_rate(
    redis_url: str, redis_client: redis.asyncio.Redis, processes: Processes
) -> None:
    """At most the burst and what drained meanwhile, by the server's clock; and no less than the burst."""
    rate = limit(Metric.REQUESTS_PER_MINUTE, 120)
    tasks = [Task(redis_url, f"p{k}", [rate], 60, Amounts(), [0], rounds=8) for k in range(PROCESSES)]
    began = await redis_client.time()
    results = await run_at_once(processes, tasks)
    ended = await redis_client.time()
    seconds = ended[0] - began[0] + (ended[1] - began[1]) / 1e6
    taken = sum(result["taken"] for result in results)
    assert 120 <= taken <= 120 + 2 * seconds


async def test_what_a_killed_process_held_is_returned(redis_url: str, processes: Processes) -> None:
    """kill -9 with ten reservations open: nobody else gets their places before they expire, all do then."""
    task = Task(redis_url, "victim", [DAILY, PLACES], 20, Amounts(1, 0, 50), [], asdict(QUICK))
    [result] = await run_at_once(processes, [task])
    assert result["taken"] == 10
    async with opened(redis_url, "survivor", timing=QUICK) as quotas:
        who = caller(DAILY, PLACES)
        await asyncio.sleep(2 * QUICK.renew_every)
        with pytest.raises(RateLimited):
            await quotas.reserve("early", who, "sapling", Amounts(1, 0, 1))
        processes[0].kill()

        async def returned() -> bool:
            try:
                quotas.cancel(await quotas.reserve(f"try{len(tried)}", who, "sapling", Amounts(1, 0, 1000)))
            except RateLimited:
                tried.append(None)
                return False
            return True

        tried: list[None] = []
        await eventually(returned)
        assert tried, "they were held for a while"
        await eventually_counts(redis_url, [(0, 0), (0, 0)])


async def eventually_counts(redis_url: str, expected: list[tuple[int, int]]) -> None:
    async with opened(redis_url, "looker", timing=QUICK) as quotas:

        async def so() -> bool:
            return await counted(quotas, DAILY, PLACES) == expected

        await eventually(so)


async def test_what_a_killed_process_used_is_charged_from_the_journal(
    redis_url: str, redis_client: redis.asyncio.Redis, processes: Processes
) -> None:
    """Half of its requests before their reservations expire, half of them after that."""
    task = Task(redis_url, "victim", [DAILY, PLACES], 10, Amounts(1, 0, 50), [], asdict(QUICK))
    await run_at_once(processes, [task])
    processes[0].kill()
    scripts = Scripts(QUICK)
    journal = JournalSettling(redis_client, scripts)
    metered = [MeteredRequest(TENANT, f"victim-{number}-0", Amounts(1, 0, 7)) for number in range(10)]
    assert await journal.settle(metered[:5]) == 5
    sweep = ReservationSweep(redis_client, scripts)

    async def swept() -> bool:
        return await sweep.sweep() == 0

    await eventually(swept)
    await eventually_counts(redis_url, [(35, 0), (0, 0)])
    assert await journal.settle(metered) == 5
    await eventually_counts(redis_url, [(70, 0), (0, 0)])
    assert await journal.settle(metered) == 0
