"""Benchmarks shrink and expand of each group of the 8B shape, with weights that are never in a cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle

import numpy as np
import torch

from kernels.lora.device_cases import DeviceRun, Slot, make_table
from kernels.lora.table import BF16, E4M3
from kernels.lora.table_reference import expand_reference, shrink_reference

GROUPS = {
    "qkv": (4096, (4096, 1024, 1024)),
    "o": (4096, (4096,)),
    "gate_up": (4096, (14336, 14336)),
    "down": (14336, (4096,)),
}
"""Columns in and out."""
PAST_CACHES = 200 << 20
MAX_LAYERS = 64


@dataclass(frozen=True)
class Bench:
    """`num_rows` rows over `num_adapters`, a layer of its own every run."""

    group: str
    num_rows: int
    num_adapters: int
    ranks: tuple[int, ...] = (16,)
    """Of the adapters in turn, the same for all modules."""
    code: int = BF16

    @property
    def name(self) -> str:
        ranks = "/".join(map(str, self.ranks))
        kind = " e4m3" if self.code == E4M3 else ""
        return f"{self.group} {self.num_rows} rows {self.num_adapters} adapters r{ranks}{kind}"

    @property
    def _weight_bytes(self) -> int:
        width_in, widths = GROUPS[self.group]
        ranks = sum(self.ranks[slot % len(self.ranks)] for slot in range(self.num_adapters))
        return ranks * (len(widths) * width_in + sum(widths)) * (1 if self.code == E4M3 else 2)

    @property
    def bytes(self) -> int:
        """Every adapter once, x once, the output read and written."""
        width_in, widths = GROUPS[self.group]
        return self._weight_bytes + 2 * self.num_rows * (width_in + 2 * sum(widths))

    @property
    def flops(self) -> int:
        width_in, widths = GROUPS[self.group]
        rank = sum(self.ranks) // len(self.ranks)
        return 2 * self.num_rows * rank * (len(widths) * width_in + sum(widths))

    def make(self, device: torch.device) -> tuple[Callable[[], None], Callable[[], None]]:
        width_in, widths = GROUPS[self.group]
        num_layers = min(-(-PAST_CACHES // self._weight_bytes), MAX_LAYERS)
        slots = [
            Slot((self.ranks[slot % len(self.ranks)],) * len(widths), self.code)
            for slot in range(self.num_adapters)
        ]
        table = make_table(slots, width_in, widths, device, num_layers, generated_on=device)
        run = DeviceRun(table, width_in, self.num_rows)
        run.begin(np.random.default_rng(0).permutation(np.arange(self.num_rows) % self.num_adapters))
        x = torch.randn(self.num_rows, width_in, device=device).bfloat16()
        base = torch.randn(self.num_rows, sum(widths), device=device).bfloat16()
        scale = 0.5 + torch.rand(self.num_rows, device=device)
        out = base.clone()
        layers = cycle(range(num_layers))

        def step() -> None:
            run.add(x, out, widths, scale, next(layers))

        def check() -> None:
            got, expected = base.clone(), base.clone()
            run.add(x, got, widths, scale)
            lora = run.lora
            shrink_reference(x, lora._work, table, 0, lora._scratch.shrunk)
            expand_reference(expected, widths, scale, lora._work, table, 0, lora._scratch)
            torch.testing.assert_close(got, expected, rtol=2e-2, atol=0.1)

        return step, check


BENCHES = [
    *(
        Bench(group, rows, adapters)
        for rows, adapters in ((1, 1), (32, 32), (256, 8), (256, 64), (256, 256), (8192, 1))
        for group in GROUPS
    ),
    Bench("gate_up", 256, 256, (8, 32, 64)),
    Bench("gate_up", 256, 256, code=E4M3),
    Bench("down", 256, 256, code=E4M3),
]
