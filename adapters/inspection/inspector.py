"""Inspects open files: parses config and header, matches tensors with modules, then reads values.

Runs only inside the sandbox. The caller passes `seal`, which is called once no more files need to be opened.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence

import numpy as np

from adapters.inspection.config import read_config
from adapters.inspection.errors import InspectionRefused
from adapters.inspection.findings import Inspection, ModuleFacts
from adapters.inspection.header import Header, read_exactly, read_header
from adapters.inspection.library import check_agreement
from adapters.inspection.modules import BaseShape, Pair, match_tensors
from adapters.inspection.values import Norms, measure
from engine.model.config import parse_config

Seal = Callable[[], None]

_LARGEST_DELTA = float(np.finfo(np.float32).max)


def check_config(config: int) -> None:
    """Checks the form of an open `adapter_config.json`. Raises InspectionRefused."""
    read_config(config)


def check_weights(weights: int, shadow: int | None, seal: Seal) -> None:
    """Checks the form of an open `adapter_model.safetensors`. Raises InspectionRefused."""
    _ask_library(read_header(weights), shadow, seal)


def inspect(
    weights: int, config: int, base_config: int, shadow: int | None, seal: Seal, *, values: bool
) -> Inspection:
    """Checks everything; the values only if `values`. Raises InspectionRefused."""
    lora, fields = read_config(config)
    header = read_header(weights)
    pairs = match_tensors(header, lora, _base_shape(base_config))
    _ask_library(header, shadow, seal)
    norms = [measure(weights, pair) if values else None for pair in pairs]
    for pair, found in zip(pairs, norms, strict=True):
        if found is not None and found.delta > _LARGEST_DELTA:
            raise InspectionRefused(
                pair.b.name, "its change of the base's weight is beyond the range of float32"
            )
    return Inspection(
        config=fields,
        num_tensors=len(header.tensors),
        num_bytes=header.num_bytes,
        rank=max(pair.rank for pair in pairs),
        modules=[_facts(pair, found) for pair, found in zip(pairs, norms, strict=True)],
        warnings=_warnings(norms),
    )


def _ask_library(header: Header, shadow: int | None, seal: Seal) -> None:
    assert shadow is not None, "only rejected headers have no shadow"
    check_agreement(header, shadow)
    seal()


def _base_shape(descriptor: int) -> BaseShape:
    """Reads our own trusted `config.json`."""
    base = parse_config(json.loads(read_exactly(descriptor, 0, os.fstat(descriptor).st_size)))
    return BaseShape(base.num_layers, base.linear_shapes)


def _facts(pair: Pair, norms: Norms | None) -> ModuleFacts:
    dtype = "/".join(dict.fromkeys((pair.a.dtype, pair.b.dtype)))
    if norms is None:
        return ModuleFacts(pair.path, pair.rank, pair.scale, dtype)
    return ModuleFacts(pair.path, pair.rank, pair.scale, dtype, norms.a, norms.b, norms.delta)


def _warnings(norms: Sequence[Norms | None]) -> list[str]:
    idle = sum(1 for found in norms if found is not None and 0 in (found.a, found.b))
    if not idle:
        return []
    return [f"{idle} of {len(norms)} modules have no effect: their A or B is all zeros"]
