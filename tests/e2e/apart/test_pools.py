"""Two base models in one running service: uploads, answers, bills, and a base whose engine is gone."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from openai import InternalServerError, NotFoundError

from examples.sapling import tasks
from examples.sapling.tasks import TASKS
from tests.e2e.onboarding import create, ready, sapling_adapter, send_files
from tests.e2e.stack import Stack, eventually
from tests.e2e.streams import Stream, read_stream

SAPLING = Path(tasks.__file__).parent / "weights" / "base"


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Sapling in int8, and `oak`: the same weights with another digest, unquantized."""
    oak = tmp_path_factory.mktemp("bases") / "oak"
    shutil.copytree(SAPLING, oak)
    config = json.loads((oak / "config.json").read_text())
    (oak / "config.json").write_text(json.dumps(config | {"_name_or_path": "oak"}))
    bases = ("--base", f"sapling={SAPLING}", "--base", str(oak), "--quantization", "oak=none")
    stack = Stack(tmp_path_factory.mktemp("up") / "data", *bases)
    try:
        stack.start()
        yield stack
    finally:
        stack.finish()


async def test_two_bases_answer_and_are_billed_with_adapters_of_their_own(
    both: Stack, tmp_path: Path
) -> None:
    task = TASKS["upper-case"]
    folder = sapling_adapter(task.name, tmp_path / "adapter", 0)
    async with both.client() as client:
        made = await create(client, both, "loud", await send_files(client, folder), base_model="oak")
        await ready(client, made["id"])
        listed = {model.id: model.base async for model in client.models.list()}  # type: ignore[attr-defined]
        assert {listed["sapling"], listed["sapling:pirate"]} == {"sapling"}
        assert {listed["oak"], listed["oak:loud"]} == {"oak"}

        example = task.examples(n=1)[0]
        models = ("sapling", "oak", "sapling:upper-case", "oak:loud")
        streams = [await read_stream(client, Stream(model, example.prompt)) for model in models]
        for stream in streams[2:]:
            assert task.check(example, stream.text)
        for absent in ("sapling:loud", "oak:upper-case"):
            with pytest.raises(NotFoundError, match="model"):
                await client.completions.create(model=absent, prompt="a")

        await asyncio.to_thread(both.wait_until_metered)
        ledger = both.ledger()
        billed = [ledger[stream.id].model for stream in streams]
        assert billed == ["sapling", "oak", "sapling:upper-case@1", "oak:loud@1"]

        engine = both.pid_of("engine-1")
        assert engine is not None
        os.kill(engine, signal.SIGSTOP)  # it stays away for as long as the test looks
        try:
            await asyncio.to_thread(_until, both, ["engine oak"])
            with pytest.raises(InternalServerError):
                await client.completions.create(model="oak", prompt="a", max_tokens=1)
            answer = await client.completions.create(model="sapling", prompt="a", max_tokens=1)
            assert answer.usage is not None
        finally:
            os.kill(engine, signal.SIGCONT)
        await asyncio.to_thread(_until, both, [])


def _until(stack: Stack, not_ready: list[str]) -> None:
    """Waits until the service says that it serves except for `not_ready`."""

    def is_told() -> bool:
        answer = httpx.get(f"{stack.url}/readyz", timeout=5)
        return answer.status_code == 200 and answer.json()["not_ready"] == not_ready

    eventually(is_told, 60, f"/readyz without {not_ready}")
