"""Matches a file's tensors with the base's modules: every key is used exactly once, by name.

It is stricter than PEFT, where a name that matches nothing silently serves the base: every tensor must belong
to a module that the config targets, and every targeted module must have its two tensors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

from adapters.inspection.config import REFUSED, UNPACKABLE, LoraConfig, path_tails
from adapters.inspection.errors import InspectionRefused
from adapters.inspection.header import Header, Tensor
from engine.lora.manifest import GROUPS

KEY_PREFIX = "base_model.model."

_ATTENTION = GROUPS["qkv"] + GROUPS["o"]
_LINEARS = tuple(name for names in GROUPS.values() for name in names)


@dataclass(frozen=True, slots=True)
class BaseShape:
    """The dimensions that an adapter has to fit."""

    num_layers: int
    linear_shapes: Mapping[str, tuple[int, int]]
    """Module name, such as "q_proj" -> (out_features, in_features)."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One adapted module: its place in the base, and its two tensors."""

    layer: int
    name: str
    path: str
    rank: int
    scale: float
    a: Tensor
    """[rank, in_features]"""
    b: Tensor
    """[out_features, rank]"""


def module_path(layer: int, name: str) -> str:
    """Returns the path of a linear module in the base, such as `model.layers.3.self_attn.q_proj`."""
    return f"model.layers.{layer}.{'self_attn' if name in _ATTENTION else 'mlp'}.{name}"


def match_tensors(header: Header, config: LoraConfig, base: BaseShape) -> list[Pair]:
    """Returns the adapter's modules, ordered by layer. Raises InspectionRefused naming the key or the
    config's field.
    """
    targets = _targets(config, base)
    _check_keys(header.tensors.keys(), targets, base)
    pairs = []
    for (layer, name), path in targets.items():
        out_features, in_features = base.linear_shapes[name]
        rank, scale = config.rank_of(path), config.scale_of(path)
        a, b = (header.tensors[key] for key in _keys(path))
        _check_shape(a, (rank, in_features), 0)
        _check_shape(b, (out_features, rank), 1)
        assert math.isfinite(scale), "alphas are bounded"
        pairs.append(Pair(layer, name, path, rank, scale, a, b))
    return pairs


def _targets(config: LoraConfig, base: BaseShape) -> dict[tuple[int, str], str]:
    """Returns (layer, module name) -> path of every linear module that the config targets."""
    for module in UNPACKABLE:
        if config.targets(module):
            raise InspectionRefused("target_modules", f"{module} is not served, only {', '.join(_LINEARS)}")
    for index in sorted(config.layers_to_transform):
        if not 0 <= index < base.num_layers:
            raise InspectionRefused("layers_to_transform", f"{index}: the base has {base.num_layers} layers")
    paths = {(i, name): module_path(i, name) for i in range(base.num_layers) for name in _LINEARS}
    if isinstance(config.target_modules, frozenset):
        named = {tail for path in paths.values() for tail in path_tails(path)}
        for target in sorted(config.target_modules - named):
            raise InspectionRefused("target_modules", f"the base has no linear module {target!r}")
    targets = {place: path for place, path in paths.items() if config.targets(path)}
    if not targets:
        raise InspectionRefused("target_modules", "matches no linear module of the base")
    return targets


def _keys(path: str) -> Iterator[str]:
    return (f"{KEY_PREFIX}{path}.lora_{side}.weight" for side in "AB")


def _check_keys(keys: Set[str], targets: Mapping[tuple[int, str], str], base: BaseShape) -> None:
    expected = {key for path in targets.values() for key in _keys(path)}
    for key in sorted(keys - expected):
        raise InspectionRefused(key, _why_unexpected(key, base))
    for key in sorted(expected - keys):
        raise InspectionRefused(key, "the config targets this module, but the tensor is missing")


def _why_unexpected(key: str, base: BaseShape) -> str:
    if not key.startswith(KEY_PREFIX):
        return f"keys must start with {KEY_PREFIX!r}"
    if "lora_magnitude_vector" in key:
        return REFUSED["use_dora"]
    if key.endswith(".bias"):
        return "biases are not served"
    if "embed_tokens" in key or "lm_head" in key:
        return "embeddings and the output layer are not served, only LoRA on the linear modules"
    layer = re.search(r"\.layers\.([0-9]{1,9})\.", key)
    if layer and int(layer[1]) >= base.num_layers:
        return f"the base has {base.num_layers} layers"
    return "does not belong to a linear module of the base that the config targets"


def _check_shape(tensor: Tensor, shape: tuple[int, int], rank_axis: int) -> None:
    found = tensor.shape
    if found == shape:
        return
    if len(found) == 2 and found[1 - rank_axis] == shape[1 - rank_axis]:
        raise InspectionRefused(tensor.name, f"rank {found[rank_axis]}, the config says {shape[rank_axis]}")
    raise InspectionRefused(tensor.name, f"shape {list(found)}, the base needs {list(shape)}")
