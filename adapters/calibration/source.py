"""Reads an uploaded adapter layer by layer, unrounded, independently of the packing it is compared with.

It shares no layout and no rounding code with the packing, only the rules of `adapter_config.json` (ranks,
scales).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from adapters.calibration.errors import SourceInvalid
from adapters.packing import CONFIG_FILE, KEY_PREFIX, WEIGHTS_FILE, PackingError, module_path, read_config
from engine.model.config import ModelConfig


class Pair(NamedTuple):
    """One module's adapter: y += scale * (x A^T) B^T, in fp32."""

    a_RK: Tensor
    b_NR: Tensor
    scale: float


class SourceAdapter:
    """An open adapter file and its modules' scales."""

    def __init__(self, file: Any, scales: Mapping[tuple[int, str], float], device: torch.device) -> None:
        self._file = file
        self._scales = scales
        self._device = device

    def layer(self, index: int) -> dict[str, Pair]:
        """Returns the layer's adapted modules by name ("q_proj" ... "down_proj")."""
        return {
            name: Pair(self._matrix(layer, name, "A"), self._matrix(layer, name, "B"), scale)
            for (layer, name), scale in self._scales.items()
            if layer == index
        }

    def _matrix(self, layer: int, name: str, side: str) -> Tensor:
        tensor = self._file.get_tensor(_key(layer, name, side))
        return tensor.to(self._device, torch.float32)


@contextmanager
def open_source(peft_dir: Path, base: ModelConfig, device: torch.device) -> Iterator[SourceAdapter]:
    """Opens an inspected adapter. Raises SourceInvalid if it differs from what was inspected."""
    try:
        config = read_config(peft_dir)
    except PackingError as error:
        raise SourceInvalid(error.field, error.reason) from error
    try:
        with safe_open(peft_dir / WEIGHTS_FILE, framework="pt") as file:
            keys = set(file.keys())
            scales = {
                (layer, name): config.scale_of(module_path(layer, name))
                for layer in range(base.num_layers)
                for name in base.linear_shapes
                if _key(layer, name, "A") in keys
            }
            known = {_key(layer, name, side) for layer, name in scales for side in "AB"}
            if known != keys:
                raise SourceInvalid(sorted(known ^ keys)[0], f"does not match {CONFIG_FILE} and the base")
            yield SourceAdapter(file, scales, device)
    except (SafetensorError, OSError) as error:
        raise SourceInvalid(WEIGHTS_FILE, f"cannot be read: {error}") from error


def _key(layer: int, name: str, side: str) -> str:
    return f"{KEY_PREFIX}{module_path(layer, name)}.lora_{side}.weight"
