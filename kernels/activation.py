"""Defines the inputs and outputs of linear layers on a quantised base: numbers with a scale for every row.

FP8 products are fastest with one constant scale for the whole tensor, but a scale that depends on the batch
lets one tenant's row move another's. So every row is divided by its own scale before the product, and the
product is left divided: the op that reads it multiplies the row back (rms_norm, silu_mul, rope_kv). What
adapters add in place is divided first (lora); what they add in memory of its own is not: the op that reads
the row adds it once the row is multiplied back. Rows never mix.
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
class AdapterDelta:
    """What adapters add to a projection, in memory of its own."""

    y_TN: Tensor
    """fp32, contiguous: the true value, not divided by the row's scale."""
    has_adapter_T: Tensor
    """int32, written between steps. 0 for a row of the base alone: its y is unspecified and not read."""

    def check(self, op: str, rows_TN: Tensor) -> None:
        """Raises ValueError where this is no delta of the rows that an op reads."""
        y_TN, has_adapter_T = self.y_TN, self.has_adapter_T
        if rows_TN.dim() != 2 or y_TN.shape != rows_TN.shape:
            raise ValueError(f"{op}: delta {tuple(y_TN.shape)} for rows {tuple(rows_TN.shape)}")
        _check_fp32(f"{op}: delta is", y_TN)
        if has_adapter_T.shape != rows_TN.shape[:1] or has_adapter_T.dtype != torch.int32:
            raise ValueError(
                f"{op}: has_adapter_T {tuple(has_adapter_T.shape)} of {has_adapter_T.dtype}"
                f" for {len(rows_TN)} rows, not int32"
            )


@dataclass(frozen=True, slots=True)
class Parts:
    """Memory for a linear layer's output in parts."""

    y_PTN: Tensor
    """fp32, contiguous: their sum is the true value."""
    copies: tuple[int, ...] = ()
    """Addresses of memory of other GPUs that gets the same."""


@dataclass(frozen=True, slots=True)
class Projection:
    """Output of a linear layer: the true value is y * scale + delta, row by row."""

    y_TN: Tensor
    """Where it comes in parts, memory of the right shape and type that nothing has been written to."""
    scale_T: Tensor | None = None
    """fp32; None where y is the true value already."""
    is_part: bool = False
    """The true value is the sum over the ranks of a group, which the op that reads it computes."""
    delta: AdapterDelta | None = None
    """None where y holds what adapters add already. Rows without an adapter have none."""
    parts: Parts | None = None
    """Their sum is the true value but for the delta; the op that reads it computes it."""

    @property
    def parts_PTN(self) -> Tensor | None:
        """fp32, contiguous."""
        return None if self.parts is None else self.parts.y_PTN


def check_parts(op: str, parts_PTN: Tensor, rows_TN: Tensor) -> None:
    """Raises ValueError where these are no parts of the rows that an op reads."""
    if parts_PTN.dim() != 3 or parts_PTN.shape[1:] != rows_TN.shape:
        raise ValueError(f"{op}: parts {tuple(parts_PTN.shape)} of rows {tuple(rows_TN.shape)}")
    _check_fp32(f"{op}: parts are", parts_PTN)


def _check_fp32(what: str, memory: Tensor) -> None:
    if memory.dtype != torch.float32 or not memory.is_contiguous():
        raise ValueError(f"{what} {memory.dtype} with strides {memory.stride()}, not contiguous fp32")


def true_rows(
    y_TN: Tensor, scale_T: Tensor | None, delta: AdapterDelta | None, parts_PTN: Tensor | None = None
) -> Tensor:
    """Defines the true value of a projection in torch, in fp32: kernels that read one are tested against it.

    Semantics: y[t] * scale[t] + delta[t]; y[t] * scale[t] for a row without an adapter. With parts their sum
    takes the place of y * scale.
    """
    if parts_PTN is not None:
        y_TN = parts_PTN.sum(0)
    else:
        y_TN = y_TN.float() if scale_T is None else y_TN * scale_T[:, None]
    if delta is not None:
        y_TN = y_TN + delta.y_TN.masked_fill(delta.has_adapter_T[:, None] == 0, 0.0)
    return y_TN


def quantize_rows(x_TK: Tensor, quantized_TK: Tensor, scale_T: Tensor) -> None:
    """Defines a scaled row in torch: kernels that write one are tested against it.

    Semantics: scale[t] = max(max_k |x[t, k]| / 448, 2^-126); quantized[t, k] = e4m3(x[t, k] / scale[t])

    A row with NaN or infinity becomes a row without a finite number; other rows are not affected.
    """
    wide = x_TK.float()
    torch.amax(wide.abs(), -1, out=scale_T)
    scale_T.div_(FP8_MAX).clamp_min_(SMALLEST_SCALE)
    quantized_TK.copy_(wide / scale_T[:, None])
