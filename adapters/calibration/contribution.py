"""What rounding an adapter's weights does to what it adds, layer by layer, on real activations.

Owns the sums behind two figures per layer and module: how large the adapter's output is beside the base's,
and by how much the output of the stored adapter (bf16, FP8) is off, both as ratios of root mean squares.
Refuses to know where activations come from.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from adapters.calibration.measures import ModuleError
from adapters.calibration.source import Pair
from engine.lora.artifact import GROUPS, STORAGE, PackedAdapter

MAX_ROWS = 1024
"""Tokens per layer and module that are measured: more change nothing."""
_STORED = {
    STORAGE["bfloat16"]: torch.bfloat16,
    STORAGE["float32"]: torch.float32,
    STORAGE["float8_e4m3"]: torch.float8_e4m3fn,
}


class Contribution:
    """Sums of squares, module by module."""

    def __init__(self, artifacts: Mapping[str, PackedAdapter], device: torch.device) -> None:
        self._artifacts = dict(artifacts)
        self._device = device
        self._layer = 0
        self._stored: dict[str, dict[str, Pair]] = {}
        self._rows: dict[tuple[int, str], int] = {}
        self._squares: dict[tuple[int, str], dict[str, float]] = {}

    def begin_layer(self, index: int, pairs: Mapping[str, Pair]) -> None:
        """What `add` is told of next belongs to this layer."""
        self._layer = index
        self._stored = {
            dtype: {name: self._pair(packed, index, name) for name in pairs}
            for dtype, packed in self._artifacts.items()
        }

    def add(self, module: str, x_TK: Tensor, delta_TN: Tensor, base_TN: Tensor) -> None:
        """What the module reads, what the adapter adds, what the base's module gives."""
        place = self._layer, module
        left = MAX_ROWS - self._rows.get(place, 0)
        if left <= 0 or not self._artifacts:
            return
        x, delta = x_TK[:left], delta_TN[:left]
        self._rows[place] = self._rows.get(place, 0) + len(x)
        sums = self._squares.setdefault(place, {})
        _add(sums, "delta", delta)
        _add(sums, "base", base_TN[:left])
        for dtype, stored in self._stored.items():
            a_RK, b_NR, scale = stored[module]
            _add(sums, dtype, F.linear(F.linear(x, a_RK), b_NR).mul_(scale).sub_(delta))

    def modules(self) -> list[ModuleError]:
        """Of all that was added, in the order of layers."""
        return [
            ModuleError(
                layer,
                module,
                _ratio(sums["delta"], sums["base"]),
                {dtype: _ratio(sums[dtype], sums["delta"]) for dtype in self._artifacts},
            )
            for (layer, module), sums in self._squares.items()
        ]

    def _pair(self, packed: PackedAdapter, layer: int, module: str) -> Pair:
        group = next(group for group, names in GROUPS.items() if module in names)
        entry = packed.manifest.layers[layer][group]
        found = entry.modules[module]
        first = sum(entry.modules[name].rank for name in itertools.takewhile(module.__ne__, entry.modules))
        rows = slice(first, first + found.rank)
        a = _wide(packed.a(layer, group)[rows])
        b = _wide(packed.b(layer, group, module))
        if entry.scales is not None:
            a_scale, b_scale = torch.from_numpy(packed.scales(layer, group)[:, rows].copy())[:, :, None]
            a, b = a * a_scale, b * b_scale
        return Pair(a.to(self._device), b.t().to(self._device), found.scale)


def _wide(words: np.ndarray) -> Tensor:
    """fp32 of what a slab holds: an artifact's own words, without the scales of FP8."""
    return torch.from_numpy(words).view(_STORED[words.dtype]).float()


def _add(sums: dict[str, float], name: str, values: Tensor) -> None:
    sums[name] = sums.get(name, 0.0) + float(values.double().square().sum())


def _ratio(part: float, whole: float) -> float:
    """Of root mean squares; 0 where there is nothing to be off from."""
    return math.sqrt(part / whole) if whole > 0 else 0.0
