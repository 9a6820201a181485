"""Builds what differs between engines on a CPU and on a GPU: runner, adapter pool and loader, memory.

Imported only once there is a model to load; kernels only where there is a GPU to run them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog
import torch

from engine.core import Captures, Runner
from engine.device.capabilities import host_memory
from engine.device.cpu_runner import ModelRunner
from engine.device.memory import MemoryPlan, MemoryRequest, adapter_bytes, plan_cpu, plan_gpu
from engine.device.runner_options import BatchLimits, CacheLayout, RunnerOptions
from engine.lora.draft_adapters import DraftAdapter, NotedDraftAdapters
from engine.lora.loader import NUM_READERS_ON_GPU, AdapterLoader, OnDone
from engine.lora.pool import AdapterPool
from engine.lora.signatures import AdapterVerifier
from engine.model.cache import KVCache
from engine.model.model import Model
from engine.model.shards import WHOLE
from engine.outputs import DeviceGauges, DeviceMemory
from engine.parallel.leader import Leader
from engine.parallel.messages import Begin, DeviceSizes
from engine.parallel.runner import ParallelLoader
from engine.server import EngineServer
from engine.settings import DeviceSettings, EngineSettings

if TYPE_CHECKING:
    from engine.device.gpu_runner import DeviceRunner
    from engine.work_beside import WorkBeside

log = structlog.get_logger(__name__)

BLOCK_SIZE = 16
PROGRESS_SECONDS = 2.0
"""Between two log lines on a long operation."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes that both kinds of engine share."""

    context_length: int
    max_rows: int
    max_batch_tokens: int
    num_slots: int


@dataclass(frozen=True, slots=True)
class Drafting:
    """The draft adapters of an engine."""

    base: DraftAdapter | None = None
    """The one that the operator configured."""
    noted: NotedDraftAdapters | None = None
    """Adapters' own; None: the engine does not speculate."""

    @property
    def trusted(self) -> str:
        """The digest that needs no signature; empty: none."""
        return "" if self.base is None else self.base.ref.digest


NO_DRAFTING = Drafting()


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that differ between CPU and GPU."""

    runner: Runner
    kv: KVCache
    """The keys and values of this process's part of the model."""
    loader: AdapterLoader[Any] | ParallelLoader
    num_blocks: int
    gauges: Callable[[], DeviceGauges]
    memory: DeviceMemory
    captures: Captures | None = None


def cpu_parts(
    model: Model,
    sizes: Sizes,
    settings: EngineSettings,
    device_settings: DeviceSettings,
    server: EngineServer,
    beside: WorkBeside,
    leader: Leader | None = None,
    drafting: Drafting = NO_DRAFTING,
) -> Parts:
    beside.begin_tokenizer()
    plan = plan_cpu(
        _memory_request(sizes, device_settings),
        block_bytes=KVCache.block_bytes(model.config, BLOCK_SIZE, model.dtype),
        useful_blocks=_useful_blocks(sizes),
    )
    _log_plan(plan, model.dtype)
    whole, shard = (model.config, WHOLE) if leader is None else (leader.config, leader.group.shard)
    pool = AdapterPool(whole, sizes.num_slots, device=model.device, dtype=model.dtype, shard=shard)

    if leader is not None:
        cache = (plan.num_blocks, BLOCK_SIZE)
        row_sizes = sizes.max_rows, sizes.context_length, sizes.num_slots
        leader.begin(Begin(*cache, *row_sizes, trusted=drafting.trusted))
    local = ModelRunner(model, pool, plan.num_blocks, BLOCK_SIZE, sizes.max_rows, sizes.context_length)
    digest = beside.base_digest()
    verifier = _verifier(settings, digest, drafting)

    def make_loader(on_done: OnDone) -> AdapterLoader[Any]:
        return AdapterLoader(
            settings.artifacts_dir, pool, on_done, digest, verifier=verifier, draft_adapters=drafting.noted
        )

    runner, loader = _with_ranks(local, make_loader, server, leader)

    def gauges() -> DeviceGauges:
        return DeviceGauges(
            device=str(model.device),
            quantization=model.quantization,
            kv_dtype=_name(model.dtype),
            adapter_bytes_used=sum(pool.slot_bytes),
            adapter_load_seconds=loader.load_seconds,
            **_signatures(verifier),
        )

    memory = DeviceMemory({"kv": plan.kv_bytes}, pool.slot_bytes)
    return Parts(runner, local.kv, loader, plan.num_blocks, gauges, memory)


def gpu_parts(
    model: Model,
    sizes: Sizes,
    settings: EngineSettings,
    device_settings: DeviceSettings,
    server: EngineServer,
    beside: WorkBeside,
    leader: Leader | None = None,
    drafting: Drafting = NO_DRAFTING,
) -> Parts:
    from engine.device.gpu_runner import DeviceRunner
    from engine.lora.device_pool import DevicePool

    config = model.config
    whole, shard = (config, WHOLE) if leader is None else (leader.config, leader.group.shard)
    limits = BatchLimits(sizes.max_rows, sizes.context_length, sizes.max_batch_tokens)
    kv_dtype = kv_dtype_of(model, device_settings)
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
        typical_adapter_bytes=adapter_bytes(whole) // shard.size,
        host_bytes=host_memory() // device_settings.tensor_parallel,
    )
    _log_plan(plan, kv_dtype)
    adapters = (plan.adapter_bytes, plan.adapter_cache_bytes)
    pool = DevicePool(whole, sizes.num_slots, *adapters, device=model.device, shard=shard)

    options = _runner_options(device_settings)
    if leader is not None:
        leader.begin(_begin(sizes, plan, device_settings, drafting.trusted))
    local = DeviceRunner(model, pool, CacheLayout(plan.num_blocks, BLOCK_SIZE, kv_dtype), limits, options)
    beside.begin_tokenizer()  # by now the threads that find pages run
    # Not the graphs of ranks, which would have to capture at the same time; nor where the size of a step must
    # not change a bit.
    postpones = leader is None and not options.batch_invariant
    _capture(local, model.device, options, postpones)
    digest = beside.base_digest()  # may take longest: last
    verifier = _verifier(settings, digest, drafting)

    def make_loader(on_done: OnDone) -> AdapterLoader[Any]:
        options = NUM_READERS_ON_GPU, verifier, drafting.noted
        return AdapterLoader(settings.artifacts_dir, pool, on_done, digest, *options)

    runner, loader = _with_ranks(local, make_loader, server, leader)

    def gauges() -> DeviceGauges:
        return DeviceGauges(
            device=str(model.device),
            quantization=model.quantization,
            kv_dtype=_name(kv_dtype),
            adapter_bytes_total=pool.capacity,
            adapter_bytes_used=pool.num_bytes_used,
            adapter_load_seconds=loader.load_seconds,
            **_signatures(verifier),
        )

    shares = {"weights": used_bytes, "scratch": scratch_bytes, "kv": plan.kv_bytes}
    shares["rest"] = max(0, total_bytes - sum(shares.values()) - plan.adapter_bytes)
    captures = local if local.num_postponed else None
    return Parts(runner, local.kv, loader, plan.num_blocks, gauges, DeviceMemory(shares), captures)


def _verifier(settings: EngineSettings, base: str, drafting: Drafting) -> AdapterVerifier | None:
    """Returns what verifies adapters' signatures; None where no key is known."""
    signing = settings.signing
    if not signing.public_keys:
        return None
    verifier = AdapterVerifier(signing.keys, base, requires_signature=signing.required)
    verifier.trust(drafting.trusted)
    return verifier


def _signatures(verifier: AdapterVerifier | None) -> dict[str, Any]:
    """Returns the gauges of signatures."""
    if verifier is None:
        return {}
    return {"signatures": verifier.counters, "refused_adapters": verifier.refusals()}


def _with_ranks(
    local: Runner,
    make_loader: Callable[[OnDone], AdapterLoader[Any]],
    server: EngineServer,
    leader: Leader | None,
) -> tuple[Runner, AdapterLoader[Any] | ParallelLoader]:
    """Returns the runner and the loader, which involve the other ranks where there are any."""
    if leader is None:
        return local, make_loader(server.adapter_loaded)
    loader = leader.loader(server.adapter_loaded, make_loader)
    return leader.runner(local), loader


def _begin(sizes: Sizes, plan: MemoryPlan, settings: DeviceSettings, trusted: str) -> Begin:
    """Returns what the other ranks on GPUs allocate."""
    device = DeviceSizes(
        max_batch_tokens=sizes.max_batch_tokens,
        has_fp8_cache=settings.kv_dtype == "fp8",
        adapter_bytes=plan.adapter_bytes,
        adapter_cache_bytes=plan.adapter_cache_bytes,
        cuda_graphs=settings.cuda_graphs,
        max_graph_rows=settings.max_graph_rows,
        batch_invariant=settings.batch_invariant,
    )
    cache = (plan.num_blocks, BLOCK_SIZE)
    return Begin(*cache, sizes.max_rows, sizes.context_length, sizes.num_slots, device, trusted)


def _runner_options(settings: DeviceSettings) -> RunnerOptions:
    return RunnerOptions(
        cuda_graphs=settings.cuda_graphs,
        max_graph_rows=settings.max_graph_rows,
        batch_invariant=settings.batch_invariant,
        mask_threads=settings.mask_threads,
    )


def _capture(runner: DeviceRunner, device: torch.device, options: RunnerOptions, postpones: bool) -> None:
    """Captures graphs of steps, all or the first few, and logs how long that took and what memory it left."""
    began = time.monotonic()
    runner.capture(_Progress("capturing graphs"), postpones=postpones)
    free_bytes, _ = torch.cuda.mem_get_info(device)
    log.info(
        "steps prepared",
        seconds=round(time.monotonic() - began, 2),
        graphs=options.cuda_graphs,
        postponed=runner.num_postponed,
        mib_free=free_bytes >> 20,
    )


def kv_dtype_of(model: Model, settings: DeviceSettings) -> torch.dtype:
    return torch.float8_e4m3fn if settings.kv_dtype == "fp8" else model.dtype


def _memory_request(sizes: Sizes, settings: DeviceSettings) -> MemoryRequest:
    return MemoryRequest(
        num_slots=sizes.num_slots,
        num_blocks=settings.num_blocks,
        kv_bytes=settings.kv_bytes,
        adapter_bytes=settings.adapter_bytes,
        adapter_cache_bytes=settings.adapter_cache_bytes,
    )


def _useful_blocks(sizes: Sizes) -> int:
    """Returns the blocks that all rows take at full length."""
    return sizes.max_rows * -(-sizes.context_length // BLOCK_SIZE)


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
