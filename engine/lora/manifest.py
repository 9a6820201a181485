"""Defines a packed adapter's manifest: which matrices its slab holds, where, and how both are verified."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np

GROUPS: dict[str, tuple[str, ...]] = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "o": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}
"""Linear modules by the input they share, in the order of the slab."""

ALIGNMENT = 64
"""Bytes: of the slab in the file and of every matrix in the slab."""
MAX_RANK = 1024

Dtype = Literal["bfloat16", "float32", "float8_e4m3"]

STORAGE: dict[str, np.dtype] = {
    "bfloat16": np.dtype("<u2"),
    "float32": np.dtype("<f4"),
    "float8_e4m3": np.dtype("u1"),
}
"""numpy has neither bfloat16 nor FP8: their raw words are stored."""

SCALED: Dtype = "float8_e4m3"
"""The type whose rank rows have scales."""
_SCALE_BYTES = 4


class ArtifactError(ValueError):
    """A packed adapter is damaged, or not the requested one. `field` names what is wrong."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class ModuleShape(NamedTuple):
    """One linear module's pair, before it has an offset."""

    rank: int
    in_features: int
    out_features: int
    scale: float


class ModuleEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One linear module's share of a group."""

    rank: int
    scale: float
    """Exactly representable in fp32."""
    out_features: int
    offset: int
    """Of B, in elements from the slab's start."""


class GroupEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The modules of one group that the adapter has; never empty."""

    in_features: int
    offset: int
    """Of the stacked A, in elements from the slab's start."""
    modules: dict[str, ModuleEntry]
    scales: int | None = None
    """Only with FP8: offset in bytes of fp32 [2, sum of ranks], the scales of A's rows and of B's."""

    @property
    def rank(self) -> int:
        """Rows of the stacked A."""
        return sum(module.rank for module in self.modules.values())


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the slab."""

    dtype: Dtype
    base_digest: str
    """Of the base that the adapter was packed against."""
    num_elements: int
    layers: tuple[dict[str, GroupEntry], ...]
    """By layer index; an untouched layer is an empty dict."""

    @property
    def rank(self) -> int:
        """Largest rank of any module."""
        ranks = (m.rank for layer in self.layers for group in layer.values() for m in group.modules.values())
        return max(ranks, default=0)

    @property
    def num_bytes(self) -> int:
        """Size of the slab."""
        return self.num_elements * STORAGE[self.dtype].itemsize


def aligned(size: int, alignment: int) -> int:
    """Returns the next multiple of `alignment`."""
    return -(-size // alignment) * alignment


def lay_out(layers: Sequence[Mapping[str, ModuleShape]], base_digest: str, dtype: Dtype) -> Manifest:
    """Gives every matrix its offset. Raises ArtifactError when ranks, sizes or scales are out of bounds."""
    unit = _unit(dtype)
    entries: list[dict[str, GroupEntry]] = []
    end = 0
    for layer in layers:
        groups: dict[str, GroupEntry] = {}
        known = 0
        for group, names in _groups_of(layer):
            known += len(names)
            in_features = layer[names[0]].in_features
            offset = aligned(end, unit)
            end = offset + in_features * sum(layer[name].rank for name in names)
            modules: dict[str, ModuleEntry] = {}
            for name in names:
                rank, module_in, out_features, scale = layer[name]
                assert module_in == in_features, f"{name}: modules of a group read the same input"
                start = aligned(end, unit)
                modules[name] = ModuleEntry(rank, float(np.float32(scale)), out_features, start)
                end = start + rank * out_features
            scales = None
            if dtype == SCALED:
                scales = aligned(end, unit)
                end = scales + _scale_bytes(modules)
            groups[group] = GroupEntry(in_features, offset, modules, scales)
        assert known == len(layer), f"unknown modules among {sorted(layer)}"
        entries.append(groups)
    manifest = Manifest(dtype, base_digest, end, tuple(entries))
    verify(manifest)
    return manifest


def verify(manifest: Manifest) -> None:
    """Verifies everything that readers rely on: names, ranks, scales, and matrices that tile the slab in
    order. Raises ArtifactError.
    """
    end = 0
    if not manifest.layers:
        raise ArtifactError("layers", "there are none")
    for index, layer in enumerate(manifest.layers):
        _verify_order(f"layers[{index}]", layer, tuple(GROUPS))
        for group, entry in layer.items():
            end = _verify_group(f"layers[{index}].{group}", group, entry, manifest.dtype, end)
    if manifest.num_elements != end:
        raise ArtifactError("num_elements", f"{manifest.num_elements}, the matrices end at {end}")
    if end == 0:
        raise ArtifactError("layers", "no layer has any module")


def _verify_group(where: str, group: str, entry: GroupEntry, dtype: Dtype, end: int) -> int:
    """Verifies a group and returns where it ends."""
    unit = _unit(dtype)
    _verify_order(f"{where}.modules", entry.modules, GROUPS[group])
    if not entry.modules:
        raise ArtifactError(f"{where}.modules", "a group without modules must be absent")
    if entry.in_features < 1:
        raise ArtifactError(f"{where}.in_features", f"{entry.in_features} is not positive")
    for name, module in entry.modules.items():
        _verify_module(f"{where}.{name}", module)
    _verify_offset(f"{where}.offset", entry.offset, aligned(end, unit))
    end = entry.offset + entry.rank * entry.in_features
    for name, module in entry.modules.items():
        _verify_offset(f"{where}.{name}.offset", module.offset, aligned(end, unit))
        end = module.offset + module.rank * module.out_features
    if dtype != SCALED:
        if entry.scales is not None:
            raise ArtifactError(f"{where}.scales", f"{dtype} has none")
        return end
    if entry.scales is None:
        raise ArtifactError(f"{where}.scales", f"{dtype} needs them")
    _verify_offset(f"{where}.scales", entry.scales, aligned(end, unit))
    return entry.scales + _scale_bytes(entry.modules)


def _verify_order(where: str, found: Mapping[str, object], known: Sequence[str]) -> None:
    unknown = [name for name in found if name not in known]
    if unknown:
        raise ArtifactError(where, f"unknown {unknown[0]!r}")
    if list(found) != [name for name in known if name in found]:
        raise ArtifactError(where, f"must be in the order {', '.join(known)}")


def _verify_module(where: str, module: ModuleEntry) -> None:
    if not 1 <= module.rank <= MAX_RANK:
        raise ArtifactError(f"{where}.rank", f"{module.rank} is not between 1 and {MAX_RANK}")
    if module.out_features < 1:
        raise ArtifactError(f"{where}.out_features", f"{module.out_features} is not positive")
    # Beyond fp32's range or precision the kernels would compute with another number.
    if not math.isfinite(module.scale) or abs(module.scale) > float(np.finfo(np.float32).max):
        raise ArtifactError(f"{where}.scale", f"{module.scale} is not a finite fp32 number")
    if float(np.float32(module.scale)) != module.scale:
        raise ArtifactError(f"{where}.scale", f"{module.scale} is not exact in fp32")


def _verify_offset(where: str, found: int, expected: int) -> None:
    if found != expected:
        raise ArtifactError(where, f"{found}, the layout puts it at {expected}")


def _groups_of(names: Mapping[str, object]) -> Iterator[tuple[str, list[str]]]:
    """Yields the groups that have any of `names`, with those modules, in slab order."""
    for group, modules in GROUPS.items():
        present = [name for name in modules if name in names]
        if present:
            yield group, present


def _unit(dtype: Dtype) -> int:
    """Returns the elements between two offsets at which a matrix may start."""
    return ALIGNMENT // STORAGE[dtype].itemsize


def _scale_bytes(modules: Mapping[str, ModuleEntry]) -> int:
    return 2 * _SCALE_BYTES * sum(module.rank for module in modules.values())
