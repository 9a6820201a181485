"""The whole engine process around a real (random, tiny) model: adapters from disk, several in one batch."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.packing import pack
from benchmarks.random_llama import Shape, write_adapter, write_base
from engine.client import RequestRejected
from engine.model.config import load_config
from engine.protocol import AdapterRef
from tests.engine.process.conftest import Connect
from tests.engine.process.engines import (
    EngineProcess,
    billed,
    engine_process,
    journal_events,
    read,
    submission,
    tokens_of,
    until,
)

SHAPE = Shape(num_layers=2, hidden=64, num_heads=4, num_kv_heads=2, intermediate=128, vocab=512)
NUM_TOKENS = 12


@pytest.fixture
def model_engine(folder: Path, redis_url: str) -> Iterator[EngineProcess]:
    write_base(folder / "base", SHAPE)
    settings = {
        "null": False,
        "base": folder / "base",
        "base_name": "random",
        "device": "cpu",
        "quantization": "int8",
        "artifacts_dir": folder / "artifacts",
        "num_slots": 2,
        "kv_bytes": 64 << 20,
    }
    for process in engine_process(folder, redis_url, **settings):
        process.start()
        yield process


async def test_adapters_and_base_run_in_one_batch_and_are_billed_apart(
    model_engine: EngineProcess, connect: Connect, redis_url: str, folder: Path
) -> None:
    client = await connect(model_engine, ready_seconds=60)
    info = client.info
    assert info is not None
    assert (info.base, info.quantization, info.device, info.vocab_size) == ("random", "int8", "cpu", 512)
    refs: list[AdapterRef | None] = [None]
    for number in range(3):
        peft_dir = folder / f"peft-{number}"
        write_adapter(peft_dir, SHAPE, rank=4 << number, seed=number)
        refs.append(pack(peft_dir, load_config(folder / "base"), info.base_digest, folder / "artifacts"))

    def ask(name: str, ref: AdapterRef | None) -> asyncio.Future[list[int]]:
        sampling = {"ignore_eos": True}
        request = submission(name, NUM_TOKENS, prompt_ids=[5, 6, 7, 8], adapter=ref, sampling=sampling)

        async def tokens() -> list[int]:
            return tokens_of(await read(client.submit(request)))

        return asyncio.ensure_future(tokens())

    alone = [await ask(f"alone-{number}", ref) for number, ref in enumerate(refs)]
    # Four models, two slots: the third adapter waits for a slot and takes one over.
    together = await asyncio.gather(
        *(ask(f"r{number}-{copy}", ref) for number, ref in enumerate(refs) for copy in range(3))
    )
    assert together == [tokens for tokens in alone for _ in range(3)]
    assert len({tuple(tokens) for tokens in alone}) == 4, "every adapter changes the output"
    await until(lambda: client.stats is not None and client.stats.adapter_load_seconds > 0)
    stats = client.stats
    assert stats is not None
    assert stats.eager_steps == stats.steps > 0
    assert (stats.device, stats.quantization, stats.kv_dtype) == ("cpu", "int8", "float32")
    view = await client.inspect(10)
    assert view is not None
    assert {(slot.digest, slot.rank) for slot in view.slots} < {(ref.digest, ref.rank) for ref in refs if ref}
    assert sum(slot.num_bytes for slot in view.slots) == view.stats.adapter_bytes_used > 0
    with_null_block = (64 << 20) + view.memory["kv"] // (view.stats.blocks_total + 1)
    assert view.memory == {"kv": with_null_block, "adapters": view.stats.adapter_bytes_used}
    assert view.stats.adapter_evictions > 0
    bills = billed(journal_events(redis_url))
    for number, ref in enumerate(refs):
        bill = bills[f"r{number}-0"]
        assert bill.adapter_digest == (None if ref is None else ref.digest)
        assert bill.usage.completion_tokens == NUM_TOKENS

    with pytest.raises(RequestRejected) as refusal:
        await ask("missing", AdapterRef("0" * 64, 8))
    assert refusal.value.code == "adapter_unavailable"
    assert "missing" not in billed(journal_events(redis_url))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"device": "cuda"}, "finds no GPU"),
        ({"quantization": "fp8"}, "fp8 is not supported on a CPU; use one of none, int8"),
        ({"kv_dtype": "fp8"}, "kv_dtype fp8 needs a GPU"),
    ],
)
async def test_a_device_that_is_not_there_or_cannot_is_named_and_ends_the_engine(
    settings: dict[str, str], says: str, folder: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    write_base(folder / "base", SHAPE)
    for process in engine_process(folder, redis_url, null=False, base=folder / "base", **settings):
        process.start()
        assert await asyncio.to_thread(process.wait, 60) == 1
        assert says in process.read_log()


async def test_a_base_that_cannot_be_served_is_named_and_ends_the_engine(
    folder: Path, redis_url: str
) -> None:
    write_base(folder / "base", SHAPE)
    (folder / "base" / "model.safetensors").unlink()
    for process in engine_process(folder, redis_url, null=False, base=folder / "base"):
        process.start()
        assert await asyncio.to_thread(process.wait, 60) == 1
        assert "engine failed" in process.read_log()
        assert "safetensors" in process.read_log()
