"""Compares the quotas' connection to Redis with redis-py and hiredis: CPU time per script call.

    python -m benchmarks.redis_clients --out FILE

A private Redis answers a script with 260 bytes of arguments, as a reservation has. Each client runs it with
1, 8 and 64 concurrent callers; the smallest of three rounds counts, since other programs only add to it.
"pipelined" collects the calls of one turn of the event loop in a redis-py pipeline, as the quotas' connection
does on its own.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import redis.asyncio
import uvloop
from redis.utils import HIREDIS_AVAILABLE

from benchmarks.report import write_report
from cli.local.redis import start_redis
from tenants.quotas.redis_connection import RedisConnection
from tenants.quotas.scripts import command

SCRIPT = "local n = 0 for i = 1, #ARGV do n = n + #ARGV[i] end return n"
ARGUMENTS = (b"x" * 200, b"y" * 60)
CALLERS = (1, 8, 64)
ROUNDS = 3

Call = Callable[[], Awaitable[Any]]


class Pipelined:
    """Sends the calls of one turn of the event loop as one redis-py pipeline."""

    def __init__(self, client: redis.asyncio.Redis, sha: str) -> None:
        self._client = client
        self._sha = sha
        self._waiting: list[asyncio.Future[Any]] = []
        self._flushes: set[asyncio.Task[None]] = set()

    async def call(self) -> Any:
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._start)
        return await future

    def _start(self) -> None:
        flush = asyncio.create_task(self._flush())
        self._flushes.add(flush)
        flush.add_done_callback(self._flushes.discard)

    async def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        pipeline = self._client.pipeline(transaction=False)
        for _ in waiting:
            pipeline.evalsha(self._sha, 1, "key", *ARGUMENTS)
        for future, answer in zip(waiting, await pipeline.execute(), strict=True):
            future.set_result(answer)


async def cpu_us(call: Call, callers: int, calls: int) -> float:
    """Returns microseconds of this process's CPU per call."""

    async def caller() -> None:
        for _ in range(calls // callers):
            await call()

    await asyncio.gather(*(caller() for _ in range(callers)))  # warm
    began = time.process_time()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return (time.process_time() - began) * 1e6 / (calls // callers * callers)


async def measure(url: str, calls: int) -> dict[str, Any]:
    up = asyncio.Event()
    connection = RedisConnection(url, [], timeout=5.0, on_connected=up.set)
    connection.start()
    await up.wait()
    async with redis.asyncio.Redis.from_url(url) as client:
        sha = await client.script_load(SCRIPT)
        packed = command(b"EVALSHA", sha.encode(), b"1", b"key", *ARGUMENTS)
        clients: dict[str, Call] = {
            "quotas": lambda: connection.call(packed),
            "redis-py": lambda: client.evalsha(sha, 1, "key", *ARGUMENTS),
            "redis-py pipelined": Pipelined(client, sha).call,
        }
        best: dict[tuple[str, int], float] = {}
        for _ in range(ROUNDS):
            for callers in CALLERS:
                for name, call in clients.items():
                    took = await cpu_us(call, callers, calls)
                    best[name, callers] = min(took, best.get((name, callers), took))
    await connection.close()
    return {
        "redis_py": redis.__version__,
        "hiredis": HIREDIS_AVAILABLE,
        "rows": [
            {"client": name, "callers": callers, "cpu_us": round(took, 1)}
            for (name, callers), took in sorted(best.items(), key=lambda row: (row[0][1], row[0][0]))
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=20_000, help="of each client and number of callers")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="rootstock-redis-") as directory,
        start_redis(Path(directory), ephemeral=True) as server,
    ):
        figures = uvloop.run(measure(server.url, arguments.calls))
    for row in figures["rows"]:
        print(row)
    write_report(arguments.out, figures)


if __name__ == "__main__":
    main()
