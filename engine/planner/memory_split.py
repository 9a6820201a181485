"""Splits a GPU's memory as an engine does at its start: weights, scratch, adapters, keys and values."""

from __future__ import annotations

from dataclasses import dataclass

from engine.device.memory import MemoryRequest, plan_gpu
from engine.device.memory import adapter_bytes as typical_adapter_bytes
from engine.model.config import ModelConfig
from engine.planner.byte_counts import adapter_bytes, head_bytes, kv_token_bytes, linear_bytes
from engine.planner.errors import InvalidPlan
from engine.planner.hardware import Gpu
from engine.planner.workload import AdapterLoad, EngineLimits

BLOCK_TOKENS = 16
CONTEXT_BYTES = 512 << 20
"""What the driver and loaded libraries take: assumed, it differs by release."""


@dataclass(frozen=True, slots=True)
class MemorySplit:
    """Bytes on each GPU of a replica, and how much fits."""

    total_bytes: int
    weight_bytes: int
    """And the driver's."""
    scratch_bytes: int
    adapter_pool_bytes: int
    kv_bytes: int
    adapter_bytes: int
    """Of one adapter."""
    resident_adapters: int
    """Adapters that fit, at most one a slot."""
    host_adapters: int
    """Adapters that host memory caches."""
    kv_tokens: int


def split_memory(
    config: ModelConfig,
    quantization: str,
    kv_dtype: str,
    gpu: Gpu,
    tensor_parallel: int,
    limits: EngineLimits,
    adapters: AdapterLoad,
) -> MemorySplit:
    """Returns how an engine divides each GPU's memory. Raises InvalidPlan when the model does not fit."""
    shared = linear_bytes(config, quantization) + head_bytes(config)
    embedding = 0 if config.tie_embeddings else head_bytes(config)
    used = int((shared + embedding) / tensor_parallel) + CONTEXT_BYTES
    scratch = scratch_bytes(config, limits)
    block_bytes = BLOCK_TOKENS * kv_token_bytes(config, kv_dtype) // tensor_parallel
    one = adapter_bytes(config, adapters.rank, adapters.dtype) // tensor_parallel
    request = MemoryRequest(limits.num_slots if adapters.count else 0, None, None, None, None)
    try:
        plan = plan_gpu(
            request,
            budget_bytes=int(limits.memory_share * gpu.memory_bytes),
            used_bytes=used,
            scratch_bytes=scratch,
            block_bytes=block_bytes,
            useful_blocks=limits.max_rows * -(-config.max_position // BLOCK_TOKENS),
            typical_adapter_bytes=typical_adapter_bytes(config) // tensor_parallel,
            host_bytes=limits.host_memory_bytes,
        )
    except ValueError as error:
        raise InvalidPlan(
            f"{error}; or pass more GPUs a replica (--tensor-parallel) or a smaller --quantization"
        ) from None
    return MemorySplit(
        total_bytes=gpu.memory_bytes,
        weight_bytes=used,
        scratch_bytes=scratch,
        adapter_pool_bytes=plan.adapter_bytes,
        kv_bytes=plan.kv_bytes,
        adapter_bytes=one,
        resident_adapters=min(limits.num_slots, plan.adapter_bytes // one) if adapters.count else 0,
        host_adapters=plan.adapter_cache_bytes // one if adapters.count else 0,
        kv_tokens=(plan.num_blocks - 1) * BLOCK_TOKENS,
    )


def scratch_bytes(config: ModelConfig, limits: EngineLimits) -> int:
    """Returns what steps take besides, as `DeviceRunner.scratch_bytes` does, which loads torch: a test
    compares the two.
    """
    tokens = max(limits.max_batch_tokens, limits.max_rows)
    outputs = sum(out_features for out_features, _ in config.linear_shapes.values())
    activations = tokens * (2 * outputs + 3 * (4 * config.hidden_size + config.intermediate_size))
    return activations + 3 * 4 * limits.max_rows * config.vocab_size + (3 << 30)
