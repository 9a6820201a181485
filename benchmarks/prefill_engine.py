"""Runs the engine that computes prompts in `benchmarks.prefill_apart`, in a process of its own."""

from __future__ import annotations

import argparse
import sys
from multiprocessing.synchronize import Event
from typing import Any

import torch

from benchmarks.in_process import InProcessEngine, Sizes, pick_device
from benchmarks.random_adapters import AdapterLibrary
from benchmarks.random_base import random_base
from benchmarks.shapes import shape
from engine.device.cache_copies import HostCacheCopies
from engine.gauges import EngineStats
from engine.main import THREAD_SWITCH_SECONDS
from engine.model.cache import KVCache
from engine.prefill.copies import CacheCopies
from engine.prefill.exporting import PromptExporter
from engine.prefill.messages import CacheFormat, SharedMemory
from engine.prefill.sender import PromptSender

ROWS = 4
"""Prompts that run at once."""


def make_engine(asked: argparse.Namespace, sizes: Sizes, device: torch.device) -> InProcessEngine:
    """Returns an engine on the random base; both processes draw the same weights."""
    config = shape(asked.shape)
    quantization, kv_dtype = asked.quantization, asked.kv_dtype
    if device.type == "cpu":
        quantization, kv_dtype = "none", "auto"
    model = random_base(config, quantization, device)
    own = Sizes(
        sizes.max_rows,
        sizes.max_len,
        max(sizes.max_batch_tokens, sizes.max_rows),
        sizes.kv_tokens,
        sizes.num_slots,
        sizes.adapter_bytes,
        kv_dtype,
    )
    return InProcessEngine(model, AdapterLibrary(config), own)


def kv_of(engine: InProcessEngine) -> KVCache:
    runner: Any = engine.core.runner
    kv: KVCache = runner.kv
    return kv


def cache_copies(engine: InProcessEngine, shares: bool = True) -> Any:
    """Returns the copies of an engine's cache; without `shares`, host memory is between two GPUs."""
    kv = kv_of(engine)
    if not kv.layers.is_cuda:
        return HostCacheCopies(kv)
    from engine.device.gpu_cache_copies import DeviceCacheCopies, DeviceIncoming

    class ByteCopies(DeviceCacheCopies):
        def incoming(self, shared: SharedMemory | None) -> DeviceIncoming:
            return super().incoming(None)

    return DeviceCacheCopies(kv) if shares else ByteCopies(kv)


def cache_format(engine: InProcessEngine) -> CacheFormat:
    layers = kv_of(engine).layers
    num_layers, _, _, num_kv_heads, block_size, head_dim = layers.shape
    return CacheFormat(
        "0" * 64, engine.model.quantization, str(layers.dtype), block_size, num_layers, num_kv_heads, head_dim
    )


def compute_prompts(asked: argparse.Namespace, prompts_at: str, is_ready: Event, is_over: Event) -> None:
    """Computes prompts until `is_over`."""
    torch.set_num_threads(1)
    sys.setswitchinterval(THREAD_SWITCH_SECONDS)
    device = pick_device(asked.device)
    max_len = asked.prompt_tokens + 64
    sizes = Sizes(ROWS, max_len, asked.max_batch_tokens, ROWS * max_len, 1, 1 << 28)
    with make_engine(asked, sizes, device) as engine:
        core = engine.core
        copies: CacheCopies = cache_copies(engine)

        def deliver(event: Any) -> None:
            core.prompt_event(event)
            engine.wake()

        idle = EngineStats("prefill-0", "")
        sender = PromptSender(prompts_at, "prefill-0", cache_format(engine), copies, deliver, lambda: idle)
        core.exporter = PromptExporter(core.scheduler, sender)
        is_ready.set()
        while not is_over.is_set():
            engine.step(patience_s=0.2)
        sender.close()
