"""SiLU-and-multiply of rows that adapters add to: tiles of rows and columns, then whole rows again.

Owns the two kernels. Rows of a tile share B on the tensor cores; no tile knows its rows' maxima, so that rows
are quantised once all of their tiles are there.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.lora.kernels.slots import load_weights, look_up_module


@triton.jit
def _add_product(
    delta, shrunk_ptr, where, mine, bytes_ptr, bf16_ptr, offset, rank, f, F: tl.constexpr,
    BLOCK_R: tl.constexpr, IS_E4M3: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """To the rows that are `mine`, and to no other: 0 times a wild adapter's infinity is not 0."""
    product = tl.zeros(delta.shape, tl.float32)
    for start in tl.range(0, rank, BLOCK_R, num_stages=1):
        r = start + tl.arange(0, BLOCK_R)
        inside = r < rank
        b_mask = inside[:, None] & (f < F)[None, :]
        b = load_weights(bytes_ptr, bf16_ptr, offset, r[:, None] * F + f[None, :], b_mask, IS_E4M3, COMPUTE)
        s = tl.load(shrunk_ptr + where[:, None] + r[None, :], mask=mine[:, None] & inside[None, :], other=0.0)
        product = tl.dot(s.to(COMPUTE), b, product)
    return tl.where(mine[:, None], delta + product, delta)


@triton.jit(do_not_specialize=["place", "num_slots", "num_rows"])
def silu_mul_low_rank_kernel(
    gate_up_ptr, scale_ptr, out_ptr, shrunk_ptr, bytes_ptr, bf16_ptr, offsets_ptr, ranks_ptr, slots_ptr,
    places_ptr, gate_up_stride, out_stride, num_rows, place, num_slots, F: tl.constexpr,
    RANK_STRIDE: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_F: tl.constexpr, BLOCK_R: tl.constexpr,
    WITH_E4M3: tl.constexpr, COMPUTE: tl.constexpr, STARTS_EARLY: tl.constexpr,
):  # fmt: skip
    """Semantics: g, u = gate_up[t, :F] * scale[t] + delta[t, :F], the same from F on; out[t] = silu(g) * u;
        delta[t, m] = shrunk[places[t], ranks of m] B[slots[t], m], m being gate and up.

    gate_up and out bf16 or fp32, scale fp32 [T] or None, shrunk fp32, offsets and ranks as in AdapterTable,
    slots and places int32 [T]. Grid: (T / BLOCK_T, F / BLOCK_F). A tile of rows of many slots takes one slot
    after another. Source: Shazeer, arXiv 2002.05202; Hu et al., arXiv 2106.09685.
    """
    if STARTS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    t = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    f = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    live = t < num_rows
    slot_T = tl.load(slots_ptr + t, mask=live, other=-1)
    where = tl.load(places_ptr + t, mask=live, other=0).to(tl.int64) * RANK_STRIDE
    if STARTS_EARLY:
        tl.extra.cuda.gdc_wait()
    gate_delta = tl.zeros([BLOCK_T, BLOCK_F], tl.float32)
    up_delta = tl.zeros([BLOCK_T, BLOCK_F], tl.float32)
    slot = tl.max(slot_T, 0)
    while slot >= 0:
        mine = slot_T == slot
        at = place * num_slots + slot
        gate_b, gate_r, gate_rank, e4m3 = look_up_module(offsets_ptr, ranks_ptr, at, 0)
        up_b, up_r, up_rank, e4m3 = look_up_module(offsets_ptr, ranks_ptr, at, 1)
        if e4m3 == 0:
            gate_delta = _add_product(
                gate_delta, shrunk_ptr + gate_r, where, mine, bytes_ptr, bf16_ptr, gate_b, gate_rank, f, F,
                BLOCK_R, False, COMPUTE,
            )  # fmt: skip
            up_delta = _add_product(
                up_delta, shrunk_ptr + up_r, where, mine, bytes_ptr, bf16_ptr, up_b, up_rank, f, F, BLOCK_R,
                False, COMPUTE,
            )  # fmt: skip
        elif WITH_E4M3:
            gate_delta = _add_product(
                gate_delta, shrunk_ptr + gate_r, where, mine, bytes_ptr, bf16_ptr, gate_b, gate_rank, f, F,
                BLOCK_R, True, COMPUTE,
            )  # fmt: skip
            up_delta = _add_product(
                up_delta, shrunk_ptr + up_r, where, mine, bytes_ptr, bf16_ptr, up_b, up_rank, f, F, BLOCK_R,
                True, COMPUTE,
            )  # fmt: skip
        slot_T = tl.where(mine, -1, slot_T)
        slot = tl.max(slot_T, 0)
    # Read last: registers for twice as many programs are worth more than having begun early.
    mask = live[:, None] & (f < F)[None, :]
    gate_at = gate_up_ptr + t.to(tl.int64)[:, None] * gate_up_stride + f[None, :]
    gate = tl.load(gate_at, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_at + F, mask=mask, other=0.0).to(tl.float32)
    if scale_ptr is not None:
        scale = tl.load(scale_ptr + t, mask=live, other=0.0)[:, None]
        gate *= scale
        up *= scale
    gate += gate_delta
    up += up_delta
    inner = (gate / (1.0 + tl.exp(-gate)) * up).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + t.to(tl.int64)[:, None] * out_stride + f[None, :], inner, mask=mask)


@triton.jit
def quantize_inner_kernel(
    x_ptr, quantized_ptr, scale_ptr, x_stride, F: tl.constexpr, BLOCK_F: tl.constexpr,
    STARTS_EARLY: tl.constexpr, FP8_MAX: tl.constexpr, SMALLEST_SCALE: tl.constexpr,
):  # fmt: skip
    """Semantics: quantized[t] = x[t] / s[t], s[t] = max |x[t]| / 448. Grid: (T,)."""
    if STARTS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    f = tl.arange(0, BLOCK_F)
    x = tl.load(x_ptr + row * x_stride + f, mask=f < F, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), 0) * (1.0 / FP8_MAX), SMALLEST_SCALE)
    tl.store(scale_ptr + row, scale)
    at = quantized_ptr + row * F + tl.max_contiguous(f, 8)
    tl.store(at, (x * (1.0 / scale)).to(quantized_ptr.dtype.element_ty), mask=f < F)
