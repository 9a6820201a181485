"""Queues copies on a side stream beside a device's steps, or on the step stream between them.

On a CPU, where no step runs meanwhile, everything is done at once. Host memory that copies read while the
host continues must be page-locked: `PageLocked`.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor

CHUNK_BYTES = 4 << 20
"""Bytes of one copy from the host; the next is queued when it has ended.

While copies are queued on one stream, the copy engine does not serve others, and a step's own small copies
wait for the whole load. H200, steps of 7.45 ms under loads of 84 MB without a pause, 99th percentile of a
step: +3.6 % with chunks of 4 MB one by one (a load takes 2.4 ms), +2.4 % with 2 MB (3.3 ms), +5.2 % with 8 MB
(2.0 ms); +23 % with two chunks of 4 MB queued at a time, or in one piece (1.7 ms).
"""
_POPULATED_BYTES = 256 << 20
_MADV_POPULATE_WRITE = 23
SCRATCH_BYTES = 32 << 20
"""For moving bytes onto an overlapping range."""


class StreamMark(Protocol):
    """A point in the order of a device's work."""

    def query(self) -> bool:
        """Returns whether the device has passed it."""
        ...

    def synchronize(self) -> None:
        """Waits until the device has passed it."""
        ...


class _AlwaysPassed:
    """The mark of a device that does everything at once."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


PASSED: StreamMark = _AlwaysPassed()


class Transfers:
    """Queues copies. Call from one thread at a time."""

    def __init__(
        self, device: torch.device, stream: torch.cuda.Stream | None = None, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        """`stream`: where steps are launched; by default the device's current one."""
        self._device = device
        self._chunk_bytes = chunk_bytes
        self._scratch: Tensor | None = None
        self._compute: torch.cuda.Stream | None = None
        self._side: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._compute = stream if stream is not None else torch.cuda.current_stream(device)
            self._side = torch.cuda.Stream(device)

    def mark(self) -> StreamMark:
        """Returns the end of what is queued on the step stream so far."""
        return PASSED if self._compute is None else _record(self._compute)

    def on_step_stream(self) -> AbstractContextManager[None]:
        """Queues what follows behind all steps launched so far, and before the next."""
        return nullcontext() if self._compute is None else torch.cuda.stream(self._compute)

    def on_side_stream(self, *after: StreamMark) -> AbstractContextManager[None]:
        """Queues what follows beside steps, once the device has passed `after`."""
        if self._side is None:
            return nullcontext()
        for mark in after:
            if isinstance(mark, torch.cuda.Event) and not mark.query():
                self._side.wait_event(mark)
        return torch.cuda.stream(self._side)

    def upload(self, source: Tensor, target: Tensor) -> None:
        """Copies host bytes to device bytes, beside steps, and waits until they are there."""
        if self._side is None:
            target.copy_(source)
            return
        with self.on_side_stream():
            for start in range(0, len(source), self._chunk_bytes):
                end = start + self._chunk_bytes
                target[start:end].copy_(source[start:end], non_blocking=True)
                self.settle()

    def settle(self) -> None:
        """Waits until everything queued on the side stream is done."""
        if self._side is not None:
            _record(self._side).synchronize()

    def move_down(self, memory: Tensor, source: int, target: int, size: int) -> None:
        """Moves bytes of `memory` to a lower address, between steps; source and target may overlap."""
        assert target < source
        with self.on_step_stream():
            if target + size <= source:
                memory[target : target + size].copy_(memory[source : source + size])
                return
            scratch = self._scratch
            if scratch is None:
                scratch = self._scratch = torch.empty(SCRATCH_BYTES, dtype=torch.uint8, device=self._device)
            for done in range(0, size, SCRATCH_BYTES):
                piece = scratch[: min(SCRATCH_BYTES, size - done)]
                piece.copy_(memory[source + done : source + done + len(piece)])
                memory[target + done : target + done + len(piece)].copy_(piece)


class PageLocked:
    """Host memory at addresses that a device can read by itself, once it is locked. Close it when no copy
    runs any more.

    14 GB take eight seconds, most of them to find the pages: a thread does that beside other work, from the
    beginning. To lock them holds the driver's own lock, so that nothing else can be queued meanwhile.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        """Raises MemoryError. torch's own page-locked memory comes in powers of two: this is `size`."""
        try:
            self._memory = mmap.mmap(-1, max(size, 1))
        except OSError as error:
            raise MemoryError(f"cannot allocate {size} bytes of host memory") from error
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._memory.madvise(mmap.MADV_HUGEPAGE)  # fewer pages to lock: starts faster
        self.bytes = torch.frombuffer(self._memory, dtype=torch.uint8)[:size]
        self._device = device
        self._unlock: Callable[[], object] = lambda: None
        self._populating: threading.Thread | None = None
        if device.type == "cuda" and size:
            self._populating = threading.Thread(
                target=_populate, args=(self.bytes.data_ptr(), size), name="page-finding", daemon=True
            )
            self._populating.start()

    def lock(self) -> None:
        """Locks the memory, before the first copy from it. Raises MemoryError."""
        if self._populating is None:
            return
        self._populating.join()
        self._populating = None
        address, size = self.bytes.data_ptr(), len(self.bytes)
        with torch.cuda.device(self._device):
            status = int(torch.cuda.cudart().cudaHostRegister(address, size, 0))
        if status:
            raise MemoryError(f"cannot page-lock {size} bytes of host memory: CUDA error {status}")
        # Also without `close`: the addresses must not be reused while they are registered.
        self._unlock = weakref.finalize(self, _unlock, self._memory, address)

    def close(self) -> None:
        if self._populating is not None:
            self._populating.join()
        self._unlock()


def _populate(address: int, size: int) -> None:
    """Has the system find all pages of memory, whose contents stay as they are. Linux before 5.14 cannot:
    then locking does it.
    """
    libc = ctypes.CDLL(None)  # without Python's lock, unlike `mmap.madvise`
    for start in range(0, size, _POPULATED_BYTES):
        length = min(_POPULATED_BYTES, size - start)
        if libc.madvise(ctypes.c_void_p(address + start), ctypes.c_size_t(length), _MADV_POPULATE_WRITE):
            return


def _unlock(memory: mmap.mmap, address: int) -> None:
    torch.cuda.cudart().cudaHostUnregister(address)


def _record(stream: torch.cuda.Stream) -> torch.cuda.Event:
    # Waiting for it sleeps: a loader that spins would take a processor from the step loop.
    event = torch.cuda.Event(blocking=True)
    event.record(stream)
    return event
