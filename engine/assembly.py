"""Assembles a serving engine: model, KV cache, adapter pool and loader, runner, scheduler, core.

Chooses the device and the sizes from the settings, and logs what takes time. Imported only once there is a
model to load: it imports torch, and kernels only where there is a GPU to run them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import structlog
import torch

from engine.core import EngineCore
from engine.device.cache_copies import HostCacheCopies
from engine.device.capabilities import device_kind, refusal
from engine.device.memory import SLOTS_ON_CPU, SLOTS_ON_GPU
from engine.device_parts import BLOCK_SIZE, Drafting, Sizes, cpu_parts, gpu_parts, kv_dtype_of
from engine.environment import EngineEnvironment
from engine.grammar.admission import GrammarAdmission
from engine.grammar.compiler import GrammarCompiler
from engine.kv_cache import BlockPool
from engine.lora.draft_adapters import DraftAdapter, DraftAdapterChoice, NotedDraftAdapters, decode_note
from engine.lora.fetching import ArtifactFetcher
from engine.lora.slots import NO_SLOT, SlotTable
from engine.model.cache import KVCache
from engine.model.collectives import ShardGroup
from engine.model.config import ModelConfig, load_config
from engine.model.loading import load_model
from engine.model.model import Model
from engine.parallel.leader import Leader
from engine.prefill.copies import CacheCopies
from engine.prefill.messages import CacheFormat
from engine.prefill_setup import check_prefill, set_up_prefill
from engine.protocol import EngineInfo
from engine.scheduling.byte_floor import ByteFloor
from engine.scheduling.scheduler import Scheduler
from engine.server import EngineServer
from engine.settings import DeviceSettings, EngineSettings
from engine.speculation.mixed_drafter import MixedDrafter
from engine.vocabulary import Vocabulary
from engine.work_beside import WorkBeside
from kernels.timing import copy_bandwidth

log = structlog.get_logger(__name__)

PackDrafter = Callable[[Path, str], DraftAdapter]
"""Packs the draft adapter in a folder for the base with this digest. Raises ValueError, OSError."""

COPIED_BYTES = 1 << 30
"""Measures how fast a GPU's memory copies: more than any cache holds, and takes milliseconds."""


def build_engine(
    settings: EngineSettings,
    device_settings: DeviceSettings,
    server: EngineServer,
    build: str,
    fetcher: ArtifactFetcher | None = None,
    pack_drafter: PackDrafter | None = None,
) -> tuple[EngineCore, EngineInfo]:
    """Returns the core around a loaded model, and the information that clients receive. `fetcher` brings
    packed adapters to `artifacts_dir`; None: they are all there. `pack_drafter` packs the draft adapter of
    the settings into it.

    Raises: ValueError when there is no such device, the base or the draft adapter cannot be served there, or
    sizes do not fit together; OSError.
    """
    assert settings.base is not None
    torch.set_num_threads(device_settings.threads)
    device = _device(device_settings)
    check_prefill(settings.prefill, device_settings.tensor_parallel)
    whole = load_config(settings.base)
    vocabulary = Vocabulary.load(settings.base)
    leader = _leader(settings, device_settings, device)
    if leader is not None:
        leader.on_lost(server.fail)
    bandwidth = _bandwidth(device_settings, device)  # while the memory is empty
    beside = WorkBeside(settings.base, settings.state_dir, whole)
    model = _load(settings, device_settings, device, None if leader is None else leader.group)
    config = model.config
    default_slots = SLOTS_ON_GPU if device.type == "cuda" else SLOTS_ON_CPU
    sizes = Sizes(
        _context_length(settings, config),
        settings.max_rows,
        settings.max_batch_tokens,
        device_settings.num_slots or default_slots,
    )
    limits = settings.limits(sizes.context_length, config.vocab_size)
    drafting = _drafting(settings, beside.base_digest, config.vocab_size, pack_drafter)
    make_parts = gpu_parts if device.type == "cuda" else cpu_parts
    parts = make_parts(model, sizes, settings, device_settings, server, beside, leader, drafting)
    kv_token_bytes = KVCache.block_bytes(config, 1, kv_dtype_of(model, device_settings))
    scheduler = Scheduler(
        limits=limits,
        pool=BlockPool(parts.num_blocks, BLOCK_SIZE),
        slots=SlotTable(sizes.num_slots, parts.loader.start_load, parts.loader, fetcher),
        eos_ids=config.eos_ids,
        token_bytes=vocabulary.token_bytes,
        environment=EngineEnvironment(server.engine_id, server.incarnation),
        floor=ByteFloor(model.weight_bytes, model.head_bytes, kv_token_bytes, parts.memory.slot_bytes),
        drafter=_drafter(settings),
    )
    noted = {} if drafting.noted is None else drafting.noted  # which fills as adapters are loaded
    scheduler.draft_adapters.choice = DraftAdapterChoice(drafting.base, noted)
    info = EngineInfo(
        engine_id=server.engine_id,
        incarnation=server.incarnation,
        base=settings.base_name,
        base_digest=beside.base_digest(),
        quantization=model.quantization,
        device=str(model.device),
        context_length=sizes.context_length,
        max_prompt_tokens=sizes.context_length - 1,
        vocab_size=config.vocab_size,
        build=build,
        sliding_window=config.sliding_window if _is_clamped(sizes, config) else None,
        tensor_parallel=device_settings.tensor_parallel,
        role="prefill" if settings.prefill.endpoint else "",
    )
    if fetcher is not None:
        fetcher.start(partial(server.adapter_loaded, NO_SLOT))
        server.at_close(fetcher.close)
    memory = replace(parts.memory, bandwidth=bandwidth)
    grammars = _grammars(beside, config, server, device_settings.mask_threads)
    core = EngineCore(scheduler, parts.runner, parts.gauges, memory, grammars, parts.captures)
    if settings.prefill.endpoint or settings.prefill.sources:
        cache_format = CacheFormat.of(info, parts.kv.layers.shape, str(parts.kv.layers.dtype))
        set_up_prefill(core, settings.prefill, cache_format, _cache_copies(parts.kv), server)
    return core, info


def _cache_copies(kv: KVCache) -> CacheCopies:
    if kv.layers.is_cuda:
        from engine.device.gpu_cache_copies import DeviceCacheCopies

        return DeviceCacheCopies(kv)
    return HostCacheCopies(kv)


def _grammars(
    beside: WorkBeside, config: ModelConfig, server: EngineServer, mask_threads: int
) -> GrammarAdmission | None:
    """Returns None, and logs why, when grammars cannot be followed with the base's tokenizer."""
    try:
        tokenizer = beside.tokenizer()
    except (ValueError, OSError) as error:
        log.warning("grammars are not supported", reason=str(error))
        return None
    return GrammarAdmission(
        GrammarCompiler(tokenizer, config.eos_ids, server.wake, mask_threads=mask_threads)
    )


def _drafting(
    settings: EngineSettings, base: Callable[[], str], vocab_size: int, pack_drafter: PackDrafter | None
) -> Drafting:
    """Returns the engine's draft adapters. `base` returns the base's digest, once it is known. Raises
    ValueError where the one that is configured cannot be served.
    """
    scheduling = settings.scheduling
    if not scheduling.speculation:
        return Drafting()
    found = None
    if scheduling.packed_drafter is not None:
        note = scheduling.packed_drafter.encode()
        found = decode_note(note, "ROOTSTOCK_ENGINE_PACKED_DRAFTER", vocab_size)
    if scheduling.drafter is not None:
        if pack_drafter is None:
            raise ValueError(
                f"ROOTSTOCK_ENGINE_DRAFTER is {scheduling.drafter}, which must be packed: start the engine "
                "by `rootstock serve-engine`"
            )
        found = pack_drafter(scheduling.drafter, base())
        log.info("draft adapter packed", digest=found.ref.digest, num_ahead=found.num_ahead)
    return Drafting(found, NotedDraftAdapters(settings.artifacts_dir, vocab_size))


def _drafter(settings: EngineSettings) -> MixedDrafter | None:
    """Returns what proposes drafts, if anything does."""
    return MixedDrafter(time.monotonic) if settings.scheduling.speculation else None


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


def _leader(settings: EngineSettings, device_settings: DeviceSettings, device: torch.device) -> Leader | None:
    """Starts the other ranks of a tensor-parallel engine. Raises ValueError where it cannot be divided."""
    size = device_settings.tensor_parallel
    if size == 1:
        return None
    assert settings.base is not None
    return Leader(
        load_config(settings.base),
        _rank_devices(device, size),
        settings.base,
        device_settings.quantization,
        settings.artifacts_dir,
        device_settings.threads,
        signing=settings.signing,
    )


def _rank_devices(device: torch.device, size: int) -> list[str]:
    """Returns each rank's device: GPUs from the first on. Raises ValueError when there are too few."""
    if device.type == "cpu":
        return ["cpu"] * size
    found = torch.cuda.device_count()
    if found < size:
        raise ValueError(
            f"tensor_parallel: {size} GPUs are needed, this process sees {found}; see CUDA_VISIBLE_DEVICES"
        )
    return [f"cuda:{rank}" for rank in range(size)]


def _load(
    settings: EngineSettings,
    device_settings: DeviceSettings,
    device: torch.device,
    group: ShardGroup | None,
) -> Model:
    assert settings.base is not None
    began = time.monotonic()
    quantization = device_settings.quantization
    log.info("loading weights", base=settings.base_name, quantization=quantization, device=str(device))
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = load_model(settings.base, quantization, dtype, device, group)
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


def _is_clamped(sizes: Sizes, config: ModelConfig) -> bool:
    """Returns whether the sliding window bounds the context, and no setting below it."""
    return config.is_clamped and sizes.context_length == config.sliding_window
