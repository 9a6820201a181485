"""Computes the least time a decode step can take: the bytes it reads, at the device's copy bandwidth.

    floor = (linears + output head + keys and values + adapters) / bandwidth

    linears            weights of all layers' seven linears: 2 bytes each (bf16), 1 (fp8, and int8), or
                       1/2 + 2/128 (int4: a bf16 scale for every 128 weights)
    output head        vocabulary x hidden, bf16
    keys and values    batch x mean context x 2 x KV heads x head size x layers, 2 bytes each or 1 (fp8).
                       From step 1 to n after a prompt of p tokens the mean context is p + (n + 1) / 2
    adapters           of every distinct adapter in the batch once: rank x (in + out) of each module, 2 bytes
                       (bf16), or 1 and the fp32 scale of each rank row (fp8)
    bandwidth          of a device-to-device copy in the same run, bytes read plus bytes written
                       (`kernels.timing.copy_bandwidth`)

Activations, embeddings and logits are left out: under 2 % of the bytes at 256 rows. So is arithmetic, which
hides behind the bytes at all batches measured. The floor is a bound, not a promise:
`engine.planner.step_model` predicts how long a step takes.

Loads no torch.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.model.config import ModelConfig
from engine.planner.byte_counts import KV_BYTES as KV_BYTES
from engine.planner.byte_counts import WEIGHT_BYTES as WEIGHT_BYTES
from engine.planner.byte_counts import adapter_bytes as adapter_bytes
from engine.planner.byte_counts import head_bytes, kv_token_bytes, linear_bytes


def mean_context(prompt_len: int, num_steps: int) -> float:
    """Tokens attended to by a decode step, on average over the first `num_steps` after the prompt."""
    return prompt_len + (num_steps + 1) / 2


def step_bytes(
    config: ModelConfig,
    quantization: str,
    kv_dtype: str,
    batch: int,
    context: float,
    adapters: Iterable[int] = (),
) -> float:
    """What one decode step reads; `adapters` are the bytes of each distinct one."""
    return (
        linear_bytes(config, quantization)
        + head_bytes(config)
        + batch * context * kv_token_bytes(config, kv_dtype)
        + sum(adapters)
    )


def floor_ms(num_bytes: float, bandwidth: float) -> float:
    """`bandwidth` in bytes per second."""
    return 1e3 * num_bytes / bandwidth
