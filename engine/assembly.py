"""Assembles a serving engine: model, KV cache, adapter pool and loader, runner, scheduler, core.

Chooses the device and the sizes from the settings, and logs what takes time. Imported only once there is a
model to load: it imports torch, and kernels only where there is a GPU to run them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
import torch

from engine.core import EngineCore, Runner
from engine.device.capabilities import device_kind, host_memory, refusal
from engine.device.cpu_runner import ModelRunner
from engine.device.memory import (
    SLOTS_ON_CPU,
    SLOTS_ON_GPU,
    MemoryPlan,
    MemoryRequest,
    adapter_bytes,
    plan_cpu,
    plan_gpu,
)
from engine.device.runner_options import BatchLimits, CacheLayout, RunnerOptions
from engine.environment import EngineEnvironment
from engine.grammar.admission import GrammarAdmission
from engine.grammar.compiler import GrammarCompiler
from engine.grammar.tokenizer import load_tokenizer
from engine.kv_cache import BlockPool
from engine.lora.loader import AdapterLoader
from engine.lora.pool import AdapterPool
from engine.lora.slots import SlotTable
from engine.model.cache import KVCache
from engine.model.config import ModelConfig
from engine.model.loading import load_model
from engine.model.model import Model
from engine.model.weights import base_digest
from engine.outputs import DeviceGauges, DeviceMemory
from engine.protocol import EngineInfo
from engine.scheduling.byte_floor import ByteFloor
from engine.scheduling.scheduler import Scheduler
from engine.server import EngineServer
from engine.settings import DeviceSettings, EngineSettings
from engine.vocabulary import Vocabulary
from kernels.timing import copy_bandwidth

if TYPE_CHECKING:
    from engine.device.gpu_runner import DeviceRunner

log = structlog.get_logger(__name__)

BLOCK_SIZE = 16
NUM_READERS_ON_GPU = 4
"""Threads that read adapters from disk into host memory: one verifies about a gigabyte per second."""
COPIED_BYTES = 1 << 30
"""Measures how fast a GPU's memory copies: more than any cache holds, and takes milliseconds."""
PROGRESS_SECONDS = 2.0
"""Between two log lines on a long operation."""


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Sizes that both kinds of engine share."""

    context_length: int
    max_rows: int
    max_batch_tokens: int
    num_slots: int


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts that differ between CPU and GPU."""

    runner: Runner
    loader: AdapterLoader[Any]
    num_blocks: int
    gauges: Callable[[], DeviceGauges]
    memory: DeviceMemory


def build_engine(
    settings: EngineSettings, device_settings: DeviceSettings, server: EngineServer, build: str
) -> tuple[EngineCore, EngineInfo]:
    """Returns the core around a loaded model, and the information that clients receive.

    Raises: ValueError when there is no such device, the base cannot be served there, or sizes do not fit
    together; OSError.
    """
    assert settings.base is not None
    torch.set_num_threads(device_settings.threads)
    device = _device(device_settings)
    vocabulary = Vocabulary.load(settings.base)
    bandwidth = _bandwidth(device_settings, device)  # while the memory is empty
    with ThreadPoolExecutor(1, "base-digest") as executor:  # hashing takes as long as loading
        digest = executor.submit(base_digest, settings.base)
        model = _load(settings, device_settings, device)
        base = digest.result()
    config = model.config
    default_slots = SLOTS_ON_GPU if device.type == "cuda" else SLOTS_ON_CPU
    sizes = _Sizes(
        _context_length(settings, config),
        settings.max_rows,
        settings.max_batch_tokens,
        device_settings.num_slots or default_slots,
    )
    limits = settings.limits(sizes.context_length, config.vocab_size)
    construct = _gpu_parts if device.type == "cuda" else _cpu_parts
    parts = construct(model, sizes, settings, device_settings, server, base)
    kv_token_bytes = KVCache.block_bytes(config, 1, _kv_dtype(model, device_settings))
    scheduler = Scheduler(
        limits=limits,
        pool=BlockPool(parts.num_blocks, BLOCK_SIZE),
        slots=SlotTable(sizes.num_slots, parts.loader.start_load, parts.loader),
        eos_ids=config.eos_ids,
        token_bytes=vocabulary.token_bytes,
        environment=EngineEnvironment(server.engine_id, server.incarnation),
        floor=ByteFloor(model.weight_bytes, model.head_bytes, kv_token_bytes, parts.memory.slot_bytes),
    )
    info = EngineInfo(
        engine_id=server.engine_id,
        incarnation=server.incarnation,
        base=settings.base_name,
        base_digest=base,
        quantization=model.quantization,
        device=str(model.device),
        context_length=sizes.context_length,
        max_prompt_tokens=sizes.context_length - 1,
        vocab_size=config.vocab_size,
        build=build,
        sliding_window=config.sliding_window if _is_clamped(sizes, config) else None,
    )
    memory = replace(parts.memory, bandwidth=bandwidth)
    grammars = _grammars(settings.base, config, server, device_settings.mask_threads)
    return EngineCore(scheduler, parts.runner, parts.gauges, memory, grammars), info


# The two kinds of engine ------------------------------------------------------------------------------------


def _cpu_parts(
    model: Model,
    sizes: _Sizes,
    settings: EngineSettings,
    device_settings: DeviceSettings,
    server: EngineServer,
    base: str,
) -> _Parts:
    plan = plan_cpu(
        _memory_request(sizes, device_settings),
        block_bytes=KVCache.block_bytes(model.config, BLOCK_SIZE, model.dtype),
        useful_blocks=_useful_blocks(sizes),
    )
    _log_plan(plan, model.dtype)
    pool = AdapterPool(model.config, sizes.num_slots, device=model.device, dtype=model.dtype)
    loader: AdapterLoader[Any] = AdapterLoader(settings.artifacts_dir, pool, server.adapter_loaded, base)
    runner = ModelRunner(model, pool, plan.num_blocks, BLOCK_SIZE, sizes.max_rows, sizes.context_length)

    def gauges() -> DeviceGauges:
        return DeviceGauges(
            device=str(model.device),
            quantization=model.quantization,
            kv_dtype=_name(model.dtype),
            adapter_bytes_used=sum(pool.slot_bytes),
            adapter_load_seconds=loader.load_seconds,
        )

    memory = DeviceMemory({"kv": plan.kv_bytes}, pool.slot_bytes)
    return _Parts(runner, loader, plan.num_blocks, gauges, memory)


def _gpu_parts(
    model: Model,
    sizes: _Sizes,
    settings: EngineSettings,
    device_settings: DeviceSettings,
    server: EngineServer,
    base: str,
) -> _Parts:
    from engine.device.gpu_runner import DeviceRunner
    from engine.lora.device_pool import DevicePool

    config = model.config
    limits = BatchLimits(sizes.max_rows, sizes.context_length, sizes.max_batch_tokens)
    kv_dtype = _kv_dtype(model, device_settings)
    free_bytes, total_bytes = torch.cuda.mem_get_info(model.device)
    used_bytes = total_bytes - free_bytes
    scratch_bytes = DeviceRunner.scratch_bytes(config, limits)
    plan = plan_gpu(
        _memory_request(sizes, device_settings),
        budget_bytes=int(device_settings.memory_share * total_bytes),
        used_bytes=used_bytes,
        scratch_bytes=scratch_bytes,
        block_bytes=KVCache.block_bytes(config, BLOCK_SIZE, kv_dtype),
        useful_blocks=_useful_blocks(sizes),
        typical_adapter_bytes=adapter_bytes(config),
        host_bytes=host_memory(),
    )
    _log_plan(plan, kv_dtype)
    pool = DevicePool(
        config, sizes.num_slots, plan.adapter_bytes, plan.adapter_cache_bytes, device=model.device
    )
    loader = AdapterLoader(
        settings.artifacts_dir, pool, server.adapter_loaded, base, num_readers=NUM_READERS_ON_GPU
    )
    options = _runner_options(device_settings)
    runner = DeviceRunner(model, pool, CacheLayout(plan.num_blocks, BLOCK_SIZE, kv_dtype), limits, options)
    _capture(runner, model.device, options)

    def gauges() -> DeviceGauges:
        return DeviceGauges(
            device=str(model.device),
            quantization=model.quantization,
            kv_dtype=_name(kv_dtype),
            adapter_bytes_total=pool.capacity,
            adapter_bytes_used=pool.num_bytes_used,
            adapter_load_seconds=loader.load_seconds,
        )

    shares = {"weights": used_bytes, "scratch": scratch_bytes, "kv": plan.kv_bytes}
    shares["rest"] = max(0, total_bytes - sum(shares.values()) - plan.adapter_bytes)
    return _Parts(runner, loader, plan.num_blocks, gauges, DeviceMemory(shares))


def _runner_options(settings: DeviceSettings) -> RunnerOptions:
    return RunnerOptions(
        cuda_graphs=settings.cuda_graphs,
        max_graph_rows=settings.max_graph_rows,
        batch_invariant=settings.batch_invariant,
        mask_threads=settings.mask_threads,
    )


def _capture(runner: DeviceRunner, device: torch.device, options: RunnerOptions) -> None:
    """Captures the graphs of all steps, and logs how long that took and what memory it left."""
    began = time.monotonic()
    runner.capture(_Progress("capturing graphs"))
    free_bytes, _ = torch.cuda.mem_get_info(device)
    seconds = round(time.monotonic() - began, 2)
    log.info("steps prepared", seconds=seconds, graphs=options.cuda_graphs, mib_free=free_bytes >> 20)


def _grammars(
    base_dir: Path, config: ModelConfig, server: EngineServer, mask_threads: int
) -> GrammarAdmission | None:
    """Returns None, and logs why, when grammars cannot be followed with the base's tokenizer."""
    try:
        tokenizer = load_tokenizer(base_dir, config.eos_ids, config.vocab_size)
    except (ValueError, OSError) as error:
        log.warning("grammars are not supported", reason=str(error))
        return None
    return GrammarAdmission(
        GrammarCompiler(tokenizer, config.eos_ids, server.wake, mask_threads=mask_threads)
    )


# Choices ----------------------------------------------------------------------------------------------------


def _device(settings: DeviceSettings) -> torch.device:
    """Returns the device to run on. Raises ValueError when it is missing or lacks a requested feature."""
    kind = device_kind(settings.device)
    if kind == "cuda" and not torch.cuda.is_available():
        if settings.device == "cuda":
            raise ValueError(f"device is cuda, but this torch ({torch.__version__}) cannot use the GPU")
        kind = "cpu"
    reason = refusal(kind, settings.quantization, settings.kv_dtype)
    if reason is not None:
        raise ValueError(reason)
    return torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)


def _load(settings: EngineSettings, device_settings: DeviceSettings, device: torch.device) -> Model:
    assert settings.base is not None
    began = time.monotonic()
    quantization = device_settings.quantization
    log.info("loading weights", base=settings.base_name, quantization=quantization, device=str(device))
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = load_model(settings.base, quantization, dtype, device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()  # frees what only loading needed
    log.info(
        "weights loaded",
        architecture=model.config.architecture,
        layers=model.config.num_layers,
        device=str(model.device),
        seconds=round(time.monotonic() - began, 2),
    )
    return model


def _bandwidth(settings: DeviceSettings, device: torch.device) -> float:
    """Returns bytes per second as set, or as measured by a copy on a GPU; 0: not known."""
    if settings.memory_bandwidth is not None:
        return settings.memory_bandwidth
    if device.type != "cuda":
        return 0.0
    measured = copy_bandwidth(device, COPIED_BYTES)
    log.info("memory bandwidth measured", gigabytes_per_second=round(measured / 1e9))
    return measured


def _kv_dtype(model: Model, settings: DeviceSettings) -> torch.dtype:
    return torch.float8_e4m3fn if settings.kv_dtype == "fp8" else model.dtype


def _context_length(settings: EngineSettings, config: ModelConfig) -> int:
    bound = "of the base's sliding window" if config.is_clamped else "of the base"
    if settings.context_length is None:
        if config.is_clamped:
            log.warning(
                "context bounded by the sliding window",
                context_length=config.max_position,
                reason="layers of this base attend within a window, beyond which requests are refused",
            )
        return config.max_position
    if settings.context_length > config.max_position:
        raise ValueError(
            f"context_length: {settings.context_length} is more than the {config.max_position} tokens {bound}"
        )
    return settings.context_length


def _is_clamped(sizes: _Sizes, config: ModelConfig) -> bool:
    """Returns whether the sliding window bounds the context, and no setting below it."""
    return config.is_clamped and sizes.context_length == config.sliding_window


def _memory_request(sizes: _Sizes, settings: DeviceSettings) -> MemoryRequest:
    return MemoryRequest(
        num_slots=sizes.num_slots,
        num_blocks=settings.num_blocks,
        kv_bytes=settings.kv_bytes,
        adapter_bytes=settings.adapter_bytes,
        adapter_cache_bytes=settings.adapter_cache_bytes,
    )


def _useful_blocks(sizes: _Sizes) -> int:
    """Returns the blocks that all rows take at full length."""
    return sizes.max_rows * -(-sizes.context_length // BLOCK_SIZE)


# The log ----------------------------------------------------------------------------------------------------


class _Progress:
    """Logs progress now and then; called after every completed part."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._logged_at = time.monotonic()

    def __call__(self, done: int, of: int) -> None:
        now = time.monotonic()
        if done == of or now - self._logged_at > PROGRESS_SECONDS:
            self._logged_at = now
            log.info(self._what, done=done, of=of)


def _log_plan(plan: MemoryPlan, kv_dtype: torch.dtype) -> None:
    adapters = {}
    if plan.adapter_bytes:
        adapters = {
            "adapter_mebibytes": plan.adapter_bytes >> 20,
            "host_mebibytes": plan.adapter_cache_bytes >> 20,
        }
    log.info(
        "KV cache sized",
        blocks=plan.num_blocks,
        mebibytes=plan.kv_bytes >> 20,
        dtype=_name(kv_dtype),
        **adapters,
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
