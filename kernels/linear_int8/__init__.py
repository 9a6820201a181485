"""Linear layer with 8-bit weights (per output channel) and 7-bit activations (per row): W8A8 on a CPU.

Semantics: m[t] = max_k |x[t, k]|; q[t, k] = round(63 x[t, k] / m[t]); w[n, k] = round(W[n, k] / s[n]);
    out[t, n] = (sum_k q[t, k] w[n, k]) * s[n] * m[t] / 63 + bias[n]
The scale of a row is its own, so a row's result is the same bits whatever shares its batch.
"""

from __future__ import annotations

from torch import Tensor

from kernels.linear_int8.fbgemm import linear_int8_fbgemm
from kernels.linear_int8.reference import linear_int8_reference
from kernels.linear_int8.weight import Int8Weight

__all__ = ["Int8Weight", "linear_int8"]


def linear_int8(x_TK: Tensor, weight: Int8Weight, out_TN: Tensor) -> Tensor:
    """Semantics: see the module.

    Args:
        x_TK: fp32. A row with NaN or infinity gives a row without a finite number, and leaves the others
            alone.
        weight: `Int8Weight.quantize` of the `[N, K]` weight.
        out_TN: fp32, overwritten.
    """
    if x_TK.shape[1] != weight.in_features or out_TN.shape != (x_TK.shape[0], weight.out_features):
        shape = (weight.out_features, weight.in_features)
        raise ValueError(f"linear_int8: x {tuple(x_TK.shape)}, weight {shape}, out {tuple(out_TN.shape)}")
    if weight.packed is not None:
        return linear_int8_fbgemm(x_TK, weight, out_TN)
    return linear_int8_reference(x_TK, weight, out_TN)
