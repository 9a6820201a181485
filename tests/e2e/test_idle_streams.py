"""Many clients that ask for a stream and never read it: what they cost the API is bounded, nobody else waits
for them, and nothing of them is left when they go.

IDLE_STREAMS in the environment sets how many; `benchmarks.idle_streams` has 10 000, of many tenants. With
IDLE_PATIENCE, seconds longer than it takes to open them all, they are not asked to go: the API cuts them off.
"""

from __future__ import annotations

import os
import re
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import openai
import pytest
import redis.asyncio

from benchmarks.idle_streams import IdleClients, memory_of
from db.session import Database
from tenants.actors import OPERATOR
from tenants.plans import PlanChanges
from tenants.quotas.scripts import tag_of
from tenants.service import account_services
from tests.api.conftest import base_dir
from tests.api.test_process import SECRET, Processes, processes
from tests.support.waiting import eventually, until

__all__ = ["base_dir", "processes"]

COUNT = int(os.environ.get("IDLE_STREAMS", "50"))
pytestmark = [pytest.mark.quiet, pytest.mark.timeout(180 + COUNT // 5)]
MAX_TOKENS = 800
"""More than fits what kernel and API keep for one that does not read."""
PATIENCE = float(os.environ.get("IDLE_PATIENCE", "0"))
MAX_BYTES_PER_STREAM = 192 * 1024
READER_TOKENS = 50
STEP_S = 0.01
"""Fifty streams come at a quarter of what the API can send: were it slower than the engine, tokens would
go out together, and an answer could fit into what is kept.
"""
HELLO = [{"role": "user", "content": "Hello there"}]


@pytest.fixture(autouse=True)
def many_files() -> None:
    """Each stream is a connection of this process, and one of the API's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextmanager
def idle_clients(port: int, key: str) -> Iterator[IdleClients]:
    clients = IdleClients(port, "sapling", [key], MAX_TOKENS)
    try:
        yield clients
    finally:
        clients.close()


def start(processes: Processes) -> int:
    """Engine and API; the API's process id."""
    blocks = (COUNT + 20) * (MAX_TOKENS // 16 + 4)
    processes.start(
        "engine.main",
        "--null",
        ROOTSTOCK_ENGINE_NULL_STEP_SECONDS=str(STEP_S),
        ROOTSTOCK_ENGINE_MAX_ROWS="4096",
        ROOTSTOCK_ENGINE_MAX_BATCH_TOKENS="8192",
        ROOTSTOCK_ENGINE_QUEUE_LIMIT=str(COUNT + 100),
        ROOTSTOCK_ENGINE_DEFAULT_TTFT_SECONDS="inf",
        ROOTSTOCK_DEVICE_NUM_BLOCKS=str(blocks),
    )
    api = processes.start("api.main", ROOTSTOCK_API_WRITE_TIMEOUT=str(PATIENCE or 600.0))
    processes.wait_for("/readyz", 200)
    return api.pid


def gauge(url: str, name: str) -> float:
    text = httpx.get(f"{url}/metrics", timeout=60, trust_env=False).text
    match = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
    return float(match[1]) if match is not None else 0.0


def read_stream(client: openai.OpenAI) -> float:
    """Seconds that one takes that is read."""
    began = time.monotonic()
    stream = client.chat.completions.create(
        model="sapling",
        messages=HELLO,  # type: ignore[arg-type]
        max_tokens=READER_TOKENS,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    usages = [chunk.usage for chunk in stream if chunk.usage is not None]
    assert usages[0].completion_tokens == READER_TOKENS
    return time.monotonic() - began


async def test_streams_that_are_never_read(
    processes: Processes,
    database: Database,
    redis_client: redis.asyncio.Redis,
) -> None:
    accounts = account_services(database, redis_client, SECRET)
    tenant = await accounts.tenants.create_tenant("acme")
    await accounts.plans.set("standard", PlanChanges(limits={"concurrent_requests": 2 * COUNT}))
    key = await accounts.keys.create(tenant.id, "main", OPERATOR)
    api = start(processes)
    url = processes.url

    def num_streams() -> float:
        return gauge(url, "rootstock_open_streams")

    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key=key.plaintext, max_retries=0, timeout=300) as client,
        idle_clients(processes.port, key.plaintext) as idle,
    ):
        alone = min(read_stream(client) for _ in range(3))
        before = memory_of(api)
        idle.open(COUNT)
        # While the engine works for all of them ...
        read_stream(client)
        until(lambda: num_streams() == COUNT, 120, "all streams open")
        # ... and once it has given them all they asked for, or given them up.
        until(lambda: gauge(url, "rootstock_requests_running") == 0, 120, "an idle engine")
        assert num_streams() == COUNT, "none was cut off before its time"
        beside = min(read_stream(client) for _ in range(3))
        per_stream = (memory_of(api) - before) / COUNT
        print(f"{COUNT} idle streams: {per_stream / 1024:.1f} KiB each; ", end="")
        print(f"a reader's {READER_TOKENS} tokens: {alone:.2f} s alone, {beside:.2f} s beside them")
        assert per_stream < MAX_BYTES_PER_STREAM
        assert beside < 3 * alone + 0.5

        if not PATIENCE:
            idle.close()
        until(lambda: num_streams() == 0, PATIENCE + 60, "the end of all idle streams")
        read_stream(client)

        async def none_open() -> bool:
            return await redis_client.zcard(tag_of(tenant.id) + b"open") == 0

        await eventually(none_open)
        assert ("its connection is cut" in processes.log) == bool(PATIENCE)
