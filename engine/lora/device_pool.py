"""Manages adapters in a GPU's memory: the arena and the table that the LoRA kernels read.

One arena has a fixed number of bytes; an adapter takes the bytes of its image, no more. Where free bytes
suffice but no free range does, adapters are moved together. The slot table decides which adapter is in which
slot, and ensures that what it requests fits.

Threads and streams. The step thread launches steps within `launching()`, and reports which slots become idle
and which are emptied. One other thread at a time loads. What keeps a running step from reading anything half
written:

* Uploads run on a side stream. A freed range is written only after the last step that was launched when its
  owner became idle: freed ranges carry a mark (`_Freed`). A slot is reported loaded when its bytes are
  there, and the next launch begins with writing its entries of the table. No kernel runs beside steps: one
  block of it on one multiprocessor would delay a whole wave of a product's.
* Moves, and the entries they change, are queued on the steps' own stream between two launches: every step
  sees an adapter at its old place or at its new one, with the entries that go with it. A bounded number of
  bytes is moved at a time, and the next move waits until the device has done it, so that no step is delayed
  for long.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from engine.lora.artifact import GROUPS, ArtifactError, Manifest, PackedAdapter
from engine.lora.host_cache import HostCache, HostImage
from engine.lora.image import device_manifest, image_bytes, lay_out_image, write_rank_scales
from engine.lora.pool import check_fits
from engine.lora.ranges import Ranges, rounded
from engine.lora.shards import shard_adapter, shard_manifest
from engine.lora.transfers import PASSED, PageLocked, StreamMark, Transfers
from engine.lora.values import check_finite, to_bf16
from engine.model.config import ModelConfig
from engine.model.shards import WHOLE, Shard
from kernels.lora.table import DEFAULT_MAX_RANK, MAX_MODULES, AdapterTable

MOVED_BYTES = 256 << 20
"""Takes about 0.15 ms of an H200's time."""


@dataclass(slots=True)
class _Resident:
    """An adapter that is in a slot, or on its way there."""

    start: int
    last_use: StreamMark | None = None
    """While the adapter is idle, no step launched after this reads it. None: it is not reported idle."""


class _Freed(NamedTuple):
    """Bytes without an owner that steps up to `last_use` may still read."""

    start: int
    end: int
    last_use: StreamMark


class DevicePool:
    """Memory for up to `num_slots` adapters of one base."""

    def __init__(
        self,
        config: ModelConfig,
        num_slots: int,
        num_bytes: int,
        host_bytes: int,
        device: torch.device | str = "cuda",
        *,
        max_rank: int = DEFAULT_MAX_RANK,
        shard: Shard = WHOLE,
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        """Allocates `num_bytes` of device memory and `host_bytes` of memory that `lock_host_memory` locks.

        `config` is the whole base's; a slot holds `shard`'s part of an adapter. `stream` is the one on which
        steps are launched; by default the current one.
        """
        if num_slots < 0 or num_bytes < 0 or host_bytes < 0:
            raise ValueError(
                f"sizes must not be negative: {num_slots} slots, {num_bytes}, {host_bytes} bytes"
            )
        self.num_slots = num_slots
        self._config = config
        self._shard = shard
        self._device = torch.device(device)
        self.moved_bytes = MOVED_BYTES
        """Bytes moved between two steps, at least one adapter."""
        self._transfers = Transfers(self._device, stream)
        self._ranges = Ranges(num_bytes)
        self.table = AdapterTable(
            config.num_layers, num_slots, tuple(GROUPS), self._device, max_rank=max_rank
        )
        self.table.arena = torch.zeros(self._ranges.capacity, dtype=torch.uint8, device=self._device)
        self._locked = PageLocked(host_bytes, self._device)
        self.host_cache = HostCache(self._locked.bytes)
        self._residents: dict[int, _Resident] = {}
        self._freed: list[_Freed] = []
        self._last_launch: StreamMark = PASSED
        self._lock = threading.RLock()
        """Protects everything above. Held while a step is launched."""
        self._loading = threading.Lock()
        pinned = self._device.type == "cuda"
        layers, columns = (config.num_layers, len(GROUPS)), MAX_MODULES + 1
        self._offsets_LG5 = torch.zeros(*layers, columns + 1, dtype=torch.int64, pin_memory=pinned)
        self._ranks_LG4 = torch.zeros(*layers, columns, dtype=torch.int32, pin_memory=pinned)
        # On the device, contiguous per slot: what the next launch writes into the table.
        self._offsets_SLG5 = torch.zeros(
            num_slots, *self._offsets_LG5.shape, dtype=torch.int64, device=device
        )
        self._ranks_SLG4 = torch.zeros(num_slots, *self._ranks_LG4.shape, dtype=torch.int32, device=device)
        self._unwritten: dict[int, bool] = {}
        """Slots whose table entries are out of date, with whether the slot is loaded."""
        self._vacated: dict[int, StreamMark] = {}
        """By emptied slot: the mark after which the device no longer reads its entries."""
        self.num_moves = 0

    # The step thread -------------------------------------------------------------------------------------

    @contextmanager
    def launching(self) -> Iterator[None]:
        """Wraps the launch of every step: the table is up to date, and nothing is moved meanwhile."""
        with self._lock:
            self._write_entries()
            yield
            self._last_launch = self._transfers.mark()

    def idle(self, slot: int) -> None:
        """Notes that no step launched from now on reads the slot's adapter, until the slot is used again."""
        with self._lock:
            resident = self._residents.get(slot)
            if resident is not None:
                resident.last_use = self._last_launch

    def unload(self, slot: int) -> None:
        """Empties an idle slot and frees its memory. Does nothing if it is empty."""
        with self._lock:
            resident = self._residents.pop(slot, None)
            if resident is None:
                return
            last_use = self._last_launch if resident.last_use is None else resident.last_use
            size = self._ranges.give(resident.start)
            self._note_freed(resident.start, resident.start + size, last_use)
            self._vacated[slot] = last_use
            self._unwritten[slot] = False

    # Loading ---------------------------------------------------------------------------------------------

    @property
    def capacity(self) -> int:
        """Bytes of adapters that can be resident."""
        return self._ranges.capacity

    @property
    def num_bytes_used(self) -> int:
        with self._lock:
            return self._ranges.capacity - self._ranges.num_free

    def lock_host_memory(self) -> None:
        """Page-locks the memory of the cache, before the first load. Raises MemoryError."""
        self._locked.lock()

    def size_of(self, manifest: Manifest) -> int:
        """Returns the bytes of `capacity` that an adapter takes."""
        return rounded(image_bytes(shard_manifest(manifest, self._config, self._shard)))

    def cached(self, digest: str) -> HostImage | None:
        """Returns the adapter's image if it is in host memory: to be loaded or dropped."""
        return self.host_cache.borrow(digest)

    def read(self, path: Path, digest: str) -> HostImage:
        """Reads an artifact into host memory and verifies it: to be loaded or dropped. From any thread.

        Raises ArtifactError, also when it does not fit the base or has non-finite values; OSError;
        MemoryError.
        """
        if self._shard.size > 1:
            return self.adopt(PackedAdapter.read(path, digest))
        made: list[HostImage] = []

        def allocate(manifest: Manifest) -> np.ndarray:
            self._check(manifest)
            made.append(self.host_cache.make(digest, image_bytes(manifest)))
            if manifest.dtype == "float32":
                return np.empty(manifest.num_bytes, np.uint8)  # only its bf16 conversion goes into the image
            return made[0].bytes.numpy()

        try:
            packed = PackedAdapter.read(path, digest, allocate)
            self._finish(made[0], packed)
        except BaseException:
            for image in made:
                self.host_cache.return_image(image)
            raise
        self.host_cache.keep(made[0])
        return made[0]

    def adopt(self, packed: PackedAdapter) -> HostImage:
        """Does the same as `read` for an adapter that is in memory already."""
        self._check(packed.manifest)
        digest = packed.digest
        packed = shard_adapter(packed, self._config, self._shard)
        image = self.host_cache.make(digest, image_bytes(packed.manifest))
        try:
            if packed.manifest.dtype != "float32":
                image.bytes.numpy()[: packed.manifest.num_bytes] = packed.slab.view(np.uint8)
            self._finish(image, packed)
        except BaseException:
            self.host_cache.return_image(image)
            raise
        self.host_cache.keep(image)
        return image

    def drop(self, image: HostImage) -> None:
        """Returns an image that will not be loaded."""
        self.host_cache.return_image(image)

    def load(self, slot: int, image: HostImage) -> None:
        """Fills an empty slot, and waits until it is usable. Returns the image to the cache.

        Raises MemoryError when there are too few free bytes: then the slot is empty.
        """
        try:
            with self._loading:
                self.unload(slot)
                start, after = self._allocate_range(slot, image)
                try:
                    self._upload(slot, image, start, after)
                except BaseException:
                    self._transfers.settle()
                    self.unload(slot)
                    raise
        finally:
            self.host_cache.return_image(image)

    def close(self) -> None:
        """Ends loads that wait for memory. No other call may follow, nor run meanwhile except those."""
        self.host_cache.close()
        with self._loading:
            self._transfers.settle()
            self._locked.close()

    def check_integrity(self) -> None:
        """Asserts that every range belongs to a slot. For tests."""
        with self._lock:
            self._ranges.check_integrity()
            held = sum(self._ranges.size(resident.start) for resident in self._residents.values())
            assert held == self._ranges.capacity - self._ranges.num_free

    # ------------------------------------------------------------------------------------------------------

    def _check(self, manifest: Manifest) -> None:
        check_fits(manifest, self._config)
        if manifest.rank > self.table.max_rank:
            raise ArtifactError("rank", f"is {manifest.rank}, this engine serves up to {self.table.max_rank}")

    def _finish(self, image: HostImage, packed: PackedAdapter) -> None:
        """Completes an image that holds the slab; an fp32 slab is converted into it first."""
        check_finite(packed)
        memory = image.bytes.numpy()
        image.manifest = device_manifest(packed.manifest)
        image.layout = lay_out_image(image.manifest)
        if packed.manifest.dtype == "float32":
            packed = to_bf16(packed)
            memory[: packed.manifest.num_bytes] = packed.slab.view(np.uint8)
        write_rank_scales(packed, image.layout, memory)

    def _allocate_range(self, slot: int, image: HostImage) -> tuple[int, list[StreamMark]]:
        """Returns a range for the slot, and the marks to wait for before it is written."""
        size = len(image.bytes)
        while True:
            with self._lock:
                if rounded(size) > self._ranges.num_free:
                    free, capacity = self._ranges.num_free, self._ranges.capacity
                    raise MemoryError(f"needs {size} bytes, {free} of {capacity} are free")
                start = self._ranges.take(size)
                if start is not None:
                    self._residents[slot] = _Resident(start)
                    end = start + rounded(size)
                    after = [f.last_use for f in self._freed if f.start < end and start < f.end]
                    return start, [*after, self._vacated.pop(slot, PASSED)]
                moved = self._compact(size)
            moved.synchronize()

    def _compact(self, size: int) -> StreamMark:
        """Queues some of the moves towards a free range of `size` bytes, between two launches."""
        self._write_entries()
        slots = {resident.start: slot for slot, resident in self._residents.items()}
        moves = self._ranges.plan(size)
        num_bytes = 0
        moved: list[_Resident] = []
        for move in moves:
            if num_bytes and num_bytes + move.size > self.moved_bytes:
                break
            num_bytes += move.size
            slot = slots[move.source]
            self._transfers.move_down(self.table.arena, *move)
            with self._transfers.on_step_stream():
                self.table.offsets[:, :, slot] += move.target - move.source
            self._ranges.move(move)
            self._residents[slot].start = move.target
            moved.append(self._residents[slot])
        self.num_moves += len(moved)
        mark = self._last_launch = self._transfers.mark()
        for resident in moved:
            if resident.last_use is not None:
                resident.last_use = mark
        last = moves[len(moved) - 1]
        self._note_freed(moves[0].target, last.source + last.size, mark)
        return mark

    def _upload(self, slot: int, image: HostImage, start: int, after: list[StreamMark]) -> None:
        target = self.table.arena[start : start + len(image.bytes)]
        with self._transfers.on_side_stream(*after):
            self._transfers.upload(image.bytes, target)
            torch.add(image.layout.offsets_LG5, start, out=self._offsets_LG5)
            self._ranks_LG4.copy_(image.layout.ranks_LG4)
            self.table.check(self._offsets_LG5, self._ranks_LG4)
            self._offsets_SLG5[slot].copy_(self._offsets_LG5, non_blocking=True)
            self._ranks_SLG4[slot].copy_(self._ranks_LG4, non_blocking=True)
        self._transfers.settle()
        with self._lock:
            self._unwritten[slot] = True

    def _write_entries(self) -> None:
        """Updates the table, between steps."""
        if self._unwritten:
            with self._transfers.on_step_stream():
                for slot, loaded in self._unwritten.items():
                    if loaded:
                        self.table.offsets[:, :, slot].copy_(self._offsets_SLG5[slot])
                        self.table.ranks[:, :, slot].copy_(self._ranks_SLG4[slot])
                    else:
                        self.table.clear(slot)
            self._unwritten.clear()

    def _note_freed(self, start: int, end: int, last_use: StreamMark) -> None:
        self._freed = [freed for freed in self._freed if not freed.last_use.query()]
        if not last_use.query():
            self._freed.append(_Freed(start, end, last_use))
