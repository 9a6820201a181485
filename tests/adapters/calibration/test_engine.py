"""A calibration on a real engine process, over its real client: the stack that serves."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from adapters.calibration.run import CalibrationRequest, CalibrationStack, calibrate
from engine.client import EngineClient
from tests.adapters.calibration.sapling import BASE, pack_all, write_adapter, write_samples
from tests.adapters.calibration.test_run import ASKER, NUM_SAMPLES, TASK, Memory, found, gain, make_bench
from tests.engine.process.engines import EngineProcess, billed, engine_process, journal_events, until
from tests.support.speed import slowness
from tokenization.codec import TextCodec


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, unlike pytest's own: a socket's path has 108 bytes."""
    path = Path(tempfile.mkdtemp(prefix="rs-calib-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def engine(folder: Path, redis_url: str) -> Iterator[EngineProcess]:
    settings = {
        "null": False,
        "base": BASE,
        "base_name": "sapling",
        "device": "cpu",
        "quantization": "int8",
        "artifacts_dir": folder / "artifacts",
        "num_slots": 2,
        "context_length": 512,
        "kv_bytes": 64 << 20,
    }
    for process in engine_process(folder, redis_url, **settings):
        process.start()
        yield process


@pytest.fixture
async def client(engine: EngineProcess) -> AsyncIterator[EngineClient]:
    client = EngineClient(engine.endpoint, "calibration")
    await client.start()
    async with asyncio.timeout(60):
        await client.wait_ready()
    yield client
    await client.close()


def request_of(folder: Path, own: bool) -> CalibrationRequest:
    peft_dir = write_adapter(folder / "adapter", TASK)
    samples = write_samples(folder / "samples.jsonl", TASK, NUM_SAMPLES) if own else None
    return CalibrationRequest(ASKER, peft_dir, pack_all(peft_dir, folder / "artifacts"), samples)


async def test_the_engine_serves_what_the_model_says(
    client: EngineClient, folder: Path, redis_url: str, tmp_path: Path, sapling_codec: TextCodec
) -> None:
    """The same figures as from the model in this process, run after run, and booked on the tenant."""
    request = request_of(folder, own=True)
    stack = CalibrationStack(client, sapling_codec, BASE, folder / "artifacts")
    memory = Memory()
    report = await calibrate(request, stack, memory.progress, memory)
    assert report.decision.ready, report.decision.why_not
    assert gain(report) > 0.5
    again = Memory()
    assert found(await calibrate(request, stack, again.progress, again)) == found(report)

    alone = await make_bench(tmp_path, sapling_codec).run()
    for name, fidelity in report.measures.fidelity.items():
        assert fidelity.nll.value == pytest.approx(alone.measures.fidelity[name].nll.value, abs=1e-3)
        assert fidelity.top1.value == pytest.approx(alone.measures.fidelity[name].top1.value, abs=0.01)

    bills = billed(journal_events(redis_url))
    assert len(bills) == 2 * 3 * NUM_SAMPLES
    assert {bill.tenant for bill in bills.values()} == {"ten_one"}
    assert {bill.priority.value for bill in bills.values()} == {"flex"}
    labels = next(iter(bills.values())).labels
    assert labels == {
        "key_id": "calibration",
        "model": "sapling:mine@1",
        "endpoint": "calibration",
        "service_tier": "flex",
        "adapter_id": "adp_mine",
        "adapter_version": "1",
    }


@pytest.mark.quiet
async def test_a_default_calibration_takes_seconds(
    client: EngineClient, folder: Path, sapling_codec: TextCodec
) -> None:
    stack = CalibrationStack(client, sapling_codec, BASE, folder / "artifacts")
    memory = Memory()
    began = time.monotonic()
    report = await calibrate(request_of(folder, own=False), stack, memory.progress, memory)
    seconds = time.monotonic() - began
    print(f"default set: {seconds:.2f} s", report.cost)
    assert report.decision.ready, report.decision.why_not
    assert report.data.origin == "base"
    assert seconds < 30 * slowness(), "a bound that only something broken exceeds; benchmarks measure"


async def test_an_engine_killed_in_the_middle_changes_nothing(
    engine: EngineProcess, client: EngineClient, folder: Path, sapling_codec: TextCodec, tmp_path: Path
) -> None:
    request = request_of(folder, own=True)
    stack = CalibrationStack(client, sapling_codec, BASE, folder / "artifacts", patience=60)
    memory = Memory()
    running = asyncio.create_task(calibrate(request, stack, memory.progress, memory))
    await until(lambda: client.num_open > 0)
    engine.kill()
    await until(lambda: not client.ready)
    engine.start()
    report = await running
    fresh = Memory()
    assert found(report) == found(await calibrate(request, stack, fresh.progress, fresh))
