"""Computes the FP8 product for few rows on Hopper (the kernel; `kernels.linear_fp8.stream` launches it)."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

block_barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier  # renamed in Triton 3.7


@gluon.jit
def linear_fp8_stream_kernel(
    weight_desc,
    x_desc,
    scale_ptr,
    row_scale_ptr,
    bias_ptr,
    out_ptr,
    copies,
    partial_ptr,
    counter_ptr,
    M,
    out_stride,
    N: gl.constexpr,
    K: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    NUM_STAGES: gl.constexpr,
    AT_ONCE: gl.constexpr,
    PROGRAMS: gl.constexpr,
    MAX_PARTS: gl.constexpr,
    PER_CHANNEL: gl.constexpr,
    LETS_IN_LATE: gl.constexpr,
    IN_PARTS: gl.constexpr,
    COPIES: gl.constexpr,
    num_warps: gl.constexpr,
):
    """Semantics: out[m, n] = (sum_k x[m, k] W[n, k]) * scale[n] (* row_scale[m]) (+ bias[n])

    Args:
        weight_desc: e4m3 [N, K], read in tiles of [BLOCK_N, BLOCK_K]; x_desc: e4m3 [M, K], M <= BLOCK_M.
        scale_ptr: fp32 [N] if PER_CHANNEL, else [1].
        row_scale_ptr: fp32 [M]; None leaves out divided by the row scale.
        bias_ptr: any float [N], or None.
        out_ptr: bf16 [M, N]; IN_PARTS fp32 [MAX_PARTS, M, N], contiguous, whose sum is out.
        copies: COPIES addresses where the parts are written as well, on other GPUs; or None.
        partial_ptr, counter_ptr: `scratch`.
        AT_ONCE: tiles that are on their way at once while x is waited for.
        MAX_PARTS: programs that share one tile, at most.
        LETS_IN_LATE: whether the next kernel may begin only once x is there.

    The tiles [BLOCK_N, BLOCK_K] of W, row by row, are dealt out as PROGRAMS equal runs (stream-K; Osama et
    al., arXiv 2301.03598). A program keeps NUM_STAGES tiles in flight, the first of them asked for before the
    kernel that makes x has ended: a few at a time, because all at once are 5 us of the memory's work, behind
    which that kernel would wait for what it reads. Programs that share channels leave partial sums; the last
    to arrive adds them in the order of K, so the bits do not depend on who that is. IN_PARTS they are not
    added: part p is of the program that is p behind the first one of its channels, and 0 where there is none.

    Grid: PROGRAMS.
    """
    if not LETS_IN_LATE:
        gdc_launch_dependents()
    steps: gl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    units: gl.constexpr = (N + BLOCK_N - 1) // BLOCK_N * steps
    program = gl.program_id(0)
    first = program * units // PROGRAMS
    count = (program + 1) * units // PROGRAMS - first

    weights = gl.allocate_shared_memory(weight_desc.dtype, [NUM_STAGES, BLOCK_N, BLOCK_K], weight_desc.layout)
    xs = gl.allocate_shared_memory(x_desc.dtype, [NUM_STAGES, BLOCK_M, BLOCK_K], x_desc.layout)
    arrived = gl.allocate_shared_memory(gl.int64, [NUM_STAGES, 1], mbarrier.MBarrierLayout())
    early = gl.allocate_shared_memory(gl.int64, [NUM_STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(NUM_STAGES):
        mbarrier.init(arrived.index(stage), count=1)
        mbarrier.init(early.index(stage), count=1)
    unit_bytes: gl.constexpr = (BLOCK_N + BLOCK_M) * BLOCK_K
    for stage in gl.static_range(NUM_STAGES):
        unit = first + stage
        wanted = stage < count
        if stage >= AT_ONCE:
            mbarrier.wait(early.index(stage - AT_ONCE), 0, pred=wanted)
        at = [unit // steps * BLOCK_N, unit % steps * BLOCK_K]
        mbarrier.expect(early.index(stage), BLOCK_N * BLOCK_K, pred=wanted)
        tma.async_copy_global_to_shared(
            weight_desc, at, early.index(stage), weights.index(stage), pred=wanted
        )
    if not PER_CHANNEL:
        scale = gl.load(scale_ptr)
    gdc_wait()
    if LETS_IN_LATE:
        gdc_launch_dependents()
    for stage in gl.static_range(NUM_STAGES):
        k = (first + stage) % steps * BLOCK_K
        mbarrier.expect(arrived.index(stage), BLOCK_M * BLOCK_K, pred=stage < count)
        tma.async_copy_global_to_shared(
            x_desc, [0, k], arrived.index(stage), xs.index(stage), pred=stage < count
        )

    accumulators: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[num_warps, 1], instr_shape=[16, BLOCK_M, 32]
    )
    stored: gl.constexpr = gl.BlockedLayout([8, 1], [8, 4], [1, num_warps], [0, 1])
    n_N = gl.arange(0, BLOCK_N, gl.SliceLayout(1, stored))
    m_M = gl.arange(0, BLOCK_M, gl.SliceLayout(0, stored))
    in_tile = m_M[None, :] * BLOCK_N + n_N[:, None]
    kept = (m_M < M)[None, :] & (n_N < BLOCK_N)[:, None]
    if row_scale_ptr is not None:
        row_scale_M = gl.load(row_scale_ptr + m_M, mask=m_M < M, other=0.0)
    total = gl.zeros((BLOCK_N, BLOCK_M), gl.float32, accumulators)
    stage = 0
    phase = 0
    for index in range(count):
        unit = first + index
        step = unit % steps
        mbarrier.wait(early.index(stage), 0)
        mbarrier.wait(arrived.index(stage), phase)
        total = warpgroup_mma(
            weights.index(stage),
            xs.index(stage).permute((1, 0)),
            total,
            use_acc=(step > 0) & (index > 0),
            is_async=True,
        )
        total = warpgroup_mma_wait(0, deps=[total])
        block_barrier()  # all warps have read the stage before it is filled again
        later = unit + NUM_STAGES
        wanted = index + NUM_STAGES < count
        k = later % steps * BLOCK_K
        mbarrier.expect(arrived.index(stage), unit_bytes, pred=wanted)
        tma.async_copy_global_to_shared(
            weight_desc,
            [later // steps * BLOCK_N, k],
            arrived.index(stage),
            weights.index(stage),
            pred=wanted,
        )
        tma.async_copy_global_to_shared(x_desc, [0, k], arrived.index(stage), xs.index(stage), pred=wanted)
        stage += 1
        if stage == NUM_STAGES:
            stage = 0
            phase ^= 1

        if (step == steps - 1) | (index == count - 1):
            tile = unit // steps
            begins = unit - step  # the first unit of these channels, and who has it and the last
            first_program = ((begins + 1) * PROGRAMS - 1) // units
            last_program = ((begins + steps) * PROGRAMS - 1) // units
            is_last = True
            result = gl.convert_layout(total, stored)
            if not IN_PARTS and last_program > first_program:
                # A program shares the channels it begins with and those it ends with: two slots.
                slot = program * 2 + (program == first_program).to(gl.int32)
                gl.store(partial_ptr + slot * (BLOCK_M * BLOCK_N) + in_tile, result, mask=kept)
                block_barrier()  # all of this program's stores, before its arrival
                count_before = gl.atomic_add(counter_ptr + tile, 1, sem="acq_rel")
                is_last = count_before == last_program - first_program
                if is_last:
                    result = gl.zeros((BLOCK_N, BLOCK_M), gl.float32, stored)
                    for part in gl.static_range(MAX_PARTS):
                        slot = (first_program + part) * 2 + (1 if part == 0 else 0)
                        there = kept & (first_program + part <= last_program)
                        part_at = partial_ptr + slot * (BLOCK_M * BLOCK_N) + in_tile
                        result += gl.load(part_at, mask=there, other=0.0, cache_modifier=".cg")
                    gl.store(counter_ptr + tile, 0)
            if is_last:
                channels_N = tile * BLOCK_N + n_N
                if PER_CHANNEL:
                    result *= gl.load(scale_ptr + channels_N, mask=channels_N < N, other=0.0)[:, None]
                else:
                    result *= scale
                if row_scale_ptr is not None:
                    result *= row_scale_M[None, :]
                part = program - first_program if IN_PARTS else 0
                if bias_ptr is not None:
                    bias_N = gl.load(bias_ptr + channels_N, mask=(channels_N < N) & (part == 0), other=0.0)
                    result += bias_N.to(gl.float32)[:, None]
                inside = (m_M < M)[None, :] & (channels_N < N)[:, None]
                place = m_M[None, :].to(gl.int64) * out_stride + channels_N[:, None]
                if IN_PARTS:
                    place += (program - first_program).to(gl.int64) * M * out_stride
                gl.store(out_ptr + place, result.to(out_ptr.dtype.element_ty), mask=inside)
                for copy in gl.static_range(COPIES):
                    copy_ptr = copies[copy].to(gl.int64).to(gl.pointer_type(gl.float32))
                    gl.store(copy_ptr + place, result, mask=inside)
                if IN_PARTS:
                    for behind in gl.static_range(1, MAX_PARTS):
                        missing = inside & (program == last_program) & (part + behind < MAX_PARTS)
                        zeros, behind_it = gl.zeros_like(result), place + behind * M * out_stride
                        gl.store(out_ptr + behind_it, zeros, mask=missing)
                        for copy in gl.static_range(COPIES):
                            copy_ptr = copies[copy].to(gl.int64).to(gl.pointer_type(gl.float32))
                            gl.store(copy_ptr + behind_it, zeros, mask=missing)
