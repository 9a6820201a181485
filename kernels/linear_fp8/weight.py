"""Holds a linear layer's weight in FP8 (e4m3), with one scale for the whole tensor or one per output channel.

Quantises weights, reads those of checkpoints, and fuses layers that share their input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.activation import FP8_MAX, SMALLEST_SCALE

E4M3 = torch.float8_e4m3fn


@dataclass(frozen=True, slots=True)
class Fp8Weight:
    """The true weight is `values_NK * scale`, row by row."""

    values_NK: Tensor
    """e4m3, contiguous."""
    scale: Tensor
    """fp32: [1] for the whole tensor, or [N]."""
    bias_N: Tensor | None = None
    """Needs a scale per channel: a bias is added to true values, and so are those scales."""

    def __post_init__(self) -> None:
        if self.values_NK.dtype != E4M3 or self.values_NK.dim() != 2 or not self.values_NK.is_contiguous():
            raise ValueError(f"FP8 weight of {self.values_NK.dtype}, {tuple(self.values_NK.shape)}")
        if self.scale.shape not in ((1,), (self.out_features,)) or not self.scale.is_contiguous():
            raise ValueError(f"scale {tuple(self.scale.shape)} for FP8 weight {tuple(self.values_NK.shape)}")
        if self.bias_N is not None and (self.bias_N.shape != (self.out_features,) or not self.per_channel):
            raise ValueError(f"bias {tuple(self.bias_N.shape)} for {self.out_features} channels")

    @property
    def per_channel(self) -> bool:
        return self.scale.shape[0] == self.out_features

    @property
    def out_features(self) -> int:
        return self.values_NK.shape[0]

    @property
    def in_features(self) -> int:
        return self.values_NK.shape[1]

    @classmethod
    def quantize(
        cls, weight_NK: Tensor, bias_N: Tensor | None = None, per_channel: bool = False
    ) -> Fp8Weight:
        """Rounds to nearest; the largest magnitude becomes 448.

        Args:
            weight_NK: any float type; must be finite.
            bias_N: kept as it is. With one, the weight's one scale is written down for every channel.
            per_channel: one scale per output channel instead of one for all.
        """
        wide = weight_NK.float()
        largest_N = wide.abs().amax(1)
        if not torch.isfinite(largest_N).all():
            raise ValueError("cannot quantise a weight that is not finite")
        largest = largest_N if per_channel else largest_N.amax(0, keepdim=True)
        scale = (largest / FP8_MAX).clamp_min_(SMALLEST_SCALE)
        return cls._made((wide / scale[:, None]).to(E4M3), scale, bias_N)

    @classmethod
    def from_checkpoint(
        cls, parts: Sequence[tuple[Tensor, Tensor]], bias_N: Tensor | None = None
    ) -> Fp8Weight:
        """What FP8 checkpoints store: (weight [n, K] e4m3, scale) of each layer, fused along the outputs.

        A scale is one number ([] or [1]) or one per channel ([n] or [n, 1]). Layers whose scales are one and
        the same number stay per tensor; any other mix becomes one scale per channel, which is exact.
        """
        scales = []
        for values, scale in parts:
            if scale.numel() not in (1, len(values)):
                raise ValueError(f"FP8 scale {tuple(scale.shape)} for a weight {tuple(values.shape)}")
            wide = scale.float().reshape(-1)
            if not (torch.isfinite(wide).all() and (wide > 0).all()):
                raise ValueError("FP8 scale that is not a positive finite number")
            scales.append(wide)
        values_NK = torch.cat([values.view(torch.uint8) for values, _ in parts]).view(E4M3)
        if all(len(scale) == 1 for scale in scales) and len({float(scale) for scale in scales}) == 1:
            return cls._made(values_NK, scales[0].clone(), bias_N)
        channels = [scale.expand(len(values)) for (values, _), scale in zip(parts, scales, strict=True)]
        return cls._made(values_NK, torch.cat(channels), bias_N)

    @classmethod
    def _made(cls, values_NK: Tensor, scale: Tensor, bias_N: Tensor | None) -> Fp8Weight:
        if bias_N is not None:
            scale = scale.expand(len(values_NK)).contiguous()
        return cls(values_NK, scale, None if bias_N is None else bias_N.contiguous())
