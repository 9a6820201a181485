"""How an adapter's weights are rounded to what an artifact stores.

Owns rounding and the scales of FP8. Refuses to know names and files.
"""

from __future__ import annotations

import numpy as np
import torch

from engine.lora.artifact import Dtype, LoraPair

FP8_MAX = 448.0
"""Largest number of e4m3."""
SMALLEST_SCALE = torch.finfo(torch.float32).tiny
"""Of a row of zeros: the smallest number that is not subnormal."""


class OutOfRange(ValueError):
    """A weight is finite, but not in the type it is to be stored in. `side` is "A" or "B"."""

    def __init__(self, side: str, reason: str) -> None:
        super().__init__(f"{side}: {reason}")
        self.side = side
        self.reason = reason


def to_pair(a_RK: torch.Tensor, b_RN: torch.Tensor, scale: float, dtype: Dtype) -> LoraPair:
    """A module's finite weights as an artifact stores them: rounded to the nearest even.

    FP8: every rank row of A and of B is divided by its own largest magnitude / 448, in fp32.
    """
    if dtype != "float8_e4m3":
        return LoraPair(_rounded("A", a_RK, dtype), _rounded("B", b_RN, dtype), scale)
    (a, a_scale), (b, b_scale) = _quantized(a_RK), _quantized(b_RN)
    # In the order in which the kernels' factor is made: what overflows there is refused here.
    with np.errstate(over="ignore", under="ignore"):
        factor = np.float32(scale) * a_scale * b_scale
    if not bool(np.isfinite(factor).all()):
        raise OutOfRange("B", "has values beyond the range of float8_e4m3 with float32 scales")
    return LoraPair(a, b, scale, a_scale, b_scale)


def _rounded(side: str, tensor: torch.Tensor, dtype: Dtype) -> np.ndarray:
    """fp32, or the raw words of bf16."""
    if dtype == "float32":
        return tensor.float().contiguous().numpy()
    stored = tensor.to(torch.bfloat16).contiguous()
    if not torch.isfinite(stored).all():
        raise OutOfRange(side, "has values beyond the range of bfloat16")
    return stored.view(torch.uint16).numpy()


def _quantized(tensor: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """(raw words of e4m3, fp32 scale of each row)."""
    wide = tensor.float()
    scale = wide.abs().amax(1).div_(FP8_MAX).clamp_min_(SMALLEST_SCALE)
    # The quotient of the largest magnitude may be 448 and a rounding error, which still rounds to 448.
    words = (wide / scale[:, None]).to(torch.float8_e4m3fn).contiguous()
    return words.view(torch.uint8).numpy(), scale.numpy()
