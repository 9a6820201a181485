"""Plans how a device's memory is divided: weights, scratch, adapters, and keys and values from the rest.

Arithmetic on sizes in bytes, without devices or tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.model.config import ModelConfig

SLOTS_ON_GPU = 256
SLOTS_ON_CPU = 64
KV_BYTES_ON_CPU = 1 << 30

TYPICAL_RANK = 16
"""The default budget assumes adapters of this rank, on all modules, in 16 bits."""
HOST_SHARE = 0.125
"""Share of host memory for cached adapters: page-locked memory is unavailable to everything else."""


@dataclass(frozen=True, slots=True)
class MemoryRequest:
    """What the settings say; None where they leave it open."""

    num_slots: int
    num_blocks: int | None
    kv_bytes: int | None
    adapter_bytes: int | None
    adapter_cache_bytes: int | None


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Sizes in bytes of device memory; `adapter_cache_bytes` is host memory."""

    num_blocks: int
    """KV blocks, the null block included."""
    kv_bytes: int
    adapter_bytes: int
    adapter_cache_bytes: int


def adapter_bytes(config: ModelConfig, rank: int = TYPICAL_RANK) -> int:
    """Returns the size of an adapter on all modules, in 16 bits, without its fp32 scales."""
    return config.num_layers * 2 * rank * sum(sum(shape) for shape in config.linear_shapes.values())


def plan_gpu(
    request: MemoryRequest,
    *,
    budget_bytes: int,
    used_bytes: int,
    scratch_bytes: int,
    block_bytes: int,
    useful_blocks: int,
    typical_adapter_bytes: int,
    host_bytes: int,
) -> MemoryPlan:
    """Divides `budget_bytes`, of which `used_bytes` are taken, mostly by weights.

    `useful_blocks` bounds the cache: all rows at full length cannot use more. Raises ValueError when the
    least that an engine needs does not fit.
    """
    _check_kv_bytes(request, block_bytes)
    left = budget_bytes - used_bytes - scratch_bytes
    adapters = request.adapter_bytes
    if adapters is None:
        adapters = max(0, min(request.num_slots * typical_adapter_bytes, left // 4))
    left -= adapters
    if request.num_blocks is not None:
        num_blocks = request.num_blocks
    else:
        room = left if request.kv_bytes is None else request.kv_bytes
        num_blocks = min(max(0, room) // block_bytes, useful_blocks) + 1
    kv_bytes = num_blocks * block_bytes
    # The null block comes on top of the budget.
    if num_blocks < 2 or kv_bytes > left + block_bytes:
        raise ValueError(
            f"the GPU's memory does not suffice: the budget is {_gib(budget_bytes)}; "
            f"weights and other processes take {_gib(used_bytes)}, scratch {_gib(scratch_bytes)}, "
            f"adapters {_gib(adapters)}, keys and values {_gib(max(kv_bytes, 2 * block_bytes))}; "
            "change memory_share, adapter_bytes or kv_bytes"
        )
    cache = request.adapter_cache_bytes
    if cache is None:
        cache = min(adapters, int(HOST_SHARE * host_bytes))
    return MemoryPlan(num_blocks, kv_bytes, adapters, cache)


def plan_cpu(request: MemoryRequest, *, block_bytes: int, useful_blocks: int) -> MemoryPlan:
    """Plans a CPU's memory: adapters take memory as they are loaded, keys and values as set."""
    _check_kv_bytes(request, block_bytes)
    num_blocks = request.num_blocks
    if num_blocks is None:
        num_blocks = min((request.kv_bytes or KV_BYTES_ON_CPU) // block_bytes, useful_blocks) + 1
    return MemoryPlan(num_blocks, num_blocks * block_bytes, 0, 0)


def _check_kv_bytes(request: MemoryRequest, block_bytes: int) -> None:
    if request.kv_bytes is not None and request.kv_bytes < block_bytes:
        raise ValueError(f"kv_bytes: {request.kv_bytes} is less than one block of {block_bytes} bytes")


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"
