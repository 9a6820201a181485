"""Builds adapters in a table and steps over them, for the tests and benchmarks of the device path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from kernels.lora.device import DeviceLora, RankSums
from kernels.lora.table import ALIGNMENT, BF16, E4M3, MAX_MODULES, RANK_SCALES, A, AdapterTable, B
from kernels.lora_work import NO_SLOT
from kernels.step_inputs import StepInputs


@dataclass(frozen=True)
class Slot:
    """One adapter, the same shape in every layer; rank 0 leaves a module out."""

    ranks: tuple[int, ...]
    code: int = BF16


@dataclass
class Layout:
    """Where the parts of many adapters go in one arena: filled in turn, every part aligned."""

    parts: list[tuple[int, Tensor]] = field(default_factory=list)
    size: int = 0

    def put(self, part: Tensor) -> int:
        offset = self.size
        raw = part.contiguous().view(torch.uint8).flatten()
        self.parts.append((offset, raw))
        self.size += -(-len(raw) // ALIGNMENT) * ALIGNMENT
        return offset

    def arena(self, device: torch.device | str) -> Tensor:
        """Gaps between parts are NaN in every type, so that reading them shows."""
        arena = torch.full((self.size + ALIGNMENT,), 0xFF, dtype=torch.uint8, device=device)
        for offset, raw in self.parts:
            arena[offset : offset + len(raw)] = raw
        return arena


def make_table(
    slots: Sequence[Slot | None],
    width_in: int,
    widths: Sequence[int],
    device: torch.device | str = "cpu",
    num_layers: int = 1,
    seed: int = 0,
    spoil: dict[int, float] | None = None,
    generated_on: torch.device | str = "cpu",
) -> AdapterTable:
    """A table of one group, random weights: the same on any device, if generated on the same.

    `spoil`: slots whose A and B are filled with a value.
    """
    table = AdapterTable(num_layers, len(slots), ("group",), device)
    generator = torch.Generator(generated_on).manual_seed(seed)
    layout = Layout()
    for layer in range(num_layers):
        for place, slot in enumerate(slots):
            if slot is None:
                continue
            dtype = torch.bfloat16 if slot.code == BF16 else torch.float8_e4m3fn
            ranks = [*slot.ranks, *(0,) * (MAX_MODULES - len(slot.ranks))]

            def random(*shape: int, dtype: torch.dtype = dtype, place: int = place) -> Tensor:
                made = torch.randn(shape, generator=generator, device=generated_on)
                return (made.fill_(spoil[place]) if spoil and place in spoil else made).to(dtype)

            offsets = torch.zeros(MAX_MODULES + 2, dtype=torch.int64)
            offsets[A] = layout.put(random(sum(ranks), width_in))
            for module, (rank, width) in enumerate(zip(slot.ranks, widths, strict=True)):
                offsets[B + module] = layout.put(random(rank, width))
            factors = torch.rand(sum(ranks), generator=generator, device=generated_on)
            factors = (0.5 + factors) / width_in**0.5
            offsets[RANK_SCALES] = layout.put(factors)
            table.offsets[layer, 0, place] = offsets
            table.ranks[layer, 0, place] = torch.tensor([*ranks, slot.code], dtype=torch.int32)
    table.arena = layout.arena(device)
    return table


@dataclass(frozen=True)
class DeviceCase:
    """A group's adapters and a step's rows; the bucket may be larger."""

    width_in: int
    widths: tuple[int, ...]
    slots: tuple[Slot | None, ...]
    row_slots: tuple[int, ...]
    bucket: int = 0
    scaled: bool = False
    batch_invariant: bool = False

    @property
    def num_tokens(self) -> int:
        return max(self.bucket, len(self.row_slots))

    def __str__(self) -> str:
        flags = "-scaled" * self.scaled + "-invariant" * self.batch_invariant
        widths = "+".join(map(str, self.widths))
        return f"{self.width_in}to{widths}-{len(self.row_slots)}of{self.num_tokens}rows{flags}"

    def inputs(
        self, device: torch.device | str = "cpu", dtype: torch.dtype = torch.bfloat16
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """(x_TK, what the base wrote, scale_T); rows without an adapter have NaN in x."""
        generator = torch.Generator().manual_seed(len(self.row_slots))
        x = torch.randn(self.num_tokens, self.width_in, generator=generator)
        base = torch.randn(self.num_tokens, sum(self.widths), generator=generator)
        scale = 0.5 + torch.rand(self.num_tokens, generator=generator)
        x[self.padded_slots() < 0] = float("nan")
        return x.to(device, dtype), base.to(device, dtype), scale.to(device) if self.scaled else None

    def padded_slots(self) -> np.ndarray:
        slots = np.full(self.num_tokens, NO_SLOT)
        slots[: len(self.row_slots)] = self.row_slots
        return slots


class DeviceRun:
    """One table, its context and its step inputs; scratch memory begins as NaN."""

    def __init__(
        self,
        table: AdapterTable,
        width_in: int,
        max_tokens: int,
        *,
        width_out: int = 0,
        batch_invariant: bool = False,
        early: bool = True,
        sums: RankSums | None = None,
    ) -> None:
        self.inputs = StepInputs(table.device)
        self.lora = DeviceLora(
            table,
            self.inputs,
            max_tokens,
            [width_in],
            width_out=width_out,
            batch_invariant=batch_invariant,
            early=early,
            sums=sums,
        )
        self.inputs.freeze()
        self.lora._scratch.shrunk.fill_(float("nan"))
        self.lora._scratch.partials.fill_(float("nan"))
        self.lora._scratch.delta_memory.fill_(float("nan"))

    def begin(self, row_slots: np.ndarray) -> None:
        self.inputs.begin()
        self.lora.begin(row_slots)
        self.inputs.send()

    def add(
        self, x: Tensor, out: Tensor, widths: Sequence[int], scale: Tensor | None = None, layer: int = 0
    ) -> None:
        self.lora.shrink(layer, "group", x)
        self.lora.expand(layer, "group", out, widths, scale)


def naive_device_lora(
    case: DeviceCase, table: AdapterTable, layer: int = 0, dtype: torch.dtype = torch.bfloat16
) -> tuple[Tensor, Tensor]:
    """(expected, size of the sums behind each value), fp64 on a CPU; one row and one module at a time."""
    x, base, scale = case.inputs(dtype=dtype)
    expected = base.double()
    size = expected.abs()
    for row, slot in enumerate(case.row_slots):
        if slot < 0:
            continue
        *ranks, code = table.ranks[layer, 0, slot].tolist()
        offsets = table.offsets[layer, 0, slot].tolist()
        dtype = torch.bfloat16 if code == BF16 else torch.float8_e4m3fn

        def matrix(offset: int, rows: int, columns: int, dtype: torch.dtype = dtype) -> Tensor:
            raw = table.arena[offset : offset + rows * columns * dtype.itemsize]
            return raw.cpu().view(dtype).view(rows, columns).double()

        raw = table.arena[offsets[RANK_SCALES] : offsets[RANK_SCALES] + 4 * sum(ranks)]
        shrunk = matrix(offsets[A], sum(ranks), case.width_in) @ x[row].double()
        shrunk *= raw.cpu().view(torch.float32).double()
        divisor = 1.0 if scale is None else float(scale[row])
        rank_start, column = 0, 0
        for module, width in enumerate(case.widths):
            rank = ranks[module]
            part, b = shrunk[rank_start : rank_start + rank], matrix(offsets[B + module], rank, width)
            expected[row, column : column + width] += part @ b / divisor
            size[row, column : column + width] += part.abs() @ b.abs() / divisor
            rank_start += rank
            column += width
    return expected, size


def _mixed(num_rows: int, num_slots: int, seed: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(NO_SLOT, num_slots, num_rows).tolist())


SMALL_SLOTS = (
    Slot((4, 4, 4)),
    Slot((8, 0, 16), E4M3),
    Slot((0, 0, 0)),
    None,
    Slot((0, 33, 0)),
    Slot((128, 1, 17)),
    Slot((0, 0, 5), E4M3),
)
SMALL_CASES = [
    DeviceCase(64, (48,), (Slot((4,)),), (0,)),
    DeviceCase(64, (48,), (Slot((4,)), Slot((8,), E4M3)), (NO_SLOT,) * 3, bucket=4),
    DeviceCase(128, (64, 32, 32), SMALL_SLOTS, (0, 1, 2, 3, 4, 5, 6, NO_SLOT, 1), bucket=12, scaled=True),
    DeviceCase(128, (64, 32, 32), SMALL_SLOTS, (0, 1, 4, 5, 6) * 4 + (1,) * 18 + (NO_SLOT,)),
    DeviceCase(100, (72, 40, 24), SMALL_SLOTS, (0, 1, 4, 5, 6) * 4 + (1,), scaled=True),
    DeviceCase(640, (256,), (Slot((16,)), Slot((64,), E4M3), Slot((3,))), (0, 1, 2, 1, 1, NO_SLOT, 2)),
    DeviceCase(128, (64, 32, 32), SMALL_SLOTS, (0, 1, 4, 5, 6) * 3, batch_invariant=True),
    DeviceCase(8256, (16,), (Slot((2,)), Slot((3,), E4M3)), (0, 1, 0, 1, 1), bucket=65),
    DeviceCase(8256, (16,), (Slot((2,)), Slot((3,), E4M3)), (0, 1, 1, 1)),
    DeviceCase(16448, (16,), (Slot((2,)), Slot((1,), E4M3)), (0, 1, 0)),
]
"""Few enough sums for Triton's interpreter."""
TILE_CASES = [
    DeviceCase(100, (72, 40, 24), SMALL_SLOTS, (0,) * 70 + (1,) * 20 + (5, 4, 4, 6), bucket=260, scaled=True),
    DeviceCase(256, (640, 640), (Slot((16, 16)), Slot((8, 0), E4M3)), (1,) * 65 + (0,) * 17, bucket=264),
]
"""Likewise, in buckets that launch the tile kernels."""
CASES = [
    *SMALL_CASES,
    *TILE_CASES,
    DeviceCase(4096, (4096, 1024, 1024), (Slot((16, 16, 16)),) * 3, _mixed(32, 3, 1), bucket=32),
    DeviceCase(14336, (4096,), tuple(Slot((4 + 4 * i,), i % 2) for i in range(32)), _mixed(64, 32, 2)),
    DeviceCase(14336, (4096,), tuple(Slot((4 + 4 * i,), i % 2) for i in range(64)), _mixed(96, 64, 4)),
    DeviceCase(4096, (4096,), tuple(Slot((8 << i % 4,), i % 2) for i in range(300)), tuple(range(300))),
    DeviceCase(
        4096,
        (14336, 14336),
        (Slot((16, 16)), Slot((64, 64), E4M3), Slot((0, 128)), Slot((8, 8))),
        (0,) * 700 + (1,) * 130 + (2,) * 17 + (3,) * 16 + _mixed(60, 4, 3),
        bucket=1024,
        scaled=True,
    ),
]
