"""Copies blocks of a KV cache on a GPU to and from other engines, beside the steps.

Blocks leave through staging memory on the GPU. An engine on the same host opens that memory (CUDA IPC) and
copies from GPU to GPU; otherwise they go through page-locked host memory, as bytes. They come into staging
memory by one contiguous copy, which the copy engines do, and from there into their blocks by a kernel that
takes microseconds. So the steps of the engine that decodes lose next to nothing to it.

Only the engine that owns a cache writes to it: when another one dies or hangs, nothing is overwritten.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import structlog
import torch
from torch import Tensor

from engine.device.cache_copies import block_bytes_view, blocks_per_piece, check_size
from engine.model.cache import KVCache
from engine.prefill.copies import PIECES
from engine.prefill.messages import SharedMemory

log = structlog.get_logger(__name__)

WORD = torch.int64
"""Blocks are copied in words of this type: fewer elements than bytes."""


class DeviceCacheCopies:
    """Copies blocks from and to a cache on a GPU.

    `follow_steps`, `write` and `precede_steps` belong to the thread that launches steps, on whose current
    stream these run.
    """

    def __init__(self, kv: KVCache) -> None:
        bytes_LBC = block_bytes_view(kv)
        self._words_LBC = bytes_LBC.view(WORD)
        self.device = kv.layers.device
        self.blocks_per_piece = blocks_per_piece(bytes_LBC)
        self.block_bytes = bytes_LBC.shape[0] * bytes_LBC.shape[2]
        self._stream = torch.cuda.Stream(self.device)
        self._landing = torch.empty(
            self.blocks_per_piece * self.block_bytes, dtype=torch.uint8, device=self.device
        )

    @property
    def piece_bytes(self) -> int:
        return self.blocks_per_piece * self.block_bytes

    # Out of the cache -------------------------------------------------------------------------------------

    def mark_launched(self) -> torch.cuda.Event:
        mark = torch.cuda.Event()
        mark.record(torch.cuda.current_stream(self.device))
        return mark

    def is_over(self, mark: torch.cuda.Event) -> bool:
        return mark.query()

    def outgoing(self) -> DeviceOutgoing:
        return DeviceOutgoing(self)

    def gather(self, block_ids: list[int], staging: Tensor) -> None:
        """Queues the copy of blocks into contiguous memory, on the current stream."""
        words_LBC = self._words_LBC
        gathered = staging.view(WORD).view(words_LBC.shape[0], len(block_ids), words_LBC.shape[2])
        torch.index_select(words_LBC, 1, self._ids(block_ids), out=gathered)

    # Into the cache ---------------------------------------------------------------------------------------

    def incoming(self, shared: SharedMemory | None) -> DeviceIncoming:
        return DeviceIncoming(self, shared)

    def follow_steps(self) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self.device))

    @torch.inference_mode()
    def write(self, block_ids: list[int], data: Arrival) -> None:
        words_LBC = self._words_LBC
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            landing = self._landing[: data.source.numel()]
            landing.copy_(data.source, non_blocking=True)
            shape = (words_LBC.shape[0], len(block_ids), words_LBC.shape[2])
            words_LBC.index_copy_(1, self._ids(block_ids), landing.view(WORD).view(shape))
            data.copied = torch.cuda.Event()
            data.copied.record(self._stream)

    def precede_steps(self) -> None:
        torch.cuda.current_stream(self.device).wait_stream(self._stream)

    def _ids(self, block_ids: list[int]) -> Tensor:
        # From page-locked memory: other memory would wait for everything queued before.
        return torch.tensor(block_ids).pin_memory().to(self.device, non_blocking=True)


class DeviceOutgoing:
    """The staging memory through which one client's blocks leave."""

    def __init__(self, copies: DeviceCacheCopies) -> None:
        self._copies = copies
        with torch.cuda.device(copies.device):
            self._stream = torch.cuda.Stream(copies.device)
            self._staging = torch.empty((PIECES, copies.piece_bytes), dtype=torch.uint8, device=copies.device)
        self._host: Tensor | None = None

    def share(self) -> SharedMemory | None:
        """Returns a handle of the staging memory; None where there is none, such as in some containers."""
        try:
            parts = self._staging.untyped_storage()._share_cuda_()
            host = _host_id()
        except (RuntimeError, OSError) as error:
            log.warning("prompts leave through host memory", reason=str(error))
            return None
        return SharedMemory(host, msgspec.msgpack.encode(parts), self._copies.piece_bytes)

    @torch.inference_mode()
    def fill(self, piece: int, block_ids: list[int], is_shared: bool) -> Any:
        copies, num_bytes = self._copies, len(block_ids) * self._copies.block_bytes
        staging = self._staging[piece, :num_bytes]
        with torch.cuda.device(copies.device), torch.cuda.stream(self._stream):
            copies.gather(block_ids, staging)
            if is_shared:
                self._stream.synchronize()
                return None
            if self._host is None:
                self._host = torch.empty(self._staging.shape, dtype=torch.uint8, pin_memory=True)
            host = self._host[piece, :num_bytes]
            host.copy_(staging, non_blocking=True)
            self._stream.synchronize()
        return memoryview(host.numpy())


class Arrival:
    """Blocks that have come: a part of another engine's memory, or of page-locked memory here."""

    __slots__ = ("copied", "source")

    def __init__(self, source: Tensor) -> None:
        self.source = source
        self.copied: torch.cuda.Event | None = None
        """None: not written."""


class DeviceIncoming:
    """The memory into which one sender's blocks come, until they are written."""

    def __init__(self, copies: DeviceCacheCopies, shared: SharedMemory | None) -> None:
        self._copies = copies
        self._remote = None if shared is None else _opened(shared, copies)
        self._host: Tensor | None = None

    @property
    def is_shared(self) -> bool:
        return self._remote is not None

    def stage(self, piece: int, num_blocks: int, payload: Any) -> Arrival:
        copies, num_bytes = self._copies, num_blocks * self._copies.block_bytes
        if not 0 <= piece < PIECES or num_bytes > copies.piece_bytes:
            raise ValueError(f"{num_blocks} blocks do not fit piece {piece} of {PIECES}")
        if self._remote is not None:
            return Arrival(self._remote[piece, :num_bytes])
        check_size(payload, num_bytes)
        if self._host is None:
            self._host = torch.empty((PIECES, copies.piece_bytes), dtype=torch.uint8, pin_memory=True)
        host = self._host[piece, :num_bytes]
        np.copyto(host.numpy(), np.frombuffer(payload, np.uint8))
        return Arrival(host)

    def is_free(self, data: Arrival) -> bool:
        return data.copied is None or data.copied.query()


def _host_id() -> str:
    """Identifies the running host: device memory is shared among its processes only."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _opened(shared: SharedMemory, copies: DeviceCacheCopies) -> Tensor | None:
    """Returns another process's staging memory, `[PIECES, piece_bytes]`; None where it cannot be read."""
    try:
        if shared.host != _host_id():
            return None
        _, *parts = msgspec.msgpack.decode(shared.handle)
        with torch.cuda.device(copies.device):
            # Opened as memory of this engine's device, whichever it lies on: copies find out.
            storage = torch.UntypedStorage._new_shared_cuda(torch.cuda.current_device(), *parts)
            remote = torch.empty(0, dtype=torch.uint8, device=copies.device).set_(storage)
        return remote[: PIECES * shared.piece_bytes].view(PIECES, copies.piece_bytes)
    except (RuntimeError, OSError, ValueError, msgspec.DecodeError) as error:
        log.warning("prompts come through host memory", reason=str(error))
        return None
