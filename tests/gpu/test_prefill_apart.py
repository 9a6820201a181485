"""Prompts computed by another process: their blocks come from GPU to GPU or as bytes, and outlive its end."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.in_process import InProcessEngine, Sizes, random_prompts
from benchmarks.prefill_engine import cache_copies, cache_format, compute_prompts, make_engine
from engine.prefill.messages import Greeting
from engine.prefill.sources import PromptSources
from engine.transport.curve import Address

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

CHUNK = 256
PROMPT = 6 * CHUNK + 1
"""Its last token is computed alone on either engine: so the chunks are the same, and so are the bits."""
NUM_PROMPTS = 3
START_SECONDS = 200


@dataclass
class Decoding:
    """An engine that decodes, and the process that computes its prompts."""

    engine: InProcessEngine
    sources: PromptSources
    process: Any

    def answers(self, prompts: list[list[int]]) -> list[list[int]]:
        names = [self.engine.submit(prompt, 8) for prompt in prompts]
        found: dict[str, list[int]] = {name: [] for name in names}
        for chunks in self.engine.drain():
            for chunk in chunks:
                found[chunk.request_id] += chunk.token_ids
        self.engine.core.check_integrity()
        return [found[name] for name in names]

    def forget(self) -> None:
        """Empties the prefix cache of the engine that decodes."""
        pool = self.engine.core.scheduler.pool
        pool.invalidate(list(pool._by_hash))

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not condition():
            assert time.monotonic() < deadline, "no progress"
            self.engine.step(patience_s=0.01)


@contextmanager
def decoding(folder: Path, kv_dtype: str, shares: bool) -> Iterator[Decoding]:
    asked = argparse.Namespace(
        shape="random-300m",
        quantization="fp8",
        kv_dtype=kv_dtype,
        device="cuda",
        prompt_tokens=PROMPT + 64,
        max_batch_tokens=CHUNK,
    )
    context = multiprocessing.get_context("spawn")
    is_ready, is_over = context.Event(), context.Event()
    prompts_at = f"ipc://{folder}/prompts.sock"
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    if torch.cuda.device_count() > 1 and before is None:
        os.environ["CUDA_VISIBLE_DEVICES"] = "1"
    process = context.Process(target=compute_prompts, args=(asked, prompts_at, is_ready, is_over))
    process.start()
    if before is None:
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    sizes = Sizes(4, PROMPT + 128, CHUNK, 8 * (PROMPT + 128), 1, 1 << 26)
    try:
        with make_engine(asked, sizes, torch.device("cuda")) as engine:
            assert is_ready.wait(START_SECONDS)
            copies = cache_copies(engine, shares)

            def deliver(event: Any) -> None:
                engine.core.prompt_event(event)
                engine.wake()

            greeting = Greeting("engine-0", cache_format(engine))
            sources = PromptSources([Address(prompts_at)], greeting, copies, deliver, 600.0)
            both = Decoding(engine, sources, process)
            try:
                both.until(lambda: sources.num_connected == 1)
                engine.core.scheduler.fetches.connect(sources, copies, CHUNK, 60.0)
                yield both
            finally:
                sources.close()
    finally:
        is_over.set()
        process.join(20)
        process.kill()


@pytest.mark.parametrize("shares", [True, False], ids=["gpu to gpu", "bytes"])
@pytest.mark.parametrize("kv_dtype", ["auto", "fp8"])
def test_tokens_are_bit_for_bit_those_of_one_engine(tmp_path: Path, kv_dtype: str, shares: bool) -> None:
    prompts = random_prompts(np.random.default_rng(3), 16_384, [PROMPT] * NUM_PROMPTS)
    with decoding(tmp_path, kv_dtype, shares) as both:
        fetches = both.engine.core.scheduler.fetches
        assert both.sources.is_shared is shares
        apart = [both.answers([prompt])[0] for prompt in prompts]
        assert fetches.counters.fetched == NUM_PROMPTS
        assert not fetches.counters.fallbacks
        both.forget()
        fetches._min_tokens = 1 << 30
        assert apart == [both.answers([prompt])[0] for prompt in prompts]
        assert fetches.counters.fetched == NUM_PROMPTS
        # Several at once, beside rows that decode: every request ends, and nothing stays held.
        both.forget()
        fetches._min_tokens = CHUNK
        assert all(len(tokens) == 8 for tokens in both.answers(prompts))
        assert both.engine.core.scheduler.pool.num_held == 0


def test_a_process_that_is_killed_while_its_blocks_are_read_leaves_the_rest_to_the_engine(
    tmp_path: Path,
) -> None:
    prompts = random_prompts(np.random.default_rng(4), 16_384, [PROMPT] * 4)
    with decoding(tmp_path, "auto", shares=True) as both:
        fetches = both.engine.core.scheduler.fetches
        names = [both.engine.submit(prompt, 8) for prompt in prompts]
        both.until(lambda: fetches.counters.fetched_tokens > 0)
        os.kill(both.process.pid, signal.SIGKILL)
        counts = dict.fromkeys(names, 0)
        for chunks in both.engine.drain():
            for chunk in chunks:
                counts[chunk.request_id] += len(chunk.token_ids)
        assert set(counts.values()) == {8}
        assert fetches.counters.fetched + fetches.counters.fallbacks.get("lost", 0) == len(prompts)
        both.engine.core.check_integrity()
        assert both.engine.core.scheduler.pool.num_held == 0
        torch.cuda.synchronize()
