"""A small budget before a large crowd: several API processes on one Redis never charge more than it, and hold
nothing afterwards, even when one of them is killed in mid-answer.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx
import redis.asyncio
from sqlalchemy import text

from billing.metering import JournalMeter
from billing.settling import ReservationSettlement
from db.session import EVERY_TENANT, Database
from tenants.actors import OPERATOR
from tenants.quotas.journal import JournalSettling
from tenants.quotas.scripts import Timing, tag_of
from tenants.service import account_services
from tests.api.conftest import base_dir
from tests.api.test_process import SECRET, Processes, processes
from tests.support.ports import free_port
from tests.support.waiting import eventually, until

__all__ = ["base_dir", "processes"]

BUDGET = 1_000
USED_UP = (429, "insufficient_quota", "false")
HELD_BY_OTHERS = (429, "rate_limit_exceeded", "true")
"""What others have reserved and may not use: it is worth asking again."""
CROWD = 500
LEASE = Timing().lifetime + Timing().grace + 10
"""Seconds within which a reservation is returned whose process was killed before it had sent the request to
the engine: no journal settles it, its lease ends.
"""
NUM_PROCESSES = 4
_USAGE = text(
    "SELECT count(*), coalesce(sum(prompt_tokens + completion_tokens), 0) FROM usage_records "
    "WHERE tenant_id = :tenant AND finish_reason IS NOT NULL"
)
PROMPT = [{"role": "user", "content": "Hello there, how are you today?"}]


@dataclass
class Account:
    """A tenant with one budget."""

    tenant_id: str
    key: str
    admin_key: str

    async def set_budget(self, client: httpx.AsyncClient, url: str) -> None:
        body = {"metric": "tokens_per_day", "amount": BUDGET}
        answer = await client.put(
            f"{url}/v1/organization/limits", json=body, headers={"authorization": f"Bearer {self.admin_key}"}
        )
        assert answer.status_code == 200, answer.text

    async def budget(self, client: httpx.AsyncClient, url: str) -> tuple[int, int]:
        """(tokens charged, tokens held)."""
        headers = {"authorization": f"Bearer {self.admin_key}"}
        answer = await client.get(f"{url}/v1/organization/limits", headers=headers)
        [limit] = [one for one in answer.json()["data"] if one["metric"] == "tokens_per_day"]
        return limit["used"], limit["held"]


@dataclass
class Crowd:
    """Many requests at once, in turn to each of the processes, and what became of them."""

    urls: list[str]
    key: str
    max_tokens: int
    answered: list[int] = field(default_factory=list)
    """Tokens of those that were answered to the end."""
    refused: Counter[tuple[int, str, str]] = field(default_factory=Counter)
    """(status, code, x-should-retry)."""
    num_lost: int = 0
    """Whose process is gone."""
    begun: Counter[str] = field(default_factory=Counter)
    """Answers under way, by process."""

    async def run(self, count: int) -> None:
        await asyncio.gather(*(self._ask(self.urls[number % len(self.urls)]) for number in range(count)))

    async def _ask(self, url: str) -> None:
        body = {
            "model": "sapling",
            "messages": PROMPT,
            "max_tokens": self.max_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        try:
            async with post(url, "/v1/chat/completions", self.key, body) as answer:
                head = await answer.readuntil(b"\r\n\r\n")
                status = int(head.split(b" ", 2)[1])
                if status == 200:
                    self.begun[url] += 1
                    self._note(await answer.read())
                    return
                code = json.loads(await answer.read())["error"]["code"]
                retry = "true" if b"x-should-retry: true" in head else "false"
                self.refused[status, code, retry] += 1
        except (OSError, EOFError, asyncio.IncompleteReadError):
            self.num_lost += 1

    def _note(self, stream: bytes) -> None:
        if b"data: [DONE]" not in stream:
            raise EOFError("the process is gone")
        [usage] = re.findall(rb'"usage":({"prompt_tokens".*?}})', stream)
        counts = json.loads(usage)
        assert counts["completion_tokens"] == self.max_tokens
        self.answered.append(counts["total_tokens"])


@asynccontextmanager
async def post(url: str, path: str, key: str, body: dict[str, Any]) -> AsyncIterator[asyncio.StreamReader]:
    """The bytes of an answer: five hundred clients at once cost more than four servers otherwise."""
    where = httpx.URL(url)
    reader, writer = await asyncio.open_connection(where.host, where.port)
    try:
        payload = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n"
        writer.write(f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
        yield reader
    finally:
        writer.close()


class Journal:
    """The worker's part: what is in the journal is charged, and reservations of the dead are returned."""

    def __init__(self, database: Database, redis_client: redis.asyncio.Redis) -> None:
        settlement = ReservationSettlement(JournalSettling(redis_client))
        self._meter = JournalMeter(database, redis_client, "test", on_ended=settlement)
        self._database = database

    async def tokens_of(self, tenant_id: str) -> tuple[int, int]:
        """(requests, tokens) of a tenant in the ledger, once it has all that is in the journal."""
        await self._meter.drain()
        async with self._database.read(EVERY_TENANT) as session:
            row = (await session.execute(_USAGE, {"tenant": tenant_id})).one()
        return int(row[0]), int(row[1])


async def open_account(database: Database, redis_client: redis.asyncio.Redis, name: str) -> Account:
    accounts = account_services(database, redis_client, SECRET)
    tenant = await accounts.tenants.create_tenant(name)
    key = await accounts.keys.create(tenant.id, "main", OPERATOR)
    admin = await accounts.keys.create(tenant.id, "admin", OPERATOR, kind="admin")
    return Account(tenant.id, key.plaintext, admin.plaintext)


def start_apis(processes: Processes) -> dict[str, subprocess.Popen[bytes]]:
    """By address."""
    running = {}
    for number in range(NUM_PROCESSES):
        port = free_port()
        settings = {"ROOTSTOCK_API_PORT": str(port), "ROOTSTOCK_API_NAME": f"api-{number}"}
        running[f"http://127.0.0.1:{port}"] = processes.start("api.main", **settings)
    for url in running:
        until(partial(is_ready, url), 60, f"{url}/readyz")
    return running


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


async def test_a_budget_against_a_crowd_over_four_processes(
    processes: Processes,
    database: Database,
    redis_client: redis.asyncio.Redis,
) -> None:
    processes.start("engine.main", "--null", ROOTSTOCK_ENGINE_NULL_STEP_SECONDS="0.02")
    running = start_apis(processes)
    urls = list(running)
    journal = Journal(database, redis_client)
    async with httpx.AsyncClient(timeout=60, trust_env=False, verify=False) as client:
        # All live ----------------------------------------------------------------------------------------
        calm = await open_account(database, redis_client, "calm")
        await calm.set_budget(client, urls[0])
        crowd = Crowd(urls, calm.key, max_tokens=8)
        await crowd.run(CROWD)
        assert set(crowd.refused) <= {HELD_BY_OTHERS, USED_UP}, crowd.refused
        assert len(crowd.answered) + sum(crowd.refused.values()) == CROWD
        assert crowd.num_lost == 0

        async def returned() -> bool:
            return (await calm.budget(client, urls[1]))[1] == 0

        await eventually(returned)
        charged, _ = await calm.budget(client, urls[1])
        assert charged == sum(crowd.answered) <= BUDGET
        # Nobody was refused who had room: all reserve the same, and use all they reserve.
        assert charged + crowd.answered[0] > BUDGET
        late = Crowd(urls, calm.key, max_tokens=8)
        await late.run(NUM_PROCESSES)
        assert late.refused == {USED_UP: NUM_PROCESSES}
        assert await num_open(redis_client, calm) == 0
        assert await journal.tokens_of(calm.tenant_id) == (len(crowd.answered), charged)

        # One is killed in mid-answer ---------------------------------------------------------------------
        bereft = await open_account(database, redis_client, "bereft")
        await bereft.set_budget(client, urls[0])
        crowd = Crowd(urls, bereft.key, max_tokens=60)
        asking = asyncio.create_task(crowd.run(CROWD))
        await eventually(lambda: any(crowd.begun.values()))
        dead = crowd.begun.most_common(1)[0][0]
        running[dead].send_signal(signal.SIGKILL)
        await asking
        assert crowd.num_lost >= crowd.begun[dead] >= 1
        assert set(crowd.refused) <= {HELD_BY_OTHERS, USED_UP}, crowd.refused
        living = next(url for url in urls if url != dead)

        async def settled() -> bool:
            requests, _ = await journal.tokens_of(bereft.tenant_id)
            _, held = await bereft.budget(client, living)
            return held == 0 and requests >= len(crowd.answered) + crowd.begun[dead]

        await eventually(settled, LEASE)
        charged, _ = await bereft.budget(client, living)
        requests, metered = await journal.tokens_of(bereft.tenant_id)
        assert await num_open(redis_client, bereft) == 0
        assert charged == metered <= BUDGET
        assert requests > len(crowd.answered), "those cut off are charged, too"
        assert metered > sum(crowd.answered)

        # What they left unused can be used, and no more than that.
        crowd = Crowd([url for url in urls if url != dead], bereft.key, max_tokens=8)
        await crowd.run(100)
        await eventually(settled_with(bereft, client, living))
        charged, _ = await bereft.budget(client, living)
        assert charged == metered + sum(crowd.answered) <= BUDGET


def settled_with(account: Account, client: httpx.AsyncClient, url: str) -> Any:
    async def settled() -> bool:
        return (await account.budget(client, url))[1] == 0

    return settled


async def num_open(redis_client: redis.asyncio.Redis, account: Account) -> int:
    """Reservations that Redis holds for open."""
    return int(await redis_client.zcard(tag_of(account.tenant_id) + b"open"))
