"""A whole engine on the device runner, without its process: pool, loader, graphs, overlap, as it serves."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from engine.core import EngineCore
from engine.device.gpu_runner import DeviceRunner
from engine.device.runner_options import BatchLimits, CacheLayout, RunnerOptions
from engine.environment import EngineEnvironment
from engine.kv_cache import BlockPool
from engine.lora.device_pool import DevicePool
from engine.lora.draft_adapters import DraftAdapterChoice
from engine.lora.loader import AdapterLoader
from engine.lora.slots import SlotTable
from engine.model.model import Model
from engine.protocol import Submit
from engine.scheduling.drafter import Drafter
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.validation import EngineLimits
from tests.engine.runner.rig import Answer, Run


@dataclass
class DeviceEngine:
    """Call `run` as often as you like; state (cache, slots, graphs) stays between runs."""

    core: EngineCore
    runner: DeviceRunner
    pool: DevicePool
    rejected: dict[str, str] = field(default_factory=dict)

    def run(self, submits: Iterable[Submit], *, every: int = 0) -> Run:
        """To the end; with `every`, a request is submitted only that many steps after the one before."""
        waiting = list(submits)
        result = Run({}, {}, self.core)
        steps = 0
        deadline = time.monotonic() + 100
        while waiting or self.core.has_work or self.core.scheduler.has_requests:
            assert time.monotonic() < deadline, "no progress"
            while waiting and (not every or steps % every == 0 or not self.core.has_work):
                assert self.core.submit(waiting.pop(0)) is None
                if every:
                    break
            if not self.core.has_work:
                time.sleep(0.0005)  # adapters are on their way
                continue
            outputs = self.core.step()
            steps += 1
            self.rejected |= {rejected.request_id: rejected.message for rejected in outputs.rejected}
            for found in outputs.scores:
                result.scores.setdefault(found.request_id, []).extend(found.logprobs)
            for chunk in outputs.chunks:
                answer = result.answers.setdefault((chunk.request_id, chunk.index), Answer())
                answer.token_ids += chunk.token_ids
                answer.logprobs += chunk.logprobs or []
                answer.finish_reason = chunk.finish_reason
            result.usage |= {finished.request_id: event for finished, event in outputs.finished}
        self.core.check_integrity()
        self.pool.check_integrity()
        return result


@contextmanager
def device_engine(
    model: Model,
    artifacts: Path,
    *,
    num_blocks: int = 400,
    block_size: int = 16,
    max_rows: int = 16,
    max_batch_tokens: int = 256,
    num_slots: int = 12,
    adapter_bytes: int = 64 << 20,
    context_length: int = 256,
    kv_dtype: torch.dtype | None = None,
    drafter: Drafter | None = None,
    draft_adapters: DraftAdapterChoice | None = None,
    postpones: bool = False,
    **options: Any,
) -> Iterator[DeviceEngine]:
    """`options` are `RunnerOptions`. With `postpones` it begins with few graphs, and captures the others."""
    config = model.config
    pool = DevicePool(config, num_slots, adapter_bytes, adapter_bytes, model.device)
    core: EngineCore

    def on_done(slot: int, digest: str, error: str | None) -> None:
        core.adapter_loaded(slot, digest, error)

    loader: AdapterLoader[Any] = AdapterLoader(artifacts, pool, on_done)
    cache = CacheLayout(num_blocks, block_size, kv_dtype)
    limits = BatchLimits(max_rows, context_length, max_batch_tokens)
    runner = DeviceRunner(model, pool, cache, limits, RunnerOptions(**options))
    runner.capture(postpones=postpones)
    scheduler = Scheduler(
        EngineLimits(context_length, config.vocab_size, max_batch_tokens, max_rows),
        BlockPool(num_blocks, block_size),
        SlotTable(num_slots, loader.start_load, loader),
        config.eos_ids,
        [b"x"] * config.vocab_size,
        EngineEnvironment("engine-0", "test", draw_seed=lambda: 7),
        drafter=drafter,
    )
    if draft_adapters is not None:
        scheduler.draft_adapters.choice = draft_adapters
    core = EngineCore(scheduler, runner, captures=runner if postpones else None)
    try:
        yield DeviceEngine(core, runner, pool)
    finally:
        torch.cuda.synchronize()
        loader.close()
        pool.close()
