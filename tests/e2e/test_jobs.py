"""Jobs of a whole stack, true to the last step, whose processes are killed while they measure an adapter."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from examples.sapling.tasks import TASKS
from tests.e2e.onboarding import create, ready, sapling_adapter, send_files
from tests.e2e.stack import Stack, descendants
from tests.e2e.streams import Stream, read_stream
from tests.support.waiting import eventually, until

JOBS = "/calibration/jobs"
NUMBERS = iter(range(900, 1000))


class Measuring:
    """An adapter whose job has come to measuring it."""

    def __init__(self, client: AsyncOpenAI, stack: Stack, made: dict[str, Any]) -> None:
        self.client, self.stack = client, stack
        self.adapter_id, self.job_id = made["id"], made["calibration_job"]

    async def job(self, verb: str = "") -> dict[str, Any]:
        path = f"{JOBS}/{self.job_id}"
        if verb:
            return await self.client.post(f"{path}/{verb}", cast_to=dict[str, Any])
        return await self.client.get(path, cast_to=dict[str, Any])

    async def until(self, *statuses: str, seconds: float = 120.0) -> float:
        async def reached() -> bool:
            await asyncio.sleep(0.03)  # the lease of a dead worker is half a minute of looks
            return (await self.job())["status"] in statuses

        return await eventually(reached, seconds)

    async def assert_ready_once(self) -> list[str]:
        """It serves, and everything happened once. The types of what happened."""
        await ready(self.client, self.adapter_id, seconds=120)
        page = await self.client.get(
            f"{JOBS}/{self.job_id}/events", cast_to=dict[str, Any], options={"params": {"limit": 100}}
        )
        types = [event["type"] for event in page["data"]]
        for once in ("version.packed", "version.calibrated", "version.ready", "job.succeeded"):
            assert types.count(once) == 1, once
        return types


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[AsyncOpenAI]:
    async with stack.client(max_retries=5) as opened:
        yield opened
        for adapter in (await opened.get("/adapters?limit=100", cast_to=dict[str, Any]))["data"]:
            if adapter["name"].startswith("job-"):
                await opened.delete(f"/adapters/{adapter['id']}", cast_to=dict[str, Any])


async def measuring(
    client: AsyncOpenAI, stack: Stack, folder: Path, wait: Callable[[], Awaitable[None]] | None = None
) -> Measuring:
    """`wait` passes the time between two looks."""
    number = next(NUMBERS)
    sapling_adapter("upper-case", folder, number)
    made = await create(client, stack, f"job-{number}", await send_files(client, folder))
    found = Measuring(client, stack, made)
    async with asyncio.timeout(120):
        while (shown := await found.job())["progress"]["share"] < 0.2:
            assert shown["status"] in ("queued", "running"), shown
            await (wait() if wait is not None else asyncio.sleep(0.02))
    return found


async def test_a_child_killed_while_it_measures_is_replaced(
    client: AsyncOpenAI, stack: Stack, tmp_path: Path
) -> None:
    worker = stack.pid_of("jobs")
    assert worker is not None
    child = descendants(worker)[0]

    async def run_for_a_moment() -> None:
        """Else it may have measured all before anybody saw it begin."""
        os.kill(child, signal.SIGCONT)
        await asyncio.sleep(0.05)
        os.kill(child, signal.SIGSTOP)

    os.kill(child, signal.SIGSTOP)
    job = await measuring(client, stack, tmp_path / "adapter", run_for_a_moment)
    assert (await job.job())["progress"]["share"] < 0.9
    os.kill(child, signal.SIGKILL)
    await job.until("succeeded", seconds=25)  # not after the lease has run out
    await job.assert_ready_once()
    assert (await job.job())["attempts"] == 2
    example = TASKS["upper-case"].examples(n=1)[0]
    shown = await client.get(f"/adapters/{job.adapter_id}", cast_to=dict[str, Any])
    stream = await read_stream(client, Stream(shown["model"], example.prompt))
    assert TASKS["upper-case"].check(example, stream.text)


async def test_a_worker_killed_while_it_measures_is_followed_by_another(
    client: AsyncOpenAI, stack: Stack, tmp_path: Path
) -> None:
    """Which waits for the lease, because it cannot know that its holder is dead."""
    job = await measuring(client, stack, tmp_path / "adapter")
    objects = stack.data / "objects"
    await eventually(lambda: any(objects.glob(f"**/jobs/{job.job_id}/checkpoint/*")))
    dead = stack.kill("jobs")
    stack.wait_until_replaced("jobs", dead)
    await job.until("succeeded")
    assert "job.worker_lost" in await job.assert_ready_once()
    report = await client.get(f"{JOBS}/{job.job_id}/report", cast_to=dict[str, Any])
    assert report["cost"]["resumed"], "what was measured before was not measured again"


async def test_a_job_waits_for_an_engine_that_is_killed(
    client: AsyncOpenAI, stack: Stack, tmp_path: Path
) -> None:
    job = await measuring(client, stack, tmp_path / "adapter")
    dead = stack.kill("engine")
    await asyncio.to_thread(stack.wait_until_replaced, "engine", dead)
    await job.until("succeeded")
    await job.assert_ready_once()
    assert (await job.job())["attempts"] == 1


async def test_pause_resume_and_cancel_while_it_measures(
    client: AsyncOpenAI, stack: Stack, tmp_path: Path
) -> None:
    for attempt in range(5):  # on a quick machine a job may end before it looks whether it is to pause
        first = await measuring(client, stack, tmp_path / f"first-{attempt}")
        await first.job("pause")
        took = await first.until("paused", "succeeded")
        if (await first.job())["status"] == "paused":
            break
    assert (await first.job())["status"] == "paused"
    assert took < 5
    await first.job("resume")
    await first.until("succeeded")
    assert {"job.paused", "job.resumed"} < set(await first.assert_ready_once())
    for attempt in range(5):
        second = await measuring(client, stack, tmp_path / f"second-{attempt}")
        await second.job("cancel")
        took = await second.until("cancelled", "succeeded")
        if (await second.job())["status"] == "cancelled":
            break
    assert (await second.job())["status"] == "cancelled"
    assert took < 5
    shown = await client.get(f"/adapters/{second.adapter_id}", cast_to=dict[str, Any])
    assert shown["state"] == "failed"


async def test_measured_again_with_an_artifact_restored(
    client: AsyncOpenAI, stack: Stack, tmp_path: Path
) -> None:
    job = await measuring(client, stack, tmp_path / "adapter")
    await job.until("succeeded")
    version = await ready(client, job.adapter_id)
    artifact = stack.data / "artifacts" / version["digest"][:2] / f"{version['digest']}.rsa"
    content = artifact.read_bytes()
    artifact.unlink()
    body = {"model": job.adapter_id}
    job.job_id = (await client.post(JOBS, body=body, cast_to=dict[str, Any]))["id"]
    await job.until("succeeded", "failed")
    assert (await job.job())["status"] == "succeeded"
    assert artifact.read_bytes() == content
    page = await client.get(f"{JOBS}/{job.job_id}/report?format=html", cast_to=str)
    assert version["model"] in page


async def test_usage_is_in_the_ledger_at_once_while_a_job_measures(
    client: AsyncOpenAI, stack: Stack, tmp_path: Path
) -> None:
    job = await measuring(client, stack, tmp_path / "adapter")
    answer = await client.completions.create(model=stack.demo["base"], prompt="Once", max_tokens=2)
    await asyncio.to_thread(until, lambda: answer.id in stack.ledger(), 5)
    await job.until("succeeded")
