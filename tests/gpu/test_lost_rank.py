"""An engine over two GPUs that wait for one another in their kernels: one that is gone ends the engine."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from engine.client import EngineClient, EngineGone
from engine.protocol import SamplingParams, Submit
from examples.sapling import BASE

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]

START_SECONDS = 200


def settings(folder: Path) -> dict[str, str]:
    engine = {
        "ENGINE_BASE": BASE,
        "ENGINE_ENDPOINT": f"ipc://{folder}/engine.sock",
        "ENGINE_REDIS_URL": "redis://127.0.0.1:1",  # no server: usage stays on disk
        "ENGINE_DATA_DIR": folder,
        "ENGINE_ARTIFACTS_DIR": folder / "artifacts",
        "ENGINE_MAX_ROWS": 16,
        "ENGINE_MAX_BATCH_TOKENS": 256,
        "DEVICE_TENSOR_PARALLEL": 2,
        "DEVICE_DEVICE": "cuda",
        "DEVICE_KV_BYTES": 64 << 20,
        "DEVICE_ADAPTER_BYTES": 16 << 20,
        "DEVICE_ADAPTER_CACHE_BYTES": 16 << 20,
    }
    return {f"ROOTSTOCK_{name}": str(value) for name, value in engine.items()}


def rank_of(engine: subprocess.Popen[bytes]) -> int:
    """The process id of its rank 1."""
    tasks = Path(f"/proc/{engine.pid}/task").glob("*/children")
    children = [pid for task in tasks for pid in task.read_text().split()]
    [rank] = [pid for pid in children if b"parallel.rank" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return int(rank)


async def decode_until(stopped: asyncio.Event, endpoint: str) -> None:
    """Keeps steps running; says when the first token is there."""
    client = EngineClient(endpoint, "test")
    await client.start()
    await asyncio.wait_for(client.wait_ready(), START_SECONDS)
    params = SamplingParams(400, temperature=0.0, ignore_eos=True)
    generation = client.submit(Submit("endless", "t", [5, 6, 7], params, submitted_at=time.time()))
    async for _ in generation:
        stopped.set()
        break
    try:
        async for _ in generation:
            pass
    except EngineGone:
        return
    finally:
        await client.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hung"])
def test_a_rank_that_is_gone_ends_the_engine_with_the_reason(tmp_path: Path, number: int) -> None:
    log = tmp_path / "log"
    with log.open("wb") as output:
        environment = os.environ | settings(tmp_path)
        engine = subprocess.Popen([sys.executable, "-m", "engine.main"], env=environment, stderr=output)
    try:
        seconds = asyncio.run(_kill_while_it_decodes(engine, tmp_path, number))
    finally:
        engine.kill()
    expected = "signal 9" if number == signal.SIGKILL else "did not answer for 5 s and was killed"
    text = log.read_text()
    assert f"rank 1 of 2 {'ended with ' if number == signal.SIGKILL else ''}{expected}" in text, text[-3000:]
    print(f"the engine ended {seconds:.1f} s after its rank")


async def _kill_while_it_decodes(engine: subprocess.Popen[bytes], folder: Path, number: int) -> float:
    began = asyncio.Event()
    decoding = asyncio.create_task(decode_until(began, f"ipc://{folder}/engine.sock"))
    async with asyncio.timeout(START_SECONDS):
        while not began.is_set():
            assert engine.poll() is None, (folder / "log").read_text()[-3000:]
            await asyncio.sleep(0.1)
    os.kill(rank_of(engine), number)
    at = time.monotonic()
    status = await asyncio.to_thread(engine.wait, 25)
    seconds = time.monotonic() - at
    assert status not in (0, None)
    decoding.cancel()
    return seconds
