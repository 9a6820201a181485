"""Sums rows over GPUs that read one another's memory, and norms them: one kernel, no copy in between.

Programs of the same number meet before they read: each says in the others' memory that it has come, and waits
for them in its own. All programs of a launch run at the same time, since there are at most `MAX_PROGRAMS`.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.activation import FP8_MAX, SMALLEST_SCALE
from kernels.backend import e4m3_output
from kernels.compilation import Compilation
from kernels.overlap import starts_early
from kernels.peer_sum import MAX_PROGRAMS, Addresses, Meeting
from kernels.rms_norm.kernel import store_norm, tile

PARTS_BLOCK = 1024
MAX_SIDE_PROGRAMS = 32
"""Of a kernel beside a product: each takes a place of the product's for as long as it waits."""

# Thread r of a program deals with rank r. `.sys`: what this GPU wrote before is seen by the others, and the
# reverse. A rank may be one meeting ahead: it has left this one before another has seen it arrive.
_ARRIVE_AND_WAIT = tl.constexpr(
    """
    {
        .reg .pred is_rank, is_late;
        .reg .u32 rank, seen;
        mov.u32 rank, %tid.x;
        setp.lt.u32 is_rank, rank, $3;
        @!is_rank bra done;
        st.release.sys.global.u32 [$1], $4;
    wait:
        ld.acquire.sys.global.u32 seen, [$2];
        sub.u32 seen, seen, $4;
        setp.lt.s32 is_late, seen, 0;
        @is_late bra wait;
    done:
        mov.u32 $0, 0;
    }
    """
)


@triton.jit
def _meet(signals, meetings_ptr, number, RANK: tl.constexpr, SIZE: tl.constexpr):
    """Waits until this program has come here on all GPUs, for the time of this number."""
    program = tl.program_id(0)
    rank = tl.arange(0, 32)  # of a warp: each thread has the element of its own rank
    signals_of_rank = tl.zeros((32,), tl.int64)
    for other in tl.static_range(SIZE):
        signals_of_rank = tl.where(rank == other, signals[other], signals_of_rank)
    tl.inline_asm_elementwise(
        _ARRIVE_AND_WAIT,
        "=r,l,l,r,r",
        [
            signals_of_rank + (program * SIZE + RANK) * 4,
            signals[RANK] + (program * SIZE + rank) * 4,
            SIZE,
            number,
        ],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
    tl.debug_barrier()  # for the other threads, which did not wait themselves
    tl.store(meetings_ptr + program, number)


@triton.jit
def meet_kernel(signals, meetings_ptr, RANK: tl.constexpr, SIZE: tl.constexpr):
    """Waits until all GPUs have come here: what they queued before is then done and seen.

    Args:
        signals: SIZE addresses of each rank's signals, int32 [MAX_PROGRAMS, SIZE].
        meetings_ptr: int32 [MAX_PROGRAMS], how often each of this GPU's programs has met others.
    """
    _meet(signals, meetings_ptr, tl.load(meetings_ptr + tl.program_id(0)) + 1, RANK, SIZE)


@triton.jit
def _part(
    parts, scales, at, rows_T, num_rows, mask, RANK: tl.constexpr, H: tl.constexpr, PARTS: tl.constexpr,
    kind: tl.constexpr,
):  # fmt: skip
    """Rows of a rank's part, fp32."""
    part_at = parts[RANK].to(tl.int64).to(tl.pointer_type(kind)) + at
    if H % 8 == 0:  # rows begin on multiples of 16 bytes, which an address does not say
        part_at = tl.multiple_of(part_at, (1, 16))
    part = tl.load(part_at, mask=mask, other=0.0).to(tl.float32)
    for more in tl.static_range(1, PARTS):
        part += tl.load(part_at + more * num_rows * H, mask=mask, other=0.0)
    if scales is not None:
        scale_ptr = scales[RANK].to(tl.int64).to(tl.pointer_type(tl.float32))
        part *= tl.load(scale_ptr + rows_T)[:, None]
    return part


@triton.jit
def sum_norm_kernel(
    parts,
    scales,
    signals,
    meetings_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    quantized_ptr,
    quantized_scale_ptr,
    num_rows,
    eps,
    RANK: tl.constexpr,
    SIZE: tl.constexpr,
    H: tl.constexpr,
    BLOCK_H: tl.constexpr,
    PARTS: tl.constexpr,
    STARTS_EARLY: tl.constexpr,
    FP8_MAX: tl.constexpr,
    SMALLEST_SCALE: tl.constexpr,
):
    """Semantics: residual[t] += sum_r part_r[t] * scale_r[t], summed in the order of the ranks;
        out[t] = residual[t] / sqrt(mean(residual[t]^2) + eps) * weight;
        quantized[t] = out[t] / s[t], s[t] = max |out[t]| / 448

    Args:
        parts: SIZE addresses of each rank's part: of the residual's type, [num_rows, H]; where PARTS is not
            0 fp32 [PARTS, num_rows, H], whose sum it is.
        scales: SIZE addresses of fp32 [num_rows]; None for scales of 1.
        signals, meetings_ptr: as in `meet_kernel`. None: all parts are there already.
        residual_ptr, out_ptr: bf16 or fp32 [num_rows, H]; out_ptr and quantized_ptr may be None.
        quantized_ptr, quantized_scale_ptr: e4m3 [num_rows, H], fp32 [num_rows].
    """
    if STARTS_EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    columns_H = tl.arange(0, BLOCK_H)
    inside_H = columns_H < H
    weight_H = tl.load(weight_ptr + columns_H, mask=inside_H, other=0.0).to(tl.float32)
    if STARTS_EARLY:
        tl.extra.cuda.gdc_wait()
    if signals is not None:
        number = tl.load(meetings_ptr + tl.program_id(0)) + 1

    kind: tl.constexpr = residual_ptr.dtype.element_ty
    part_kind: tl.constexpr = tl.float32 if PARTS else kind
    for row in range(tl.program_id(0), num_rows, tl.num_programs(0)):
        rows_T = (row + tl.arange(0, 1)).to(tl.int64)
        at = rows_T[:, None] * H + columns_H[None, :]
        mask = (rows_T < num_rows)[:, None] & inside_H[None, :]
        # What is here is asked for before the others are waited for.
        before = tl.load(residual_ptr + at, mask=mask, other=0.0).to(tl.float32)
        own = _part(parts, scales, at, rows_T, num_rows, mask, RANK, H, PARTS, part_kind)
        if signals is not None and row == tl.program_id(0):
            _meet(signals, meetings_ptr, number, RANK, SIZE)
        y = tl.zeros((1, BLOCK_H), tl.float32)
        for rank in tl.static_range(SIZE):
            if rank == RANK:
                y += own
            else:
                y += _part(parts, scales, at, rows_T, num_rows, mask, rank, H, PARTS, part_kind)
        y += before
        stored = y.to(kind)
        tl.store(residual_ptr + at, stored, mask=mask)
        out_at = None
        if out_ptr is not None:
            out_at = out_ptr + at
        store_norm(
            stored.to(tl.float32),
            weight_H,
            out_at,
            quantized_ptr,
            quantized_scale_ptr,
            rows_T,
            columns_H,
            rows_T < num_rows,
            mask,
            eps,
            kind,
            H,
            FP8_MAX,
            SMALLEST_SCALE,
        )


@triton.jit
def sum_parts_kernel(
    parts,
    signals,
    meetings_ptr,
    out_ptr,
    count,
    RANK: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Semantics: out[i] = sum_r part_r[i], in the order of the ranks.

    Args: as in `sum_norm_kernel`; parts and out are fp32 [count].
    """
    if signals is not None:
        _meet(signals, meetings_ptr, tl.load(meetings_ptr + tl.program_id(0)) + 1, RANK, SIZE)
    for block in range(tl.program_id(0), tl.cdiv(count, BLOCK), tl.num_programs(0)):
        at = block * BLOCK + tl.arange(0, BLOCK)
        total = tl.zeros((BLOCK,), tl.float32)
        for rank in tl.static_range(SIZE):
            part_ptr = parts[rank].to(tl.int64).to(tl.pointer_type(tl.float32))
            total += tl.load(tl.multiple_of(part_ptr + at, 16), mask=at < count, other=0.0)
        tl.store(out_ptr + at, total, mask=at < count)


def sum_norm_triton(
    parts: Addresses,
    scales: Addresses | None,
    meeting: Meeting | None,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    out: Tensor | None,
    quantized: Tensor | None,
    quantized_scale_T: Tensor | None,
    num_parts: int | None,
) -> None:
    """Launches `sum_norm_kernel`; shapes have been checked."""
    num_rows, hidden = residual.shape
    _, block_h, num_warps = tile(hidden)
    early = starts_early(residual)
    signals, meetings, rank = _places(meeting)
    with e4m3_output(quantized) as written:
        sum_norm_kernel[(min(num_rows, MAX_PROGRAMS),)](
            parts,
            scales,
            signals,
            meetings,
            residual,
            weight,
            out,
            written,
            quantized_scale_T,
            num_rows,
            eps,
            RANK=rank,
            SIZE=len(parts),
            H=hidden,
            BLOCK_H=block_h,
            PARTS=num_parts or 0,
            STARTS_EARLY=early,
            FP8_MAX=FP8_MAX,
            SMALLEST_SCALE=SMALLEST_SCALE,
            num_warps=num_warps,
            **({"launch_pdl": True} if early else {}),
        )


def sum_parts_triton(parts: Addresses, meeting: Meeting | None, out: Tensor) -> None:
    """Launches `sum_parts_kernel`."""
    signals, meetings, rank = _places(meeting)
    count = out.numel()
    sum_parts_kernel[(min(triton.cdiv(count, PARTS_BLOCK), MAX_SIDE_PROGRAMS),)](
        parts,
        signals,
        meetings,
        out,
        count,
        RANK=rank,
        SIZE=len(parts),
        BLOCK=PARTS_BLOCK,
        num_warps=4,
    )


def meet_triton(meeting: Meeting) -> None:
    """Launches `meet_kernel`."""
    signals = meeting.signals
    meet_kernel[(1,)](signals, meeting.counts, RANK=meeting.rank, SIZE=len(signals), num_warps=1)


def _places(meeting: Meeting | None) -> tuple[Addresses | None, Tensor | None, int]:
    """(signals, meetings, rank) as the kernels take them."""
    return (None, None, 0) if meeting is None else (meeting.signals, meeting.counts, meeting.rank)


def _compilation(size: int, quantizes: bool, keeps: bool, num_parts: int = 0) -> Compilation:
    _, block_h, num_warps = tile(8192)
    addresses = ("i64",) * size
    pointers = {
        "parts": addresses,
        "scales": addresses if quantizes else None,
        "signals": addresses,
        "meetings_ptr": "*i32",
        "residual_ptr": "*bf16",
        "weight_ptr": "*bf16",
        "out_ptr": "*bf16" if keeps else None,
        "quantized_ptr": "*fp8e4nv" if quantizes else None,
        "quantized_scale_ptr": "*fp32" if quantizes else None,
    }
    signature = {name: kind for name, kind in pointers.items() if kind is not None}
    return Compilation(
        sum_norm_kernel,
        signature | {"num_rows": "i32", "eps": "fp32"},
        {name: None for name, kind in pointers.items() if kind is None}
        | {
            "RANK": 1,
            "SIZE": size,
            "H": 8192,
            "BLOCK_H": block_h,
            "PARTS": num_parts,
            "STARTS_EARLY": quantizes,
            "FP8_MAX": FP8_MAX,
            "SMALLEST_SCALE": SMALLEST_SCALE,
        },
        num_warps=num_warps,
        architectures=(90, 100) if quantizes else (80, 90, 100),
    )


COMPILATIONS = [
    *(
        _compilation(size, quantizes, keeps)
        for size in (2, 8)
        for quantizes, keeps in ((False, True), (True, True), (True, False))
    ),
    _compilation(2, True, True, num_parts=2),
    Compilation(
        sum_parts_kernel,
        {
            "parts": ("i64",) * 8,
            "signals": ("i64",) * 8,
            "meetings_ptr": "*i32",
            "out_ptr": "*fp32",
            "count": "i32",
        },
        {"RANK": 1, "SIZE": 8, "BLOCK": PARTS_BLOCK},
    ),
    Compilation(
        meet_kernel, {"signals": ("i64",) * 8, "meetings_ptr": "*i32"}, {"RANK": 1, "SIZE": 8}, num_warps=1
    ),
]
