"""Connects the engine's own pools and loader to an `AdapterLibrary` in host memory: nothing is read from
disk.

On a GPU every registered adapter is ready in page-locked memory, as in an engine with room for all of them.
The images are windows into one block: the copies read fewer different bytes of the host than those of true
adapters would, which makes no difference to PCIe. The rank scales at an image's end are whatever the window
has there: small finite numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from benchmarks.random_adapters import STRIDE, AdapterLibrary, Registered
from engine.lora.artifact import PackedAdapter
from engine.lora.device_pool import DevicePool
from engine.lora.host_cache import HostImage
from engine.lora.image import device_manifest, image_bytes, lay_out_image
from engine.lora.loader import AdapterLoader
from engine.lora.pool import AdapterPool
from engine.lora.ranges import rounded
from engine.lora.shards import shard_manifest
from engine.lora.transfers import PageLocked
from engine.model.config import ModelConfig
from engine.model.shards import WHOLE, Shard
from engine.protocol import AdapterRef


class LibraryLoader(AdapterLoader[Any]):
    """Works as the engine's loader, with sizes and cached adapters from the library."""

    def __init__(
        self, library: AdapterLibrary, pool: Any, on_done: Callable[[int, str, str | None], None]
    ) -> None:
        super().__init__(Path(), pool, on_done)
        self._library = library

    def size_of(self, ref: AdapterRef) -> int | None:
        manifest = self._library.manifest(ref.rank, self._library.find(ref.digest).dtype)
        size = self._sizes[ref.digest] = self._pool.size_of(manifest)
        return size

    def start_load(self, slot: int, ref: AdapterRef) -> None:
        self.size_of(ref)
        super().start_load(slot, ref)


class LibraryPool(AdapterPool):
    """The CPU's pool."""

    def __init__(self, library: AdapterLibrary, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._library = library

    def cached(self, digest: str) -> PackedAdapter:
        return self._library.packed(digest)


class LibraryDevicePool(DevicePool):
    """The GPU's pool."""

    def __init__(
        self,
        library: AdapterLibrary,
        config: ModelConfig,
        num_slots: int,
        num_bytes: int,
        device: torch.device | str,
        shard: Shard = WHOLE,
    ) -> None:
        """`config` is the whole base's; the pool holds `shard`'s part of each adapter."""
        super().__init__(config, num_slots, num_bytes, 0, device, shard=shard)
        self._library = library
        self._images: dict[str, HostImage] = {}
        self._blocks: dict[str, PageLocked] = {}
        self._outgrown: list[PageLocked] = []

    def cached(self, digest: str) -> HostImage:
        adapter = self._library.find(digest)
        block = self._block(adapter.dtype)
        image = self._images.get(digest)
        if image is None:
            image = self._images[digest] = self._window(adapter, block.bytes)
        image.borrowers += 1  # one more than there are loads: it is never dropped
        return image

    def close(self) -> None:
        super().close()
        for block in (*self._blocks.values(), *self._outgrown):
            block.close()

    def _window(self, adapter: Registered, block: torch.Tensor) -> HostImage:
        stored = self._library.manifest(adapter.ref.rank, adapter.dtype)
        manifest = device_manifest(shard_manifest(stored, self._config, self._shard))
        start = adapter.number * STRIDE * self._library.numbers(adapter.dtype).itemsize
        image = HostImage(adapter.ref.digest, 0, block[start : start + image_bytes(manifest)])
        image.manifest = manifest
        image.layout = lay_out_image(manifest)
        return image

    def _block(self, dtype: str) -> PageLocked:
        """The library's numbers, page-locked."""
        numbers = self._library.numbers(dtype)
        block = self._blocks.get(dtype)
        if block is None or len(block.bytes) < numbers.nbytes:
            if block is not None:
                self._outgrown.append(block)  # a load may still read it
                self._images = {
                    digest: image
                    for digest, image in self._images.items()
                    if self._library.find(digest).dtype != dtype
                }
            block = self._blocks[dtype] = PageLocked(numbers.nbytes, self._device)
            block.bytes.copy_(torch.from_numpy(numbers).view(torch.uint8))
        return block


def resident_bytes(library: AdapterLibrary, adapters: Iterable[Registered]) -> int:
    """What a device's pool needs to hold all of them at once."""
    sizes: dict[tuple[int, str], int] = {}
    total = 0
    for adapter in adapters:
        kind = adapter.ref.rank, adapter.dtype
        if kind not in sizes:
            sizes[kind] = rounded(image_bytes(library.manifest(*kind)))
        total += sizes[kind]
    return total
