"""Checks and converts the values of packed adapters: finiteness, FP8 with scales, fp32 and bf16.

Plain numpy, each value exactly as written here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from engine.lora.artifact import (
    STORAGE,
    ArtifactError,
    Dtype,
    GroupEntry,
    LoraPair,
    PackedAdapter,
)

E4M3_MAX = 448.0
SMALLEST_SCALE = float(np.finfo(np.float32).tiny)
"""The smallest number that is not subnormal, so that dividing by it is exact."""


def _e4m3_values() -> np.ndarray:
    """Returns the values of the 256 words of e4m3 (no infinities, one NaN per sign)."""
    words = np.arange(256)
    exponent, fraction = (words >> 3) & 15, words & 7
    values = np.where(exponent == 0, fraction / 8 * 2.0**-6, (1 + fraction / 8) * 2.0 ** (exponent - 7.0))
    values[(words & 127) == 127] = np.nan
    return np.where(words & 128, -values, values).astype(np.float32)


E4M3 = _e4m3_values()


def check_finite(packed: PackedAdapter) -> None:
    """Raises ArtifactError when a weight, a scale or a product of scales is not finite.

    Kernels multiply padded rows by zero, which does not remove NaN and infinity.
    """
    finite = _FINITE[packed.manifest.dtype]
    if not all(finite(matrix) for matrix in _matrices(packed)):
        raise ArtifactError("slab", "has values that are not finite")
    for layer, group, entry in packed.groups():
        where = f"layers[{layer}].{group}.scales"
        if entry.scales is not None:
            scales = packed.scales(layer, group)
            if not bool((np.isfinite(scales) & (scales >= SMALLEST_SCALE)).all()):
                raise ArtifactError(where, "have values that are not finite, positive and normal")
            if not bool(np.isfinite(rank_scales(packed, layer, group)).all()):
                raise ArtifactError(where, "have a product beyond the range of float32")


def rank_scales(packed: PackedAdapter, layer: int, group: str) -> np.ndarray:
    """Returns fp32 [sum of ranks]: the factors of the shrunk activations.

    Semantics: scale of r's module, times a_scale[r] * b_scale[r] where weights are FP8.
    """
    entry = packed.manifest.layers[layer][group]
    modules = entry.modules.values()
    scales = np.repeat(np.array([m.scale for m in modules], np.float32), [m.rank for m in modules])
    if entry.scales is not None:
        with np.errstate(over="ignore", under="ignore"):
            for of_matrix in packed.scales(layer, group):
                scales = scales * of_matrix
    return scales


def to_fp32(packed: PackedAdapter) -> PackedAdapter:
    """Returns the same adapter in fp32: exact from bf16; from FP8, each word times its row's scale."""
    return _converted(packed, "float32", _wide_matrix)


def to_bf16(packed: PackedAdapter) -> PackedAdapter:
    """Returns an fp32 adapter in bf16, rounded to nearest even. Raises ArtifactError beyond bf16's range."""
    assert packed.manifest.dtype == "float32", f"{packed.manifest.dtype} must not be rounded"
    converted = _converted(packed, "bfloat16", lambda words, _: _round_to_bf16(words))
    if not _finite_bf16(converted.slab):
        raise ArtifactError("slab", "has values beyond the range of bfloat16")
    return converted


def _matrices(packed: PackedAdapter) -> Iterator[np.ndarray]:
    for layer, group, entry in packed.groups():
        yield packed.a(layer, group)
        for name in entry.modules:
            yield packed.b(layer, group, name)


def _converted(
    packed: PackedAdapter, dtype: Dtype, convert: Callable[[np.ndarray, np.ndarray | None], np.ndarray]
) -> PackedAdapter:
    """Returns the adapter with every matrix converted by `convert(words, scale of each row or None)`."""
    layers: list[dict[str, LoraPair]] = []
    for index, layer in enumerate(packed.manifest.layers):
        pairs: dict[str, LoraPair] = {}
        for group, entry in layer.items():
            pairs |= _pairs(packed, index, group, entry, convert)
        layers.append(pairs)
    return PackedAdapter.build(layers, packed.manifest.base_digest, dtype)


def _pairs(
    packed: PackedAdapter,
    layer: int,
    group: str,
    entry: GroupEntry,
    convert: Callable[[np.ndarray, np.ndarray | None], np.ndarray],
) -> Iterator[tuple[str, LoraPair]]:
    a, first = packed.a(layer, group), 0
    scales = None if entry.scales is None else packed.scales(layer, group)
    for name, module in entry.modules.items():
        rows = slice(first, first + module.rank)
        a_scale, b_scale = (None, None) if scales is None else scales[:, rows]
        b = packed.b(layer, group, name)
        yield name, LoraPair(convert(a[rows], a_scale), convert(b, b_scale), module.scale)
        first += module.rank


def _wide_matrix(words: np.ndarray, scale: np.ndarray | None) -> np.ndarray:
    if words.dtype == STORAGE["bfloat16"]:
        return (words.astype("<u4") << 16).view("<f4")
    if words.dtype == STORAGE["float32"]:
        return words
    assert scale is not None
    return E4M3[words] * scale[:, None]


def _round_to_bf16(values: np.ndarray) -> np.ndarray:
    """Rounds finite values; those beyond the range become infinite."""
    words = values.view("<u4")
    return ((words + 0x7FFF + (words >> 16 & 1)) >> 16).astype("<u2")


def _finite_bf16(words: np.ndarray) -> bool:
    return not words.size or int((words & 0x7FFF).max()) < 0x7F80


_FINITE: dict[str, Callable[[np.ndarray], bool]] = {
    "bfloat16": _finite_bf16,
    "float32": lambda values: bool(np.isfinite(values).all()),
    "float8_e4m3": lambda words: int((words & 127).max()) < 127,
}
