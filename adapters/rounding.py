"""Rounds an adapter's weights to the types that artifacts store, and computes the scales of FP8."""

from __future__ import annotations

import numpy as np
import torch

from engine.lora.artifact import Dtype, LoraPair

FP8_MAX = 448.0
"""The largest number in e4m3."""
SMALLEST_SCALE = torch.finfo(torch.float32).tiny
"""The scale of a row of zeros: the smallest normal number."""


class OutOfRange(ValueError):
    """A weight is finite, but out of range of the type it should be stored in. `side` is "A" or "B"."""

    def __init__(self, side: str, reason: str) -> None:
        super().__init__(f"{side}: {reason}")
        self.side = side
        self.reason = reason


def to_pair(a_RK: torch.Tensor, b_RN: torch.Tensor, scale: float, dtype: Dtype) -> LoraPair:
    """Returns a module's finite weights as an artifact stores them, rounded to the nearest even.

    FP8: every rank row of A and of B is divided by its own largest magnitude / 448, in fp32.
    """
    if dtype != "float8_e4m3":
        return LoraPair(_rounded("A", a_RK, dtype), _rounded("B", b_RN, dtype), scale)
    (a, a_scale), (b, b_scale) = _quantized(a_RK), _quantized(b_RN)
    # In the order in which the kernels multiply the factor: what overflows there is rejected here.
    with np.errstate(over="ignore", under="ignore"):
        factor = np.float32(scale) * a_scale * b_scale
    if not bool(np.isfinite(factor).all()):
        raise OutOfRange("B", "has values beyond the range of float8_e4m3 with float32 scales")
    return LoraPair(a, b, scale, a_scale, b_scale)


def _rounded(side: str, tensor: torch.Tensor, dtype: Dtype) -> np.ndarray:
    """Returns fp32, or the raw words of bf16."""
    if dtype == "float32":
        return tensor.float().contiguous().numpy()
    stored = tensor.to(torch.bfloat16).contiguous()
    if not torch.isfinite(stored).all():
        raise OutOfRange(side, "has values beyond the range of bfloat16")
    return stored.view(torch.uint16).numpy()


def _quantized(tensor: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Returns (raw words of e4m3, fp32 scale of each row)."""
    wide = tensor.float()
    scale = wide.abs().amax(1).div_(FP8_MAX).clamp_min_(SMALLEST_SCALE)
    # Rounding may make the largest quotient slightly more than 448, which still rounds to 448.
    words = (wide / scale[:, None]).to(torch.float8_e4m3fn).contiguous()
    return words.view(torch.uint8).numpy(), scale.numpy()
