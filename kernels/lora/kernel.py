"""LoRA on a GPU: which kernels a bucket launches and with what sizes.

Owns tuning constants and the list of what must compile. Refuses to know what the kernels do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
from kernels.lora.scratch import Scratch
from kernels.lora.table import DEFAULT_MAX_RANK, MAX_MODULES, AdapterTable
from kernels.overlap import starts_early

COMPUTE = tl.float32 if INTERPRETING else tl.bfloat16
"""What tensor cores multiply; the interpreter's bf16 products are wrong."""
PROGRAMS_PER_SM = {shrink_rows: 4, expand_rows: 8}
MAX_REGISTERS = {shrink_rows: 128, expand_rows: 128}


def shrink_rows_sizes(width_in: int, bucket: int, rank_stride: int) -> dict[str, Any]:
    return {
        "K": width_in,
        "RANK_STRIDE": rank_stride,
        "PARTS": tiling.num_parts(width_in, bucket),
        "STEP": min(triton.next_power_of_2(width_in), 4096 if width_in <= 4096 else 2048),
        "AHEAD": 4,
        "CHUNK": tiling.chunk_size(width_in),
        "CHUNKS": tiling.num_chunks(width_in),
        "BLOCK_R": 64,
        "BLOCK_K": 64,
        "BLOCK_ROWS": tiling.BLOCK_ROWS,
        "FETCHES": bucket <= tiling.SMALL_BUCKET and width_in % 16 == 0,
    }


def expand_rows_sizes(widths: Sequence[int], bucket: int, rank_stride: int) -> dict[str, Any]:
    small = bucket <= tiling.SMALL_BUCKET
    pair_n = 256 if small else 1024
    return {
        **_columns(widths),
        "RANK_STRIDE": rank_stride,
        "PAIR_R": 16 if small else 4,
        "PAIR_N": pair_n,
        "BLOCK_R": 16,
        "BLOCK_N": 64 if small else 128,
        "BLOCK_ROWS": tiling.BLOCK_ROWS,
        "FETCHES": small and all(width % pair_n == 0 for width in widths),
    }


def shrink_tiles_sizes(width_in: int, bucket: int, rank_stride: int) -> dict[str, Any]:
    return {
        "K": width_in,
        "SPLITS": tiling.num_splits(width_in, bucket),
        "SPAN": tiling.span_size(width_in, bucket),
        "RANK_STRIDE": rank_stride,
        "BLOCK_M": tiling.TILE_ROWS,
        "BLOCK_R": 64,
        "BLOCK_K": tiling.STEP,
    }


def expand_tiles_sizes(widths: Sequence[int], rank_stride: int) -> dict[str, Any]:
    return {
        **_columns(widths),
        "BLOCK_N": 128,
        "RANK_STRIDE": rank_stride,
        "BLOCK_M": tiling.TILE_ROWS,
        "BLOCK_R": 32,
    }


WARPS = {shrink_rows: 4, expand_rows: 2, shrink_tiles: 4, expand_tiles: 4}
STAGES = {shrink_rows: 3, expand_rows: 2, shrink_tiles: 3, expand_tiles: 2}


def _columns(widths: Sequence[int]) -> dict[str, int]:
    padded = [*widths, *(0,) * (MAX_MODULES - len(widths))]
    align = math.gcd(16, *widths)
    return {**{f"N{module}": width for module, width in enumerate(padded)}, "ALIGN": align}


@cache
def _num_multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _num_programs(kernel: Any, device: torch.device) -> int:
    return PROGRAMS_PER_SM[kernel] * _num_multiprocessors(device)


def _launch(
    kernel: Any, grid: tuple[int, ...], early: bool, arguments: Sequence[Any], sizes: dict[str, Any]
) -> None:
    modern = starts_early(arguments[0])
    early = early and modern
    if "FETCHES" in sizes:
        sizes["FETCHES"] = modern and sizes["FETCHES"]
    options: dict[str, Any] = {"launch_pdl": True} if early else {}
    if not INTERPRETING and kernel in MAX_REGISTERS:
        options["maxnreg"] = MAX_REGISTERS[kernel]
    kernel[grid](
        *arguments,
        **sizes,
        WITH_E4M3=True,
        COMPUTE=COMPUTE,
        STARTS_EARLY=early,
        num_warps=WARPS[kernel],
        num_stages=STAGES[kernel],
        **options,
    )


def shrink_triton(
    x_TK: Tensor, work: DeviceWork, table: AdapterTable, place: int, scratch: Scratch, early: bool
) -> None:
    """As `shrink_reference`."""
    bucket, width_in = x_TK.shape
    limits, arena, order = work.limits(bucket), table.arena, work.order.device
    given = (
        *(x_TK, scratch.shrunk, scratch.partials, scratch.counters),
        *(arena, arena.view(torch.bfloat16), arena.view(torch.float32), table.offsets, table.ranks),
        work.counts.device,
    )
    where = (order, place, table.num_slots)
    sizes = {"X_STRIDE": x_TK.stride(0), **shrink_rows_sizes(width_in, bucket, scratch.rank_stride)}
    units = limits.pairs * sizes["PARTS"] + limits.blocks * sizes["CHUNKS"]
    grid = (min(units, _num_programs(shrink_rows, x_TK.device)),)
    _launch(shrink_rows, grid, early, (*given, work.pairs.device, work.blocks.device, *where), sizes)
    if limits.tiles:
        sizes = {"X_STRIDE": x_TK.stride(0), **shrink_tiles_sizes(width_in, bucket, scratch.rank_stride)}
        _launch(
            shrink_tiles, (limits.tiles, sizes["SPLITS"]), early, (*given, work.tiles.device, *where), sizes
        )


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
    sizes = {"OUT_STRIDE": out_TN.stride(0), **expand_rows_sizes(widths, bucket, scratch.rank_stride)}
    units = limits.pairs * _num_tiles(widths, sizes["PAIR_N"])
    units += limits.blocks * _num_tiles(widths, sizes["BLOCK_N"])
    grid = (min(units, _num_programs(expand_rows, out_TN.device)),)
    _launch(expand_rows, grid, early, (*given, work.pairs.device, work.blocks.device, *where), sizes)
    if limits.tiles:
        sizes = {"OUT_STRIDE": out_TN.stride(0), **expand_tiles_sizes(widths, scratch.rank_stride)}
        tiles = _num_tiles(widths, sizes["BLOCK_N"])
        _launch(expand_tiles, (tiles, limits.tiles), early, (*given, work.tiles.device, *where), sizes)


def _num_tiles(widths: Sequence[int], size: int) -> int:
    return sum(triton.cdiv(width, size) for width in widths)


_SHAPES = (
    (4096, (4096, 1024, 1024), (1, 256, 2048)),
    (4096, (4096,), (256,)),
    (4096, (14336, 14336), (1, 256, 8192)),
    (14336, (4096,), (1, 256)),
    (256, (256, 128, 128), (32,)),
    (256, (640, 640), (512,)),
    (640, (256,), (32,)),
)
"""(columns in, columns out, buckets) of the groups of an 8B model and of sapling; not every pair of them."""


def _compilation(kernel: Any, sizes: dict[str, Any], architecture: int) -> Compilation:
    types = {
        **{f"{name}_ptr": "*bf16" for name in ("x", "out", "bf16")},
        **{f"{name}_ptr": "*fp32" for name in ("scale", "shrunk", "partials", "fp32")},
        **{
            f"{name}_ptr": "*i32"
            for name in ("ranks", "counts", "counters", "pairs", "blocks", "tiles", "order")
        },
        **{"bytes_ptr": "*u8", "offsets_ptr": "*i64"},
        **dict.fromkeys(("place", "num_slots"), "i32"),
    }
    signature = {name: types[name] for name in kernel.arg_names if name in types}
    modern = architecture >= 90  # e4m3 conversion, dependent launch, bulk prefetch
    constants = {**sizes, "WITH_E4M3": modern, "COMPUTE": tl.bfloat16, "STARTS_EARLY": modern}
    if "K" in sizes:
        constants["X_STRIDE"] = sizes["K"]
    else:
        constants["OUT_STRIDE"] = sum(sizes[f"N{module}"] for module in range(MAX_MODULES))
    if "FETCHES" in sizes:
        constants["FETCHES"] = modern and sizes["FETCHES"]
    return Compilation(kernel, signature, constants, WARPS[kernel], STAGES[kernel], (architecture,))


def _compilations() -> list[Compilation]:
    stride = MAX_MODULES * DEFAULT_MAX_RANK
    wanted = []
    for width_in, widths, buckets in _SHAPES:
        for bucket in buckets:
            if bucket > tiling.TILES_FROM:
                wanted.append((shrink_tiles, shrink_tiles_sizes(width_in, bucket, stride)))
                wanted.append((expand_tiles, expand_tiles_sizes(widths, stride)))
            else:
                wanted.append((shrink_rows, shrink_rows_sizes(width_in, bucket, stride)))
                wanted.append((expand_rows, expand_rows_sizes(widths, bucket, stride)))
    return [
        _compilation(kernel, sizes, architecture)
        for architecture in ARCHITECTURES
        for kernel, sizes in wanted
    ]


COMPILATIONS = _compilations()
