"""A process that reserves and settles, as an API process does: `run` with a task in JSON and two named pipes.

Writes a line when it is connected, waits for one to read, does its requests at once, writes what came of
them, and goes on living until there is nothing more to read.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from typing import Any, TextIO

import msgspec

from tenants.context import TenantContext
from tenants.errors import LimitReached
from tenants.limits.kinds import Amounts, Limit
from tenants.quotas import Quotas
from tenants.quotas.scripts import Timing
from tests.support.waiting import eventually


class Task(msgspec.Struct):
    redis_url: str
    name: str
    limits: list[Limit]
    requests: int
    worst: Amounts
    uses: list[int]
    """Output tokens that a request may use, drawn from evenly; none: it never ends."""
    timing: dict[str, float] = {}
    seed: int = 0
    rounds: int = 1
    """How often each of the requests is made again once it is refused or has ended."""


async def main(task: Task, asked: TextIO, told: TextIO) -> None:
    def tell(facts: dict[str, Any]) -> None:
        told.write(json.dumps(facts) + "\n")
        told.flush()

    quotas = Quotas(task.redis_url, task.name, timing=Timing(**task.timing))
    await quotas.start()
    await eventually(lambda: not quotas.away)
    tell({"ready": task.name})
    await asyncio.to_thread(asked.readline)
    draw = random.Random(task.seed)
    limits = tuple(task.limits)
    caller = TenantContext("tnt_1", "t", f"key_{task.name}", "inference", limits=limits)
    taken: list[int] = []
    refused = 0

    async def request(number: int) -> None:
        nonlocal refused
        for again in range(task.rounds):
            name = f"{task.name}-{number}-{again}"
            try:
                reservation = await quotas.reserve(name, caller, "sapling", task.worst)
            except LimitReached:
                refused += 1
                await asyncio.sleep(0)
                continue
            if not task.uses:
                taken.append(0)
                return
            await asyncio.sleep(draw.random() / 50)
            output = draw.choice(task.uses)
            taken.append(task.worst.input_tokens + output)
            used = Amounts(1, task.worst.input_tokens, output, output)
            quotas.settle(reservation, used)

    await asyncio.gather(*(request(number) for number in range(task.requests)))
    if task.uses:
        await quotas.close()
    tell({"taken": len(taken), "refused": refused, "tokens": sum(taken)})
    await asyncio.to_thread(asked.readline)


def run() -> int:
    _, task, asked, told = sys.argv
    with open(asked) as reading, open(told, "w") as writing:
        asyncio.run(main(msgspec.json.decode(task, type=Task), reading, writing))
    return 0
