"""Computes rotary frequencies for every supported scaling, and the table of rotations by position.

Formulas: YaRN, Llama 3, linear. On a CPU the table grows with the longest position seen, on a GPU it is
complete from the start, so that captured graphs may read it. `kernels.rope_kv` rotates.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.model.config import ModelConfig, RopeScaling

CHUNK = 1024
"""Positions computed at a time: whole chunks, so that a row's bits do not depend on how the table grew."""


class RotaryTable:
    """Cosines and sines by position, as `kernels.rope_kv` reads them: fp32 `[positions, 2, D]`."""

    def __init__(self, config: ModelConfig, device: torch.device | str = "cpu") -> None:
        self._inv_freq, self._magnitude = rotary_frequencies(config)
        self._device = torch.device(device)
        self._max_position = config.max_position
        self._table = torch.empty(0, 2, config.head_dim, device=self._device)
        if self._device.type == "cuda":
            self._grow(self._max_position - 1)

    @property
    def whole_P2D(self) -> Tensor:
        """Every position of the model's context, and perhaps some more; it never moves once read."""
        if len(self._table) < self._max_position:
            self._grow(self._max_position - 1)
        return self._table

    def rows(self, positions_T: Tensor, max_position: int) -> Tensor:
        """Returns [T, 2, D] for the given positions, none of which exceeds `max_position`."""
        if max_position >= len(self._table):
            self._grow(max_position)
        return self._table.index_select(0, positions_T)

    def _grow(self, position: int) -> None:
        if position >= self._max_position:
            raise ValueError(
                f"position {position} is beyond the model's context of {self._max_position} tokens"
            )
        chunks = [self._table]
        for first in range(len(self._table), position + 1, CHUNK):
            chunks.append(self._compute(torch.arange(first, first + CHUNK, dtype=torch.float32)))
        self._table = torch.cat(chunks)

    def _compute(self, positions: Tensor) -> Tensor:
        angles = positions[:, None] * self._inv_freq[None]
        cos, sin = angles.cos() * self._magnitude, angles.sin() * self._magnitude
        planes = (torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1))
        return torch.stack(planes, dim=1).to(self._device)


def rotary_frequencies(config: ModelConfig) -> tuple[Tensor, float]:
    """Returns ([D/2] radians per position, factor on cosines and sines)."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    inv_freq = 1.0 / (config.rope_theta**exponents)
    scaling = config.rope_scaling
    if scaling.rope_type == "linear":
        return inv_freq / scaling.factor, 1.0
    if scaling.rope_type == "llama3":
        return _llama3(inv_freq, scaling), 1.0
    if scaling.rope_type == "yarn":
        return _yarn(config.rope_theta**exponents, config, scaling), _yarn_magnitude(scaling)
    assert scaling.rope_type == "default", scaling.rope_type
    return inv_freq, 1.0


def _llama3(inv_freq: Tensor, scaling: RopeScaling) -> Tensor:
    """Stretches long wavelengths by `factor`, keeps short ones, and blends those between.

    Source: Llama 3.1's reference code, published with the model.
    """
    wavelength = 2 * math.pi / inv_freq
    turns = scaling.original_max_position / wavelength
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0, 1)
    return (1 - blend) * inv_freq / scaling.factor + blend * inv_freq


def _yarn(period: Tensor, config: ModelConfig, scaling: RopeScaling) -> Tensor:
    """Interpolates by parts (NTK): dimensions that turn often keep their frequency, slow ones are
    interpolated.

    Source: Peng et al., "YaRN", arXiv 2309.00071, section 3.2.
    """
    dim = config.head_dim

    def dimension_of(turns: float) -> float:
        """Returns the (fractional) dimension that makes `turns` turns over the original context."""
        wavelength_ratio = scaling.original_max_position / (turns * 2 * math.pi)
        return dim * math.log(wavelength_ratio) / (2 * math.log(config.rope_theta))

    low, high = dimension_of(scaling.beta_fast), dimension_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    width = high - low if high != low else 0.001
    interpolated = ((torch.arange(dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    return interpolated / (scaling.factor * period) + (1 - interpolated) / period


def _yarn_magnitude(scaling: RopeScaling) -> float:
    """Returns the attention temperature of YaRN (section 3.4), as a factor on cosines and sines."""
    if scaling.attention_factor is not None:
        return scaling.attention_factor

    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0

    if scaling.mscale and scaling.mscale_all_dim:
        return magnitude(scaling.mscale) / magnitude(scaling.mscale_all_dim)
    return magnitude(1.0)
