"""Lays out an adapter as it is in device memory: its slab, followed by the factor of every rank row.

    | slab as in the artifact, bf16 or FP8 | for each layer and group: fp32 rank scales |

Both parts are one run of bytes, so that a load is one copy. Offsets have the form of a slot's entries in the
kernels' `AdapterTable`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine.lora.artifact import ALIGNMENT, GROUPS, Dtype, GroupEntry, Manifest, PackedAdapter
from engine.lora.manifest import STORAGE, ModuleShape, aligned, lay_out
from engine.lora.values import rank_scales
from kernels.lora.table import BF16, DTYPE, E4M3, MAX_MODULES, RANK_SCALES, A, B

DEVICE_DTYPE: dict[Dtype, Dtype] = {
    "bfloat16": "bfloat16",
    "float32": "bfloat16",
    "float8_e4m3": "float8_e4m3",
}
"""Type of an artifact's weights on a device: kernels do not read fp32."""

_CODES = {"bfloat16": BF16, "float8_e4m3": E4M3}


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """A slot's entries of the table, with offsets from the image's start."""

    offsets_LG5: torch.Tensor
    ranks_LG4: torch.Tensor


def device_manifest(manifest: Manifest) -> Manifest:
    """Returns the manifest of the slab in the image, which differs from the artifact's if that is fp32."""
    dtype = DEVICE_DTYPE[manifest.dtype]
    if dtype == manifest.dtype:
        return manifest
    shapes = [
        {
            name: ModuleShape(module.rank, entry.in_features, module.out_features, module.scale)
            for entry in layer.values()
            for name, module in entry.modules.items()
        }
        for layer in manifest.layers
    ]
    return lay_out(shapes, manifest.base_digest, dtype)


def image_bytes(manifest: Manifest) -> int:
    """Returns the size of an artifact's image."""
    manifest = device_manifest(manifest)
    factors = sum(aligned(4 * entry.rank, ALIGNMENT) for layer in manifest.layers for entry in layer.values())
    return aligned(manifest.num_bytes, ALIGNMENT) + factors


def lay_out_image(manifest: Manifest) -> ImageLayout:
    """Returns the offsets within an image. `manifest` is that of its slab: bf16 or FP8."""
    itemsize = STORAGE[manifest.dtype].itemsize
    offsets = np.zeros((len(manifest.layers), len(GROUPS), MAX_MODULES + 2), np.int64)
    ranks = np.zeros((len(manifest.layers), len(GROUPS), MAX_MODULES + 1), np.int32)
    ranks[..., DTYPE] = _CODES[manifest.dtype]
    end = aligned(manifest.num_bytes, ALIGNMENT)
    for layer, entries in enumerate(manifest.layers):
        for index, (group, names) in enumerate(GROUPS.items()):
            if group in entries:
                entry = entries[group]
                _place_group(offsets[layer, index], ranks[layer, index], names, entry, itemsize)
                offsets[layer, index, RANK_SCALES] = end
                end += aligned(4 * entry.rank, ALIGNMENT)
    return ImageLayout(torch.from_numpy(offsets), torch.from_numpy(ranks))


def write_rank_scales(packed: PackedAdapter, layout: ImageLayout, image: np.ndarray) -> None:
    """Fills the second part of an image (uint8) whose first part is the adapter's slab."""
    order = list(GROUPS)
    for layer, group, entry in packed.groups():
        start = int(layout.offsets_LG5[layer, order.index(group), RANK_SCALES])
        vector = image[start : start + 4 * entry.rank].view(np.float32)
        vector[:] = rank_scales(packed, layer, group)


def _place_group(
    offsets_5: np.ndarray, ranks_4: np.ndarray, names: Sequence[str], entry: GroupEntry, itemsize: int
) -> None:
    offsets_5[A] = entry.offset * itemsize
    for index, name in enumerate(names):
        module = entry.modules.get(name)
        if module is not None:
            offsets_5[B + index] = module.offset * itemsize
            ranks_4[index] = module.rank
