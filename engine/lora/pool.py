"""Holds adapters in memory by slot, as the LoRA kernels of a CPU read them.

One contiguous slab per loaded slot, with views into it at true ranks. An unloaded slot has no views, so that
stale bytes cannot be read. The slot table decides which adapter is in which slot.

Threads: a slot is loaded by the loader's thread while the step loop runs, but only a slot that no row of a
batch refers to; views of other slots do not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from engine.lora.artifact import GROUPS, ArtifactError, GroupEntry, Manifest, PackedAdapter
from engine.lora.shards import shard_adapter, shard_manifest
from engine.lora.values import check_finite, to_fp32
from engine.model.config import ModelConfig
from engine.model.shards import WHOLE, Shard
from kernels.lora_work import SlotGroup


class AdapterPool:
    """Storage for `num_slots` adapters of one base."""

    def __init__(
        self,
        config: ModelConfig,
        num_slots: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        shard: Shard = WHOLE,
    ) -> None:
        """`config` is the whole base's, of which each slot holds `shard`'s part of an adapter.

        `dtype` is the model's compute type; weights of other types are converted when loaded.
        """
        if num_slots < 0:
            raise ValueError(f"num_slots must not be negative, not {num_slots}")
        self.num_slots = num_slots
        self._config = config
        self._device = torch.device(device)
        self._dtype = dtype
        self._shard = shard
        self._versions = [0] * num_slots
        self.slot_bytes = [0] * num_slots
        """Bytes of the adapter in each slot."""
        self._groups: list[dict[str, list[SlotGroup | None]]] = [
            {group: [None] * num_slots for group in GROUPS} for _ in range(config.num_layers)
        ]

    @property
    def versions(self) -> Sequence[int]:
        """Per slot; changes whenever the slot's weights do."""
        return self._versions

    def group(self, layer: int, group: str) -> Sequence[SlotGroup | None]:
        """Returns views by slot; None where the slot is empty or its adapter has nothing here."""
        return self._groups[layer][group]

    def load(self, slot: int, packed: PackedAdapter) -> None:
        """Fills a slot. Raises ArtifactError when the adapter does not fit the base, or has non-finite
        values.

        After an error, also MemoryError, the slot is empty.
        """
        self.unload(slot)
        check_fits(packed.manifest, self._config)
        if packed.manifest.dtype == "float8_e4m3":
            check_finite(packed)
            packed = to_fp32(packed)
        packed = shard_adapter(packed, self._config, self._shard)
        slab = torch.from_numpy(packed.slab)
        if packed.manifest.dtype == "bfloat16":
            slab = slab.view(torch.bfloat16)
        slab = slab.to(self._device, self._dtype)
        if not bool(torch.isfinite(slab).all()):
            # Kernels multiply padded rows by zero, which does not remove NaN and infinity.
            raise ArtifactError("slab", "has values that are not finite")
        for layer, entries in zip(self._groups, packed.manifest.layers, strict=True):
            for name, entry in entries.items():
                layer[name][slot] = _views(slab, name, entry)
        self.slot_bytes[slot] = slab.numel() * slab.element_size()
        self._versions[slot] += 1

    # The loader's `Pool` interface.

    capacity: int | None = None
    """Memory is allocated as it is needed."""

    def size_of(self, manifest: Manifest) -> int:
        return shard_manifest(manifest, self._config, self._shard).num_elements * self._dtype.itemsize

    def cached(self, digest: str) -> PackedAdapter | None:
        """Returns None: nothing is kept outside slots."""
        return None

    def read(self, path: Path, digest: str) -> PackedAdapter:
        return PackedAdapter.read(path, digest)

    def drop(self, packed: PackedAdapter) -> None:
        """Does nothing: what was read is freed with the object."""

    def idle(self, slot: int) -> None:
        """Does nothing: steps are over when they return."""

    def close(self) -> None:
        """Does nothing: no resources outlive the object."""

    def unload(self, slot: int) -> None:
        """Empties a slot and frees its memory."""
        for layer in self._groups:
            for views in layer.values():
                views[slot] = None
        self.slot_bytes[slot] = 0
        self._versions[slot] += 1


def check_fits(manifest: Manifest, config: ModelConfig) -> None:
    """Raises ArtifactError when the adapter's sizes are those of another base."""
    if len(manifest.layers) != config.num_layers:
        raise ArtifactError(
            "layers", f"the adapter has {len(manifest.layers)}, the base has {config.num_layers}"
        )
    shapes = config.linear_shapes
    for index, layer in enumerate(manifest.layers):
        for group, entry in layer.items():
            for name, module in entry.modules.items():
                found = (module.out_features, entry.in_features)
                if found != shapes[name]:
                    field = f"layers[{index}].{group}.{name}"
                    raise ArtifactError(
                        field, f"is for {found} features out and in, the base has {shapes[name]}"
                    )


def _views(slab: torch.Tensor, group: str, entry: GroupEntry) -> SlotGroup:
    def matrix(offset: int, rows: int, columns: int) -> torch.Tensor:
        return slab[offset : offset + rows * columns].view(rows, columns)

    modules = [entry.modules.get(name) for name in GROUPS[group]]
    return SlotGroup(
        a=matrix(entry.offset, entry.rank, entry.in_features),
        b=tuple(m and matrix(m.offset, m.rank, m.out_features) for m in modules),
        ranks=tuple(m.rank if m else 0 for m in modules),
        scales=tuple(m.scale if m else 0.0 for m in modules),
    )
