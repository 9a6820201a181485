"""Launches LoRA on a GPU: which kernels a bucket launches and with what sizes.

Tuning constants and the list of what must compile are here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.backend import INTERPRETING
from kernels.compilation import ARCHITECTURES, Compilation
from kernels.lora import tiling
from kernels.lora.device_work import DeviceWork
from kernels.lora.kernels.expand import expand_rows
from kernels.lora.kernels.shrink import shrink_rows
from kernels.lora.kernels.tiles import expand_tiles, shrink_tiles
from kernels.lora.kernels.wide_pairs import shrink_wide_pairs
from kernels.lora.scratch import Scratch
from kernels.lora.table import DEFAULT_MAX_RANK, MAX_MODULES, AdapterTable
from kernels.overlap import starts_early

COMPUTE = tl.float32 if INTERPRETING else tl.bfloat16
"""What tensor cores multiply; the interpreter's bf16 products are wrong."""
MAX_PARTS = 48
"""A row of A each, of three modules of rank 16."""
WIDE_OUTPUT = 8192
"""Columns of a module from which a unit of a block is two tiles: looking a slot up takes a tile's time."""


@dataclass(frozen=True)
class Plan:
    """Sizes of one launch."""

    constants: dict[str, Any]
    num_warps: int
    num_stages: int = 2
    programs_per_sm: int = 4
    max_registers: int | None = None


def plan_shrink_rows(width_in: int, bucket: int, rank_stride: int) -> Plan:
    """A whole row of A at a time where that fits the registers, 16 or 32 of its columns a thread."""
    step, medium = triton.next_power_of_2(width_in), bucket <= tiling.MEDIUM_BUCKET
    constants = {
        "K": width_in,
        "RANK_STRIDE": rank_stride,
        "MAX_PARTS": MAX_PARTS,
        "STEP": step if step <= 16384 else 4096,
        "AHEAD": 4,
        "CHUNK": tiling.chunk_size(width_in),
        "CHUNKS": tiling.num_chunks(width_in),
        "BLOCK_R": 32,
        "BLOCK_K": tiling.STEP,
        "BLOCK_ROWS": tiling.BLOCK_ROWS,
        "FETCHES": bucket <= tiling.SMALL_BUCKET and width_in % 16 == 0,
        "WITH_PAIRS": not pairs_are_wide(width_in, bucket),
    }
    if step <= 4096:
        return Plan(constants, 8, 3, 3, 80) if medium else Plan(constants, 4, 3, 4, 128)
    if not constants["WITH_PAIRS"]:
        return Plan(constants, 4, 3, 4, 128)
    return Plan(constants, 16, 3, 1, 128) if step == 16384 else Plan(constants, 8, 3, 2, 128)


def pairs_are_wide(width_in: int, bucket: int) -> bool:
    """Whether pairs have a launch of their own, on tensor cores. As rows of A in registers they take 512
    threads, and more than a few of those programs get in each other's way.
    """
    return bucket > tiling.MEDIUM_BUCKET and 8192 < width_in <= 16384


def plan_shrink_wide_pairs(width_in: int, rank_stride: int) -> Plan:
    constants = {
        "K": width_in,
        "CHUNK": tiling.wide_pair_chunk(width_in),
        "CHUNKS": tiling.WIDE_PAIR_CHUNKS,
        "RANK_STRIDE": rank_stride,
        "PAIR_ROWS": tiling.PAIR_ROWS,
        "BLOCK_R": 16,
        "BLOCK_K": tiling.WIDE_PAIR_STEP,
    }
    return Plan(constants, 1, 3, 8)


def plan_expand_rows(widths: Sequence[int], bucket: int, rank_stride: int) -> Plan:
    """Measured likewise. 16 columns a thread, so that every thread sums over ranks by itself."""
    small = bucket <= tiling.SMALL_BUCKET
    pair_n = 128 if small else 1024
    constants = {
        **_columns(widths),
        "RANK_STRIDE": rank_stride,
        "PAIR_R": 16 if small else 4,
        "PAIR_N": pair_n,
        "BLOCK_R": 16,
        "BLOCK_N": 64 if small else 128,
        "STRETCH": 2 if max(widths) >= WIDE_OUTPUT and not small else 1,
        "BLOCK_ROWS": tiling.BLOCK_ROWS,
        "FETCHES": small and all(width % pair_n == 0 for width in widths),
    }
    return Plan(constants, 1, programs_per_sm=16) if small else Plan(constants, 2, 2, 8, 128)


def plan_shrink_tiles(width_in: int, bucket: int, rank_stride: int) -> Plan:
    constants = {
        "K": width_in,
        "SPLITS": tiling.num_splits(width_in, bucket),
        "SPAN": tiling.span_size(width_in, bucket),
        "RANK_STRIDE": rank_stride,
        "BLOCK_M": tiling.TILE_ROWS,
        "BLOCK_R": 64,
        "BLOCK_K": tiling.STEP,
    }
    return Plan(constants, 4, 4)


def plan_expand_tiles(widths: Sequence[int], rank_stride: int) -> Plan:
    constants = {
        **_columns(widths),
        "BLOCK_N": 128,
        "STRETCH": 8,
        "RANK_STRIDE": rank_stride,
        "BLOCK_M": tiling.TILE_ROWS,
        "BLOCK_R": 16,
    }
    return Plan(constants, 8, programs_per_sm=2, max_registers=128)


def _columns(widths: Sequence[int]) -> dict[str, int]:
    padded = [*widths, *(0,) * (MAX_MODULES - len(widths))]
    align = math.gcd(16, *widths)
    return {**{f"N{module}": width for module, width in enumerate(padded)}, "ALIGN": align}


@cache
def _num_multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _launch(
    kernel: Any,
    plan: Plan,
    grid: int | tuple[int, int],
    early: bool,
    arguments: Sequence[Any],
    **strides: int,
) -> None:
    """`grid`: or units of work, for kernels that take any number of programs."""
    of = arguments[0]
    modern = starts_early(of)
    early = early and modern
    constants = {**plan.constants, **strides, "WITH_E4M3": True, "COMPUTE": COMPUTE, "STARTS_EARLY": early}
    if "FETCHES" in constants:
        constants["FETCHES"] = modern and constants["FETCHES"]
    options: dict[str, Any] = {"launch_pdl": True} if early else {}
    if plan.max_registers and not INTERPRETING:
        options["maxnreg"] = plan.max_registers
    if isinstance(grid, int):
        cut: tuple[int, ...] = (min(grid, plan.programs_per_sm * _num_multiprocessors(of.device)),)
    else:
        cut = grid
    kernel[cut](*arguments, **constants, num_warps=plan.num_warps, num_stages=plan.num_stages, **options)


def shrink_triton(
    x_TK: Tensor,
    work: DeviceWork,
    table: AdapterTable,
    place: int,
    scratch: Scratch,
    shrunk: Tensor,
    early: bool,
) -> None:
    """As `shrink_reference`. `early`: kernels may start before the last kernel of the stream has ended."""
    bucket, width_in = x_TK.shape
    limits, arena = work.limits(bucket), table.arena
    given = (
        *(x_TK, shrunk, scratch.partials, scratch.counters),
        *(arena, arena.view(torch.bfloat16), arena.view(torch.float32), table.offsets, table.ranks),
        work.counts.device,
    )
    where = (work.order.device, place, table.num_slots)
    stride = {"X_STRIDE": x_TK.stride(0)}
    plan = plan_shrink_rows(width_in, bucket, scratch.rank_stride)
    units = limits.pairs * MAX_PARTS + limits.blocks * plan.constants["CHUNKS"]
    lists = (work.pairs.device, work.blocks.device)
    _launch(shrink_rows, plan, units, early, (*given, *lists, *where), **stride)
    if limits.pairs and pairs_are_wide(width_in, bucket):
        plan = plan_shrink_wide_pairs(width_in, scratch.rank_stride)
        units = limits.pairs * tiling.WIDE_PAIR_CHUNKS
        _launch(shrink_wide_pairs, plan, units, early, (*given, work.pairs.device, *where[1:]), **stride)
    if limits.tiles:
        plan = plan_shrink_tiles(width_in, bucket, scratch.rank_stride)
        grid = (limits.tiles, plan.constants["SPLITS"])
        _launch(shrink_tiles, plan, grid, early, (*given, work.tiles.device, *where), **stride)


def expand_triton(
    out_TN: Tensor,
    widths: Sequence[int],
    scale_T: Tensor | None,
    work: DeviceWork,
    table: AdapterTable,
    place: int,
    scratch: Scratch,
    early: bool,
) -> None:
    """As `expand_reference`."""
    bucket = out_TN.shape[0]
    limits, arena = work.limits(bucket), table.arena
    given = (
        *(out_TN, scale_T, scratch.shrunk, arena, arena.view(torch.bfloat16), table.offsets, table.ranks),
        work.counts.device,
    )
    where = (work.order.device, place, table.num_slots)
    stride = {"OUT_STRIDE": out_TN.stride(0)}
    plan = plan_expand_rows(widths, bucket, scratch.rank_stride)
    units = limits.pairs * _num_tiles(widths, plan.constants["PAIR_N"])
    units += limits.blocks * _num_tiles(widths, plan.constants["STRETCH"] * plan.constants["BLOCK_N"])
    lists = (work.pairs.device, work.blocks.device)
    _launch(expand_rows, plan, units, early, (*given, *lists, *where), **stride)
    if limits.tiles:
        plan = plan_expand_tiles(widths, scratch.rank_stride)
        units = limits.tiles * _num_tiles(widths, plan.constants["STRETCH"] * plan.constants["BLOCK_N"])
        _launch(expand_tiles, plan, units, early, (*given, work.tiles.device, *where), **stride)


def _num_tiles(widths: Sequence[int], size: int) -> int:
    return sum(triton.cdiv(width, size) for width in widths)


_SHAPES = (
    (4096, (4096, 1024, 1024), (1, 256, 2048)),
    (4096, (4096,), (32,)),
    (4096, (14336, 14336), (8192,)),
    (14336, (4096,), (1, 256)),
    (256, (256, 128, 128), (32,)),
    (640, (256,), (512,)),
)
"""(columns in, columns out, buckets) of the groups of an 8B model and of sapling; not every pair of them."""


def _compilation(kernel: Any, plan: Plan, architecture: int) -> Compilation:
    types = {
        **{f"{name}_ptr": "*bf16" for name in ("x", "out", "bf16")},
        **{f"{name}_ptr": "*fp32" for name in ("scale", "shrunk", "partials", "fp32")},
        **{f"{name}_ptr": "*i32" for name in ("ranks", "counts", "counters", "order")},
        **{f"{name}_ptr": "*i32" for name in ("pairs", "blocks", "tiles")},
        **{"bytes_ptr": "*u8", "offsets_ptr": "*i64"},
        **dict.fromkeys(("place", "num_slots"), "i32"),
    }
    signature = {name: types[name] for name in kernel.arg_names if name in types}
    modern = architecture >= 90  # e4m3 conversion, dependent launch, bulk prefetch
    sizes = plan.constants
    constants = {**sizes, "WITH_E4M3": modern, "COMPUTE": tl.bfloat16, "STARTS_EARLY": modern}
    if "K" in sizes:
        constants["X_STRIDE"] = sizes["K"]
    else:
        constants["OUT_STRIDE"] = sum(sizes[f"N{module}"] for module in range(MAX_MODULES))
    if "FETCHES" in sizes:
        constants["FETCHES"] = modern and sizes["FETCHES"]
    return Compilation(
        kernel,
        signature,
        constants,
        plan.num_warps,
        plan.num_stages,
        (architecture,),
        local_bytes=0 if architecture == 90 else 32,  # one number for architectures that are not tuned yet
    )


def _compilations() -> list[Compilation]:
    stride = MAX_MODULES * DEFAULT_MAX_RANK
    wanted: list[tuple[Any, Plan]] = []
    for width_in, widths, buckets in _SHAPES:
        for bucket in buckets:
            if bucket > tiling.TILES_FROM:
                wanted.append((shrink_tiles, plan_shrink_tiles(width_in, bucket, stride)))
                wanted.append((expand_tiles, plan_expand_tiles(widths, stride)))
            else:
                wanted.append((shrink_rows, plan_shrink_rows(width_in, bucket, stride)))
                if pairs_are_wide(width_in, bucket):
                    wanted.append((shrink_wide_pairs, plan_shrink_wide_pairs(width_in, stride)))
                wanted.append((expand_rows, plan_expand_rows(widths, bucket, stride)))
    return [
        _compilation(kernel, plan, architecture) for architecture in ARCHITECTURES for kernel, plan in wanted
    ]


COMPILATIONS = _compilations()
