"""A batch of 50 000 lines: how long its check takes, what memory it needs, and what it leaves of the loop."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from adapters.storage import LocalStore
from api.batches.checking import MAX_LINE_BYTES, MAX_LINES, check_lines
from batches.input import lines_of
from tests.batches.conftest import chat_line

URL = "/v1/chat/completions"
SECONDS = 30.0
MEGABYTES = 100
PAUSE = 0.01


def memory_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


@pytest.mark.quiet
@pytest.mark.timeout(120)
async def test_is_checked_in_time_in_bounded_memory_beside_other_work(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    content = b"".join(
        json.dumps(chat_line(f"request-{number}", "A question of some length. " * 20)).encode() + b"\n"
        for number in range(MAX_LINES)
    )
    stored = await store.put("tenants/ten_one/batches/batch_1/input", content)
    del content
    before, most, delays = memory_mb(), 0.0, []

    async def other_work() -> None:
        nonlocal most
        while True:
            due = time.perf_counter() + PAUSE
            await asyncio.sleep(PAUSE)
            delays.append(time.perf_counter() - due)
            most = max(most, memory_mb())

    beside = asyncio.create_task(other_work())
    began = time.monotonic()
    checked = await check_lines(lines_of(store, stored.key, stored.size, MAX_LINE_BYTES), URL)
    seconds = time.monotonic() - began
    beside.cancel()

    assert (checked.total, checked.errors) == (MAX_LINES, [])
    assert seconds < SECONDS
    assert most - before < MEGABYTES
    delays.sort()
    assert delays[len(delays) // 2] < 0.01, "half of the other work waits less than a slice and its rest"
