"""Predicts the seconds of an engine step on a GPU, from what the step computes.

    step = products + head + attention + adapters + overhead + all-reduces

    products     the linears: their bytes at the copy bandwidth, or their arithmetic where that takes longer;
                 near the crossing both count (a p-norm)
    head         the output head's bytes
    attention    decode: the bytes of keys and values; prefill: its arithmetic
    adapters     each distinct adapter's bytes once; outputs of linears read and written once more; a part
                 that grows with the largest rank, since the work on one adapter is not spread over the GPU
    overhead     launches and small kernels of each layer; sampling, by row
    all-reduces  two in each layer, where several GPUs share a model

`Constants` are fitted to the runs in benchmarks/results/h200 (`python -m benchmarks.step_model_fit` fits them
again and prints the errors); a test holds the prediction to every measured row. Unmeasured, so assumed: a
bf16 base computes at half the rate of an FP8 one; the constants are the same for other shapes and GPUs, by
their layers, bytes and operations; and several GPUs share all work evenly.

Every quantity may be a NumPy array, for many steps at once. Loads no torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from engine.model.config import ModelConfig
from engine.planner.byte_counts import (
    head_bytes,
    kv_token_bytes,
    linear_bytes,
    linear_weights,
    output_bytes,
)
from engine.planner.hardware import MEETING_SECONDS, Gpu, all_reduce_seconds


@dataclass(frozen=True, slots=True)
class Constants:
    """What the model's formula leaves open, fitted to measurements."""

    layer_us: float = 14.7
    """Launches and small kernels of a layer."""
    int4_layer_us: float = 10.5
    """What a layer of an INT4 base takes longer: its products begin when the kernels before have ended."""
    row_us: float = 2.34
    """Sampling and logits of a row that draws a token."""
    norm: float = 1.504
    """Exponent of the p-norm of bytes and arithmetic: the larger, the sharper the crossing."""
    fp8_efficiency: float = 0.569
    """Share of the GPU's peak that products reach; a bf16 base reaches the same share of half the peak."""
    int4_efficiency: float = 0.434
    """The same for an INT4 base, as a share of the FP8 peak."""
    kv_efficiency: float = 0.831
    """Share of the copy bandwidth at which decode reads bf16 keys and values."""
    kv_fp8_efficiency: float = 0.54
    attention_efficiency: float = 0.537
    """Share of the bf16 peak that the attention of prefill reaches."""
    adapter_layer_us: float = 5.71
    """Launches for adapters, by layer."""
    adapter_traffic: float = 2.53
    """How many times the outputs of adapted linears are read and written once more, in copies."""
    adapter_efficiency: float = 1.055
    """Of the copy bandwidth at which adapters are read: reading alone is faster than copying."""
    adapter_rank_us: float = 1.644
    """By layer and by rank of the largest adapter: how long the work on one adapter takes."""
    adapter_spread: float = 14.6
    """So many distinct adapters make half of that time show."""
    uneven_us: float = 54.0
    """By layer, what a step of traffic takes longer than one whose rows are all alike. Fitted to open-loop
    load; its cause is not isolated (adapters with few and with many rows take different kernels)."""


FITTED = Constants()


@dataclass(frozen=True, slots=True)
class StepWork:
    """What one step computes, or arrays of many steps."""

    rows: ArrayLike = 0
    """Rows that decode one token each."""
    context: ArrayLike = 0
    """Tokens that each of them attends to, on average."""
    prompt_tokens: ArrayLike = 0
    """Tokens of prompts that it computes."""
    prompt_context: ArrayLike = 0
    """Tokens that each of those attends to, on average: half the prompt's length when it is computed
    whole."""
    distinct: ArrayLike = 0
    """Different adapters of its rows and prompts."""
    adapter_bytes: ArrayLike = 0
    """Of all distinct adapters together."""
    largest_rank: ArrayLike = 0
    adapted_share: ArrayLike = 1.0
    """Share of its tokens that are on an adapter, where there are any."""
    uneven: ArrayLike = 0.0
    """1: rows differ in length and adapters in their number of rows, as in traffic; 0: all are alike."""


@dataclass(frozen=True, slots=True)
class StepModel:
    """Predicts steps of one base model on one kind of GPU."""

    config: ModelConfig
    quantization: str
    kv_dtype: str
    gpu: Gpu
    tensor_parallel: int = 1
    constants: Constants = FITTED

    def seconds(self, work: StepWork) -> NDArray[np.float64]:
        """Returns the seconds of the step, or of each step."""
        rows, prompt = _array(work.rows), _array(work.prompt_tokens)
        tokens = rows + prompt
        shared = self._products(tokens) + self._head() + self._attention(work) + self._adapter_bytes(work)
        overhead = self._overhead(work)
        return shared / self.tensor_parallel + overhead + self._sums(tokens, work)

    def _sums(self, tokens: NDArray[np.float64], work: StepWork) -> NDArray[np.float64]:
        """Of a layer: two of products, and four of what adapters make of a row."""
        if self.tensor_parallel == 1:
            return np.zeros_like(tokens)
        reduced = all_reduce_seconds(tokens * self.config.hidden_size * 2, self.tensor_parallel)
        adapters = 4 * MEETING_SECONDS * (_array(work.distinct) > 0)
        return self.config.num_layers * (2 * reduced + adapters)

    @property
    def compute_rate(self) -> float:
        """Floating-point operations per second of the linears, on one GPU."""
        constants = self.constants
        if self.quantization == "int4":
            return constants.int4_efficiency * self.gpu.peak_flops
        share = 0.5 if self.quantization == "none" else 1.0
        return share * constants.fp8_efficiency * self.gpu.peak_flops

    def _products(self, tokens: NDArray[np.float64]) -> NDArray[np.float64]:
        read = linear_bytes(self.config, self.quantization) / self.gpu.copy_bandwidth
        computed = 2 * linear_weights(self.config) * tokens / self.compute_rate
        norm = self.constants.norm
        return (read**norm + computed**norm) ** (1 / norm)

    def _head(self) -> float:
        return head_bytes(self.config) / self.gpu.copy_bandwidth

    def _attention(self, work: StepWork) -> NDArray[np.float64]:
        constants, config = self.constants, self.config
        share = constants.kv_fp8_efficiency if self.kv_dtype == "fp8" else constants.kv_efficiency
        attended = _array(work.rows) * _array(work.context)
        decode = attended * kv_token_bytes(config, self.kv_dtype) / (share * self.gpu.copy_bandwidth)
        pairs = _array(work.prompt_tokens) * _array(work.prompt_context)
        rate = constants.attention_efficiency * self.gpu.peak_flops / 2
        return decode + 4 * config.q_size * config.num_layers * pairs / rate

    def _adapter_bytes(self, work: StepWork) -> NDArray[np.float64]:
        """Returns the seconds of the bytes that adapters move."""
        constants, bandwidth = self.constants, self.gpu.copy_bandwidth
        traffic = constants.adapter_traffic * 2 * output_bytes(self.config) / bandwidth
        read = _array(work.adapter_bytes) / (constants.adapter_efficiency * bandwidth)
        return _adapted(work) * (_array(work.rows) + _array(work.prompt_tokens)) * traffic + read

    def _overhead(self, work: StepWork) -> NDArray[np.float64]:
        """Returns the seconds that more GPUs do not shorten: launches, and work that is done in turn."""
        constants, rows = self.constants, _array(work.rows)
        distinct = _array(work.distinct)
        spread = distinct / (distinct + constants.adapter_spread)
        by_layer = (
            constants.layer_us
            + constants.int4_layer_us * (self.quantization == "int4")
            + constants.adapter_layer_us * np.minimum(1.0, distinct)
            + constants.adapter_rank_us * _array(work.largest_rank) * spread
            + constants.uneven_us * _array(work.uneven)
        )
        return 1e-6 * (self.config.num_layers * by_layer + rows * constants.row_us)


def _adapted(work: StepWork) -> NDArray[np.float64]:
    """Returns the share of tokens that are on an adapter."""
    return _array(work.adapted_share) * np.minimum(1.0, _array(work.distinct))


def _array(value: ArrayLike) -> NDArray[np.float64]:
    return np.asarray(value, dtype=np.float64)
