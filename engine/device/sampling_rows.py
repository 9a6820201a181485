"""Stores the sampling parameters of the batch's rows as arrays, clamped to what arithmetic can handle."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from engine.protocol import SamplingParams

MIN_TEMPERATURE = 1e-5
"""Below it a draw could only pick the largest logit, and dividing by it would overflow: greedy."""
LARGEST = 1e30
"""Numbers are clamped to it: finite in fp32 with room to add and multiply."""
_INT64_MASK = (1 << 64) - 1


class SamplingRows:
    """Parameters of `max_rows` rows."""

    def __init__(self, max_rows: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self.temperature = np.zeros(max_rows, np.float32)
        self.top_k = np.zeros(max_rows, np.int64)
        self.top_p = np.ones(max_rows, np.float32)
        self.min_p = np.zeros(max_rows, np.float32)
        self.seed = np.zeros(max_rows, np.int64)
        self.min_tokens = np.zeros(max_rows, np.int64)
        self.num_logprobs = np.full(max_rows, -1, np.int64)
        """-1: none requested."""

    def admit(self, row: int, params: SamplingParams, seed: int) -> None:
        """Stores a request's parameters in its row."""
        cold = params.temperature < MIN_TEMPERATURE
        self.temperature[row] = 0.0 if cold else clamp(params.temperature)
        self.top_k[row] = min(params.top_k, self._vocab_size)
        self.top_p[row] = params.top_p
        self.min_p[row] = params.min_p
        self.seed[row] = np.uint64(seed & _INT64_MASK).astype(np.int64)
        self.min_tokens[row] = min(params.min_tokens, np.iinfo(np.int64).max)
        self.num_logprobs[row] = -1 if params.logprobs is None else min(params.logprobs, self._vocab_size)


def ending_ids(params: SamplingParams, eos_ids: Iterable[int], vocab_size: int) -> list[int]:
    """Returns the ids that would end the request, which min_tokens forbids."""
    ending = set(params.stop_token_ids) | (set() if params.ignore_eos else set(eos_ids))
    return sorted(token for token in ending if 0 <= token < vocab_size)


def bias_of(params: SamplingParams, vocab_size: int) -> tuple[list[int], list[float]]:
    """Returns (ids, values) of logit_bias."""
    assert all(0 <= token < vocab_size for token in params.logit_bias), "bias outside the vocabulary"
    return list(params.logit_bias), [clamp(bias) for bias in params.logit_bias.values()]


def penalties_of(params: SamplingParams) -> tuple[float, float, float]:
    """Returns (presence, frequency, repetition)."""
    return (
        clamp(params.presence_penalty),
        clamp(params.frequency_penalty),
        max(clamp(params.repetition_penalty), 1 / LARGEST),
    )


def has_penalties(params: SamplingParams) -> bool:
    """Returns whether any of the three has an effect."""
    return bool(params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1.0)


def clamp(value: float) -> float:
    """Returns the nearest number that arithmetic can handle."""
    return min(max(value, -LARGEST), LARGEST)
