"""Defines the inputs and outputs of linear layers on a quantised base: numbers with a scale for every row.

FP8 products are fastest with one constant scale for the whole tensor, but a scale that depends on the batch
lets one tenant's row move another's. So every row is divided by its own scale before the product, and the
product is left divided: the op that reads it multiplies the row back (rms_norm, silu_mul, rope_kv), and what
is added to it is divided first (lora). Rows never mix.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FP8_MAX = 448.0
"""Largest number of e4m3; past 464 it would round to NaN."""
SMALLEST_SCALE = torch.finfo(torch.float32).tiny
"""Scale of a row of zeros: the smallest number that is not subnormal, so that dividing by it is exact."""


@dataclass(frozen=True, slots=True)
class Activation:
    """Input of a linear layer: as it is, and quantised where the base wants it."""

    x_TK: Tensor | None
    """In the model's type: what adapters and unquantised linears read. None where no op reads it."""
    quantized_TK: Tensor | None = None
    """FP8 e4m3: x / scale."""
    scale_T: Tensor | None = None
    """fp32: largest magnitude of the row / 448, at least the smallest normal number."""

    def rows(self, which: slice) -> Activation:
        """Returns some of the rows, without copying."""
        parts = (self.x_TK, self.quantized_TK, self.scale_T)
        return Activation(*(None if part is None else part[which] for part in parts))


@dataclass(frozen=True, slots=True)
class Projection:
    """Output of a linear layer: the true value is y * scale, row by row."""

    y_TN: Tensor
    scale_T: Tensor | None = None
    """fp32; None where y is the true value already."""
    is_part: bool = False
    """The true value is the sum over the ranks of a group, which the op that reads it computes."""


def quantize_rows(x_TK: Tensor, quantized_TK: Tensor, scale_T: Tensor) -> None:
    """Defines a scaled row in torch: kernels that write one are tested against it.

    Semantics: scale[t] = max(max_k |x[t, k]| / 448, 2^-126); quantized[t, k] = e4m3(x[t, k] / scale[t])

    A row with NaN or infinity becomes a row without a finite number; other rows are not affected.
    """
    wide = x_TK.float()
    torch.amax(wide.abs(), -1, out=scale_T)
    scale_T.div_(FP8_MAX).clamp_min_(SMALLEST_SCALE)
    quantized_TK.copy_(wide / scale_T[:, None])
