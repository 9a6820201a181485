"""Measures how rounding an adapter's weights changes its output on real activations, per layer and module.

Computes two ratios of root mean squares: the adapter's output to the base's, and the error of the stored
adapter's output (bf16, FP8) to the adapter's output.
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
"""Tokens measured per layer and module: more do not change the result."""
_STORED = {
    STORAGE["bfloat16"]: torch.bfloat16,
    STORAGE["float32"]: torch.float32,
    STORAGE["float8_e4m3"]: torch.float8_e4m3fn,
}


class Contribution:
    """Accumulates sums of squares per module."""

    def __init__(self, artifacts: Mapping[str, PackedAdapter], device: torch.device) -> None:
        self._artifacts = dict(artifacts)
        self._device = device
        self._layer = 0
        self._stored: dict[str, dict[str, Pair]] = {}
        self._rows: dict[tuple[int, str], int] = {}
        self._squares: dict[tuple[int, str], dict[str, float]] = {}

    def begin_layer(self, index: int, pairs: Mapping[str, Pair]) -> None:
        """Makes this the layer of the following calls of `add`."""
        self._layer = index
        self._stored = {
            dtype: {name: self._pair(packed, index, name) for name in pairs}
            for dtype, packed in self._artifacts.items()
        }

    def add(self, module: str, x_TK: Tensor, delta_TN: Tensor, base_TN: Tensor) -> None:
        """Adds a module's input, the adapter's output and the output of the base's module."""
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
        """Returns the figures of everything added, in order of layers."""
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
    """Returns the fp32 values of an artifact's stored words, without the scales of FP8."""
    return torch.from_numpy(words).view(_STORED[words.dtype]).float()


def _add(sums: dict[str, float], name: str, values: Tensor) -> None:
    sums[name] = sums.get(name, 0.0) + float(values.double().square().sum())


def _ratio(part: float, whole: float) -> float:
    """Returns the ratio of root mean squares; 0 if there is no output to compare with."""
    return math.sqrt(part / whole) if whole > 0 else 0.0
