"""Launches LoRA on a GPU: which kernels a bucket launches and with what sizes.

Tuning constants and the list of what must compile are here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
from kernels.lora.mailbox import Mailbox
from kernels.lora.scratch import Scratch
from kernels.lora.table import DEFAULT_MAX_RANK, MAX_MODULES, AdapterTable
from kernels.overlap import starts_early

COMPUTE = tl.float32 if INTERPRETING else tl.bfloat16
"""What tensor cores multiply; the interpreter's bf16 products are wrong."""
MAX_PARTS = 48
"""A row of A each, of three modules of rank 16."""
ROWS_OF_A_TOGETHER = {2048: 8, 4096: 4, 8192: 2}
"""By their length, rounded up to a power of two: what is in flight is as much as fits the registers."""
WIDE_OUTPUT = 8192
"""Columns of a module from which a unit of a block is two tiles: looking a slot up takes a tile's time."""
GROUP_BUCKET = 64
"""Rows up to which a rank of a group has programs of few columns."""
NARROW_OUTPUT = 4096
"""Columns of all modules up to which 32 adapters have no more units of 128 columns than programs run."""


@dataclass(frozen=True)
class Plan:
    """Sizes of one launch."""

    constants: dict[str, Any]
    num_warps: int
    num_stages: int = 2
    programs_per_sm: int = 4
    max_registers: int | None = None


def plan_shrink_rows(
    width_in: int, bucket: int, rank_stride: int, *, with_blocks: bool, apart: bool = False
) -> Plan:
    """A whole row of A at a time where that fits the registers, 16 or 32 of its columns a thread.

    Up to `MEDIUM_BUCKET` rows the programs are to run beside the base product's, which leave 19 KB of shared
    memory: no row is asked for ahead; where there are more than `SMALL_BUCKET`, several are read together.
    """
    step = triton.next_power_of_2(width_in)
    constants = {
        "K": width_in,
        "RANK_STRIDE": rank_stride,
        "MAX_PARTS": MAX_PARTS,
        "STEP": step if step <= 16384 else 4096,
        "AHEAD": 4,
        "TOGETHER": 1,
        "CHUNK": tiling.chunk_size(width_in),
        "CHUNKS": tiling.num_chunks(width_in),
        "BLOCK_R": 32,
        "BLOCK_K": tiling.STEP,
        "BLOCK_ROWS": tiling.BLOCK_ROWS,
        "FETCHES": not apart and bucket <= tiling.SMALL_BUCKET and width_in % 16 == 0,
        "WITH_PAIRS": not pairs_are_wide(width_in, bucket),
        "WITH_BLOCKS": with_blocks,
        "APART": apart,
    }
    if bucket <= tiling.MEDIUM_BUCKET:
        # Products of 16 ranks take a third less shared memory than of 32; where inputs are narrow they spill.
        constants |= {"AHEAD": 1, "BLOCK_R": 16 if step >= 2048 else 32}
        together = ROWS_OF_A_TOGETHER.get(step, 1)
        if bucket > tiling.SMALL_BUCKET and together > 1:
            constants |= {"TOGETHER": together, "MAX_PARTS": MAX_PARTS // together}
        else:
            constants["STEP"] = min(step, 4096)
        return Plan(constants, 8, 2, 2, 80 if constants["STEP"] <= 4096 else 96)
    if step <= 4096 or not constants["WITH_PAIRS"]:
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


def plan_expand_rows(
    widths: Sequence[int],
    bucket: int,
    rank_stride: int,
    num_ranks: int = 0,
    *,
    with_blocks: bool,
    apart: bool = False,
) -> Plan:
    """Measured likewise. 16 columns a thread, so that every thread sums over ranks by itself; fewer where
    many small programs are best, which is also where a group's rank has a few columns of many adapters.
    """
    of_group = num_ranks > 1 and bucket <= GROUP_BUCKET
    small = bucket <= tiling.SMALL_BUCKET or of_group
    pair_r, pair_n = (16, 128) if small else (4, 1024)
    if of_group and bucket > tiling.SMALL_BUCKET and sum(widths) > NARROW_OUTPUT:
        pair_r, pair_n = 8, 256  # all programs at once
    constants = {
        **_columns(widths),
        "RANK_STRIDE": rank_stride,
        "PAIR_R": pair_r,
        "PAIR_N": pair_n,
        "BLOCK_R": 16,
        "BLOCK_N": 64 if small else 128,
        "STRETCH": 2 if max(widths) >= WIDE_OUTPUT and not small else 1,
        "BLOCK_ROWS": tiling.BLOCK_ROWS,
        "FETCHES": not apart and small and all(width % pair_n == 0 for width in widths),
        "WITH_BLOCKS": with_blocks,
        "APART": apart,
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
    shrunk: Tensor | Mailbox,
    early: bool,
    apart: bool = False,
) -> None:
    """As `shrink_reference`.

    Args:
        shrunk: a mailbox sends what is computed to all ranks.
        early: kernels may start before the last kernel of the stream has ended.
        apart: the last one lets this one start once `x_TK` is there, and nothing else is waited for; in
            buckets of up to `MEDIUM_BUCKET` rows, with a mailbox.
    """
    bucket, width_in = x_TK.shape
    limits, arena = work.limits(bucket), table.arena
    target, number, size = shrunk, None, 0
    if isinstance(shrunk, Mailbox):
        target, number, size = shrunk.outboxes_R, shrunk.number, len(shrunk.outboxes_R)
    given = (
        *(x_TK, target, scratch.partials, scratch.counters),
        *(arena, arena.view(torch.bfloat16), arena.view(torch.float32), table.offsets, table.ranks),
        work.counts.device,
    )
    where = (work.order.device, place, table.num_slots)
    stride = {"X_STRIDE": x_TK.stride(0)}
    sized = stride | {"SIZE": size}
    with_blocks = limits.blocks > 0
    plan = plan_shrink_rows(width_in, bucket, scratch.rank_stride, with_blocks=with_blocks, apart=apart)
    units = limits.pairs * MAX_PARTS + limits.blocks * plan.constants["CHUNKS"]
    lists = (work.pairs.device, work.blocks.device)
    _launch(shrink_rows, plan, units, early, (*given, *lists, *where, number), **sized)
    if limits.pairs and pairs_are_wide(width_in, bucket):
        plan = plan_shrink_wide_pairs(width_in, scratch.rank_stride)
        units = limits.pairs * tiling.WIDE_PAIR_CHUNKS
        _launch(
            shrink_wide_pairs, plan, units, early, (*given, work.pairs.device, *where[1:], number), **sized
        )
    if limits.tiles:
        assert size == 0, "buckets with tiles sum their parts by launches of their own"
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
    shrunk: Tensor | Mailbox,
    early: bool,
    apart: bool = False,
) -> None:
    """As `expand_reference`.

    Args:
        shrunk: what ranks sent to a mailbox is waited for and summed.
        early: as in `shrink_triton`.
        apart: `out_TN` is overwritten where a row has an adapter, while kernels before shrink may still run.
    """
    bucket = out_TN.shape[0]
    limits, arena = work.limits(bucket), table.arena
    source, number, sizes = shrunk, None, {"SIZE": 0, "PART_SIZE": 0}
    if isinstance(shrunk, Mailbox):
        source, number = shrunk.inbox_RPW, shrunk.number
        sizes = {"SIZE": len(source), "PART_SIZE": source[0].numel()}
    given = (
        *(out_TN, scale_T, source, arena, arena.view(torch.bfloat16), table.offsets, table.ranks),
        work.counts.device,
    )
    where = (work.order.device, place, table.num_slots)
    stride = {"OUT_STRIDE": out_TN.stride(0)}
    num_ranks, with_blocks = sizes["SIZE"], limits.blocks > 0
    plan = plan_expand_rows(
        widths, bucket, scratch.rank_stride, num_ranks, with_blocks=with_blocks, apart=apart
    )
    units = limits.pairs * _num_tiles(widths, plan.constants["PAIR_N"])
    units += limits.blocks * _num_tiles(widths, plan.constants["STRETCH"] * plan.constants["BLOCK_N"])
    lists = (work.pairs.device, work.blocks.device)
    _launch(expand_rows, plan, units, early, (*given, *lists, *where, number), **stride, **sizes)
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


_RANK_SHAPES = (
    (4, 2048, (2048, 256, 256), (1, 32)),
    (4, 2048, (7168, 7168), (32, 256)),
    (4, 7168, (2048,), (32,)),
    (2, 14336, (4096,), (256,)),
)
"""(ranks, columns in, columns out, buckets) of one rank of a 70B model."""


def _compilation(kernel: Any, plan: Plan, architecture: int, num_ranks: int = 0) -> Compilation:
    """`num_ranks`: that send words; 0 where there are none."""
    types = {
        **{f"{name}_ptr": "*bf16" for name in ("x", "out", "bf16")},
        **{f"{name}_ptr": "*fp32" for name in ("scale", "shrunk", "partials", "fp32")},
        **{f"{name}_ptr": "*i32" for name in ("ranks", "counts", "counters", "order")},
        **{f"{name}_ptr": "*i32" for name in ("pairs", "blocks", "tiles")},
        **{"bytes_ptr": "*u8", "offsets_ptr": "*i64"},
        **dict.fromkeys(("place", "num_slots"), "i32"),
    }
    if num_ranks:
        types |= {"shrunk_ptr": "*i64", "number_ptr": "*i32"}
    missing = set() if num_ranks else {"number_ptr"}
    sizes = plan.constants
    if sizes.get("APART") and "N0" in sizes:
        types["out_ptr"] = "*fp32"
        missing.add("scale_ptr")
    signature = {name: types[name] for name in kernel.arg_names if name in types.keys() - missing}
    modern = architecture >= 90  # e4m3 conversion, dependent launch, bulk prefetch
    constants = {**sizes, "WITH_E4M3": modern, "COMPUTE": tl.bfloat16, "STARTS_EARLY": modern}
    if "K" in sizes:
        constants["X_STRIDE"] = sizes["K"]
    else:
        constants["OUT_STRIDE"] = sum(sizes[f"N{module}"] for module in range(MAX_MODULES))
    if "FETCHES" in sizes:
        constants["FETCHES"] = modern and sizes["FETCHES"]
    stride = sizes["RANK_STRIDE"]
    of_group = {"SIZE": num_ranks, "PART_SIZE": tiling.TILES_FROM * stride if num_ranks else 0}
    constants |= {name: value for name, value in of_group.items() if name in kernel.arg_names}
    constants |= {name: None for name in missing if name in kernel.arg_names}
    return Compilation(
        kernel,
        signature,
        constants,
        plan.num_warps,
        plan.num_stages,
        (architecture,),
        # One number for architectures that are not tuned yet; with words the program that adds up 16 chunks
        # spills 16 bytes, once a unit.
        local_bytes=0 if architecture == 90 and not num_ranks else 32,
    )


def _compilations() -> list[Compilation]:
    found: list[Compilation] = []
    for width_in, widths, buckets in _SHAPES:
        for bucket in buckets:
            for kernel, plan in _launches(width_in, widths, bucket, num_ranks=0):
                found += [_compilation(kernel, plan, architecture) for architecture in ARCHITECTURES]
            for kernel, plan in _launches_apart(width_in, widths, bucket):
                found.append(_compilation(kernel, plan, 90, num_ranks=1))
    for num_ranks, width_in, widths, buckets in _RANK_SHAPES:
        for bucket in buckets:
            for kernel, plan in _launches(width_in, widths, bucket, num_ranks):
                found.append(_compilation(kernel, plan, 90, num_ranks))
    return found


def _forms(bucket: int) -> Sequence[bool]:
    """Whether there may be blocks: in small buckets only where all is blocks."""
    return (False, True) if bucket <= tiling.MEDIUM_BUCKET else (True,)


def _launches(
    width_in: int, widths: Sequence[int], bucket: int, num_ranks: int
) -> Iterator[tuple[Any, Plan]]:
    """Of one group in one bucket; beyond `TILES_FROM` those of tiles alone."""
    stride = MAX_MODULES * DEFAULT_MAX_RANK
    if bucket > tiling.TILES_FROM:
        yield shrink_tiles, plan_shrink_tiles(width_in, bucket, stride)
        yield expand_tiles, plan_expand_tiles(widths, stride)
        return
    for with_blocks in _forms(bucket):
        yield shrink_rows, plan_shrink_rows(width_in, bucket, stride, with_blocks=with_blocks)
    if pairs_are_wide(width_in, bucket):
        yield shrink_wide_pairs, plan_shrink_wide_pairs(width_in, stride)
    for with_blocks in _forms(bucket):
        yield expand_rows, plan_expand_rows(widths, bucket, stride, num_ranks, with_blocks=with_blocks)


def _launches_apart(width_in: int, widths: Sequence[int], bucket: int) -> Iterator[tuple[Any, Plan]]:
    """Of one group behind a product that lets them start."""
    stride = MAX_MODULES * DEFAULT_MAX_RANK
    if bucket <= tiling.MEDIUM_BUCKET and width_in >= 4096:
        for with_blocks in _forms(bucket):
            yield shrink_rows, plan_shrink_rows(width_in, bucket, stride, with_blocks=with_blocks, apart=True)
            yield expand_rows, plan_expand_rows(widths, bucket, stride, with_blocks=with_blocks, apart=True)


COMPILATIONS = _compilations()
