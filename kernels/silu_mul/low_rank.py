"""SiLU-and-multiply of a prefill's rows with what adapters add to gate and up, on a GPU.

Owns the launches and their sizes. Refuses to know what shrink did.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.activation import FP8_MAX, SMALLEST_SCALE
from kernels.backend import INTERPRETING
from kernels.compilation import Compilation
from kernels.lora.low_rank import LowRank
from kernels.overlap import starts_early
from kernels.silu_mul.kernels.low_rank import quantize_inner_kernel, silu_mul_low_rank_kernel

BLOCK_T, BLOCK_F, BLOCK_R = 64, 64, 16
NUM_WARPS = 8
COMPUTE = tl.float32 if INTERPRETING else tl.bfloat16
"""What tensor cores multiply; the interpreter's bf16 products are wrong."""


def silu_mul_low_rank_triton(
    gate_up_T2F: Tensor,
    out_TF: Tensor,
    scale_T: Tensor | None,
    quantized_TF: Tensor | None,
    quantized_scale_T: Tensor | None,
    low_rank: LowRank,
) -> None:
    """Shapes have been checked."""
    num_rows, inner = out_TF.shape
    if num_rows == 0 or inner == 0:
        return
    table, early = low_rank.table, starts_early(gate_up_T2F)
    options = {"launch_pdl": True} if early else {}
    grid = (triton.cdiv(num_rows, BLOCK_T), triton.cdiv(inner, BLOCK_F))
    silu_mul_low_rank_kernel[grid](
        *(gate_up_T2F, scale_T, out_TF, low_rank.shrunk, table.arena, table.arena.view(torch.bfloat16)),
        *(table.offsets, table.ranks, low_rank.slots_T, low_rank.places_T),
        *(gate_up_T2F.stride(0), out_TF.stride(0), num_rows, low_rank.place, table.num_slots),
        **_constants(inner, low_rank.shrunk.stride(0), early),
        num_warps=NUM_WARPS,
        **options,
    )
    if quantized_TF is None:
        return
    # The interpreter's conversion to e4m3 loses the carry of a rounding.
    written = torch.empty_like(quantized_TF, dtype=torch.float32) if INTERPRETING else quantized_TF
    quantize_inner_kernel[(num_rows,)](
        *(out_TF, written, quantized_scale_T, out_TF.stride(0)),
        **_quantize_constants(inner, early),
        num_warps=_quantize_warps(inner),
        **options,
    )
    if written is not quantized_TF:
        quantized_TF.copy_(written)


def _constants(inner: int, rank_stride: int, early: bool, with_e4m3: bool = True) -> dict[str, object]:
    return {
        "F": inner,
        "RANK_STRIDE": rank_stride,
        "BLOCK_T": BLOCK_T,
        "BLOCK_F": BLOCK_F,
        "BLOCK_R": BLOCK_R,
        "WITH_E4M3": with_e4m3,
        "COMPUTE": COMPUTE,
        "STARTS_EARLY": early,
    }


def _quantize_constants(inner: int, early: bool) -> dict[str, object]:
    return {
        "F": inner,
        "BLOCK_F": triton.next_power_of_2(inner),
        "STARTS_EARLY": early,
        "FP8_MAX": FP8_MAX,
        "SMALLEST_SCALE": SMALLEST_SCALE,
    }


def _quantize_warps(inner: int) -> int:
    return min(max(triton.next_power_of_2(inner) // 512, 1), 32)


def _compilations(inner: int) -> list[Compilation]:
    pointers = {
        "gate_up": "bf16",
        "scale": "fp32",
        "out": "bf16",
        "shrunk": "fp32",
        "bytes": "u8",
        "bf16": "bf16",
    }
    pointers |= {"offsets": "i64", "ranks": "i32", "slots": "i32", "places": "i32"}
    signature = {f"{name}_ptr": f"*{kind}" for name, kind in pointers.items()}
    signature |= dict.fromkeys(("gate_up_stride", "out_stride", "num_rows", "place", "num_slots"), "i32")
    kernel = silu_mul_low_rank_kernel
    return [
        Compilation(
            kernel, signature, _constants(inner, 384, architecture >= 90, architecture >= 90), NUM_WARPS, 2,
            (architecture,),
        )
        for architecture in (80, 90, 100)
    ] + [
        Compilation(
            quantize_inner_kernel,
            {"x_ptr": "*bf16", "quantized_ptr": "*fp8e4nv", "scale_ptr": "*fp32", "x_stride": "i32"},
            _quantize_constants(inner, True),
            _quantize_warps(inner),
            architectures=(90, 100),
        )
    ]  # fmt: skip


COMPILATIONS = [one for inner in (640, 14336) for one in _compilations(inner)]
