"""A file system that really fills up below an engine: announced before, named as it stops, and made good."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.readiness import EngineDisk
from engine.client import EngineClient, EngineGone
from engine.protocol import TokenChunk
from engine.stop_reason import NAME
from tests.engine.process.conftest import Connect
from tests.engine.process.engines import (
    billed,
    engine_process,
    journal_events,
    submission,
    tokens_of,
    until,
)
from tests.engine.process.test_usage_journal import NOWHERE

SIZE, REQUIRED = 32 * 1024**2, 4_000_000


@pytest.fixture
def disk(folder: Path) -> Iterator[Path]:
    """A small file system, where the engine keeps its files."""
    mounted = folder / "engine"
    mounted.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(mounted)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this account may not mount a file system")
    yield mounted
    subprocess.run(["umount", "--lazy", str(mounted)], check=True)


def fill(disk: Path, but_for: int = 0) -> None:
    """Leave so many bytes free."""
    with (disk / "ballast").open("ab") as ballast:
        found = os.statvfs(disk)
        free = found.f_bavail * found.f_frsize - but_for
        os.posix_fallocate(ballast.fileno(), ballast.seek(0, os.SEEK_END), free)


def readiness(client: EngineClient) -> EngineDisk:
    """As the API's /readyz asks it."""
    return EngineDisk(lambda: [] if client.stats is None else [client.stats], REQUIRED)


async def test_a_full_disk_is_announced_named_and_made_good(
    folder: Path, disk: Path, redis_url: str, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROOTSTOCK_DISK_MIN_FREE_BYTES", str(REQUIRED))
    received: dict[str, list[TokenChunk]] = {}

    async def ask(client: EngineClient, request_id: str, max_tokens: int = 3) -> None:
        kept = received.setdefault(request_id, [])
        async for chunks in client.submit(submission(request_id, max_tokens)):
            kept.extend(chunks)

    async def ask_on(client: EngineClient) -> None:
        for number in range(200):  # the spool's last page still takes some
            await ask(client, f"full-{number}")

    for engine in engine_process(folder, NOWHERE):  # without Redis, usage goes to the disk
        engine.start()
        client = await connect(engine)
        check = readiness(client)
        await ask(client, "before")
        assert await check.check() is None
        fill(disk, but_for=REQUIRED // 2)
        async with asyncio.timeout(10):
            while (announced := await check.check()) is None:  # noqa: ASYNC110  the next heartbeat
                await asyncio.sleep(0.05)
        assert announced == "2 MB free, 4 MB required"
        await ask(client, "announced")

        fill(disk)
        stream = asyncio.create_task(ask(client, "open", 5000))
        await until(lambda: bool(received.get("open")))
        with pytest.raises(EngineGone):
            await ask_on(client)
        with pytest.raises(EngineGone):
            await stream
        assert await asyncio.to_thread(engine.wait) == 1
        told = (engine.state_dir / NAME).read_text()
        assert told.startswith(f"stopped: disk full at {engine.state_dir}: "), told
        engine.start()
        assert await asyncio.to_thread(engine.wait) == 1
        assert "too little disk space" in engine.read_log()

        (disk / "ballast").unlink()
        engine.settings["redis_url"] = redis_url
        engine.start()
        client = await connect(engine)
        assert await readiness(client).check() is None
        await ask(client, "after")
        await until(lambda: received.keys() <= billed(journal_events(redis_url)).keys())
        rows = billed(journal_events(redis_url))
        assert rows.keys() == received.keys()
        for name, chunks in received.items():
            assert rows[name].usage.completion_tokens >= len(tokens_of(chunks)), "what was received is billed"
        assert {rows[name].usage.completion_tokens for name in ("before", "announced", "after")} == {3}
