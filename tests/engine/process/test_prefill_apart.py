"""Engine processes that compute prompts for another one, and are killed meanwhile."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from benchmarks.random_llama import Shape, write_base
from routing.replica_set import ReplicaSet
from tests.engine.process.conftest import Connect
from tests.engine.process.engines import (
    EngineProcess,
    billed,
    journal_events,
    read,
    submission,
    tokens_of,
    until,
)

SHAPE = Shape(num_layers=2, hidden=64, num_heads=4, num_kv_heads=2, intermediate=128, vocab=512)
PROMPT_LEN = 1000
NUM_PROMPTS = 12
NUM_TOKENS = 6


def engine_settings(folder: Path, name: str) -> dict[str, object]:
    return {
        "null": False,
        "base": folder / "base",
        "device": "cpu",
        "kv_bytes": 64 << 20,
        "engine_id": name,
        "endpoint": f"ipc://{folder}/{name}.sock",
        "data_dir": folder,
    }


async def test_a_kill_of_the_prefill_engine_loses_no_token_and_bills_none_twice(
    folder: Path, redis_url: str, connect: Connect
) -> None:
    write_base(folder / "base", SHAPE)
    prompts_at = f"ipc://{folder}/prompts.sock"
    prefill_settings = engine_settings(folder, "prefill-0") | {
        "ROOTSTOCK_PREFILL_ENDPOINT": prompts_at,
        "max_rows": 16,
        "max_batch_tokens": 16,  # slow enough to be killed before it is done
    }
    decode_settings = engine_settings(folder, "engine-0") | {
        "ROOTSTOCK_PREFILL_SOURCES": prompts_at,
        "ROOTSTOCK_PREFILL_MIN_TOKENS": 256,
        "ROOTSTOCK_PREFILL_MAX_WAIT_SECONDS": 600,
    }
    processes = [EngineProcess(folder, redis_url, **one) for one in (prefill_settings, decode_settings)]
    prefill, decode = processes
    try:
        for process in processes:
            process.start()
        client = await connect(decode)
        prefilling = await connect(prefill)
        assert prefilling.info is not None
        assert prefilling.info.role == "prefill"
        engines = ReplicaSet([decode.endpoint, prefill.endpoint], "test")
        await engines.start()
        await until(lambda: client.stats is not None and client.stats.prefill_sources == 1)
        await engines.wait_ready()
        rng = random.Random(1)
        prompts = [[rng.randrange(3, 512) for _ in range(PROMPT_LEN)] for _ in range(NUM_PROMPTS)]

        async def answer(name: str, prompt_ids: list[int], tenant: str = "tenant-a") -> list[int]:
            sampling = {"ignore_eos": True}
            fields = {"prompt_ids": prompt_ids, "tenant": tenant, "sampling": sampling}
            return tokens_of(await read(engines.submit(submission(name, NUM_TOKENS, **fields))))

        answers = [asyncio.create_task(answer(f"r{place}", one)) for place, one in enumerate(prompts)]
        await until(lambda: client.stats is not None and client.stats.fetched_tokens > 0)
        prefill.kill()
        found = await asyncio.wait_for(asyncio.gather(*answers), 60)
        await until(lambda: client.stats is not None and not client.stats.prompts_fetching)
        stats = client.stats
        assert stats is not None
        assert stats.fetch_fallbacks["lost"] > 0, "it was killed before it was done"
        assert stats.prompts_fetched + stats.fetch_fallbacks["lost"] == NUM_PROMPTS
        assert stats.fetched_tokens > stats.prompts_fetched * (PROMPT_LEN // 16 * 16)

        # Computed here alone, for a tenant of whom nothing is cached.
        alone = [await answer(f"alone-{place}", one, "tenant-b") for place, one in enumerate(prompts)]
        assert found == alone
        events = billed(journal_events(redis_url))
        for place in range(NUM_PROMPTS):
            usage = events[f"r{place}"].usage
            assert (usage.prompt_tokens, usage.cached_tokens) == (PROMPT_LEN, 0)
            assert usage.completion_tokens == NUM_TOKENS
        assert {event.engine_id for event in events.values()} == {"engine-0"}, "prompts alone are not billed"
        # It comes back, and computes prompts again.
        prefill.start()
        await until(lambda: client.stats is not None and client.stats.prefill_sources == 1)
        await answer("back", [rng.randrange(3, 512) for _ in range(PROMPT_LEN)])
        await until(lambda: client.stats is not None and client.stats.prompts_fetched > stats.prompts_fetched)
        assert engines.num_serving == 1, "clients' requests do not go to an engine that computes prompts"
        await engines.close()
    finally:
        for process in processes:
            process.end()
