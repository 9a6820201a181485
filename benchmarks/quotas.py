"""Measures what quotas cost a request: reserve and settle against a Redis on this machine.

Two loads. "closed": as many callers as given, each with one request open, as fast as they go: what one
process can do, and what waiting for each other costs. "open": requests arrive at a rate, whether or not
earlier ones have ended: what a request of a busy process waits. Every request counts to six limits, of
tenant, project and key, and to a contract. A settle is timed until Redis has answered, though no request
waits for that.

CPU is this process's and the Redis server's own, per reserve and settle together: on a machine that does
other things too, which its load average tells, time on the clock says less.

With one caller both processes sleep between any two messages, and waking them takes its time. So that caller
is measured twice, on the cores as they come and with both processes on one core, and a PING over the same
connection is timed beside each: what is above it is the quotas' own.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import redis.asyncio
import uvloop

from benchmarks.report import write_report
from cli.local.redis import start_redis
from tenants.context import TenantContext
from tenants.limits.kinds import Amounts, Limit, Metric
from tenants.quotas import Contract, Quotas, Reservation
from tenants.quotas.redis_connection import RedisConnection
from tenants.quotas.scripts import Scripts, command

PLENTY = 10**10
WORST, USED = Amounts(1, 400, 256, 900), Amounts(1, 400, 120, 600)
CONTRACT = Contract("priority", PLENTY)
CLOSED = (1, 8, 32)
_PING = command(b"PING")
OPEN = (300, 600)
"""Requests per second."""


def limits_of(tenant: str) -> tuple[Limit, ...]:
    return (
        Limit("tenant", tenant, "", Metric.REQUESTS_PER_MINUTE, PLENTY),
        Limit("tenant", tenant, "", Metric.TOKENS_PER_MINUTE, PLENTY),
        Limit("tenant", tenant, "", Metric.CONCURRENT_REQUESTS, PLENTY),
        Limit("tenant", tenant, "", Metric.SPEND_PER_MONTH, PLENTY),
        Limit("project", "proj_1", "", Metric.TOKENS_PER_DAY, PLENTY),
        Limit("key", "key_1", "", Metric.REQUESTS_PER_MINUTE, PLENTY),
    )


class Bench:
    """One process's quotas, and what they took."""

    def __init__(
        self, quotas: Quotas, connection: RedisConnection, client: redis.asyncio.Redis, num_tenants: int
    ) -> None:
        self._quotas = quotas
        self._connection = connection
        self._scripts = Scripts()
        self._client = client
        names = [f"tnt_{number:026}" for number in range(num_tenants)]
        self._callers = [
            TenantContext(name, name, f"key_{name}", "inference", limits=limits_of(name)) for name in names
        ]
        self._draw = random.Random(1)
        self._serial = 0

    async def request(self, reserves: list[float], settles: list[float]) -> None:
        self._serial += 1
        name = f"chatcmpl-{self._serial:032}"
        caller = self._callers[self._serial % len(self._callers)]
        began = time.perf_counter()
        reservation = await self._quotas.reserve(name, caller, "base:adapter@1", WORST, contract=CONTRACT)
        reserves.append(time.perf_counter() - began)
        self._quotas.settle(reservation, USED)

    async def request_timed(self, reserves: list[float], settles: list[float]) -> None:
        """The same, but that the settle is waited for: it would not be, and is timed here for that."""
        self._serial += 1
        name = f"chatcmpl-{self._serial:032}"
        caller = self._callers[self._serial % len(self._callers)]
        began = time.perf_counter()
        reservation = await self._quotas.reserve(name, caller, "base:adapter@1", WORST, contract=CONTRACT)
        reserved = time.perf_counter()
        await self._connection.call(self._settle(reservation))
        reserves.append(reserved - began)
        settles.append(time.perf_counter() - reserved)
        self._quotas.settle(reservation, USED)

    def _settle(self, reservation: Reservation) -> bytes:
        assert reservation.plan is not None
        used = (USED.requests, USED.input_tokens, USED.output_tokens, USED.spend)
        return self._scripts.settle(reservation.plan.tag, reservation.request_id.encode(), used, 300_000)

    async def alone(self, seconds: float) -> dict[str, Any]:
        """One caller, and in turns with it a command that does nothing."""
        reserves: list[float] = []
        settles: list[float] = []
        pings: list[float] = []
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            began = time.perf_counter()
            await self._connection.call(_PING)
            pings.append(time.perf_counter() - began)
            await self.request_timed(reserves, settles)
        return _latencies(reserves, settles) | {"ping_ms": _quantiles(pings)}

    async def closed(self, callers: int, seconds: float) -> dict[str, Any]:
        async def go_on(request: Callable[..., Awaitable[None]], until: float) -> None:
            while time.perf_counter() < until:
                await request(reserves, settles)

        reserves: list[float] = []
        settles: list[float] = []
        until = time.perf_counter() + seconds / 2
        await asyncio.gather(*(go_on(self.request_timed, until) for _ in range(callers)))
        figures = {"callers": callers} | _latencies(reserves, settles)
        reserves.clear()
        before = await self._cpu()
        began = time.perf_counter()
        until = began + seconds / 2
        await asyncio.gather(*(go_on(self.request, until) for _ in range(callers)))
        elapsed = time.perf_counter() - began
        return figures | await self._costs(before, len(reserves), elapsed)

    async def open(self, rate: float, seconds: float) -> dict[str, Any]:
        reserves: list[float] = []
        settles: list[float] = []
        before = await self._cpu()
        began = due = time.perf_counter()
        tasks: set[asyncio.Task[None]] = set()
        while due < began + seconds:
            due += self._draw.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            task = asyncio.create_task(self.request_timed(reserves, settles))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        if tasks:
            await asyncio.wait(tasks)
        elapsed = time.perf_counter() - began
        costs = await self._costs(before, len(reserves), elapsed)
        return {"arrivals_per_s": rate} | _latencies(reserves, settles) | {"per_s": costs["per_s"]}

    async def _cpu(self) -> tuple[float, float]:
        info = await self._client.info("cpu")
        return time.process_time(), info["used_cpu_user"] + info["used_cpu_sys"]

    async def _costs(self, before: tuple[float, float], requests: int, elapsed: float) -> dict[str, Any]:
        own, server = await self._cpu()
        return {
            "per_s": round(requests / elapsed),
            "cpu_us": round((own - before[0]) / requests * 1e6, 1),
            "redis_cpu_us": round((server - before[1]) / requests * 1e6, 1),
        }


def _latencies(reserves: list[float], settles: list[float]) -> dict[str, Any]:
    return {"requests": len(reserves), "reserve_ms": _quantiles(reserves), "settle_ms": _quantiles(settles)}


def _quantiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        "p50": round(median(ordered) * 1000, 3),
        "p95": round(ordered[int(0.95 * len(ordered))] * 1000, 3),
        "p99": round(ordered[int(0.99 * len(ordered))] * 1000, 3),
    }


@contextmanager
def on_one_core(*pids: int) -> Iterator[None]:
    """These processes share a core for as long."""
    before = {pid: os.sched_getaffinity(pid) for pid in pids}
    core = max(os.sched_getaffinity(0))
    try:
        for pid in pids:
            os.sched_setaffinity(pid, {core})
        yield
    finally:
        for pid, cores in before.items():
            os.sched_setaffinity(pid, cores)


async def measure(url: str, seconds: float, num_tenants: int) -> dict[str, Any]:
    """With the Redis at `url`, of this machine."""
    quotas = Quotas(url, "bench")
    up = asyncio.Event()
    connection = RedisConnection(url, Scripts().load(), timeout=5.0, on_connected=up.set)
    await quotas.start()
    connection.start()
    await up.wait()
    async with redis.asyncio.Redis.from_url(url) as client:
        bench = Bench(quotas, connection, client, num_tenants)
        await bench.closed(8, 1.0)  # plans, buckets and loops are warm then
        server = (await client.info("server"))["process_id"]
        one_caller = {"any_core": await bench.alone(seconds)}
        with on_one_core(os.getpid(), server):
            one_caller["same_core"] = await bench.alone(seconds)
        closed = [await bench.closed(callers, seconds) for callers in CLOSED]
        open_ = [await bench.open(rate, seconds) for rate in OPEN]
        version = (await client.info("server"))["redis_version"]
    await quotas.close()
    await connection.close()
    return {
        "redis": version,
        "tenants": num_tenants,
        "limits": 6,
        "load_average": os.getloadavg()[0],
        "one_caller": one_caller,
        "closed": closed,
        "open": open_,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=6.0, help="of each load")
    parser.add_argument("--tenants", type=int, default=1000)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="rootstock-quotas-"))
    try:
        with start_redis(directory) as server:
            figures = uvloop.run(measure(server.url, arguments.seconds, arguments.tenants))
    finally:
        shutil.rmtree(directory)
    for load in (figures["one_caller"], *figures["closed"], *figures["open"]):
        print(load)
    write_report(arguments.out, figures)


if __name__ == "__main__":
    main()
