"""Fills slots of an adapter pool from packed artifacts on disk, on threads beside the step loop.

Owns the way of a load: reading threads bring the artifact into host memory, one thread takes it from there
into its slot, first come, first served; what is in host memory already does not queue behind what has to be
read. Owns the report on each, and what the slot table has to know of sizes. A load that fails is reported and
the threads go on. Refuses to know which slot should hold what.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

from engine.lora.artifact import ArtifactError, Manifest, artifact_path, read_manifest
from engine.lora.slots import NO_SLOT
from engine.protocol import AdapterRef

OnDone = Callable[[int, str, str | None], None]
"""(slot, digest, None or what went wrong), called on a loader's thread, or by `refuse` on the caller's."""

MAX_KNOWN_SIZES = 65_536


class HasManifest(Protocol):
    """An adapter in host memory."""

    manifest: Manifest


HostAdapter = TypeVar("HostAdapter", bound=HasManifest)
_T = TypeVar("_T")


class Pool(Protocol[HostAdapter]):
    """Where adapters are loaded to: the CPU's or a device's."""

    @property
    def capacity(self) -> int | None:
        """Bytes of adapters that can be resident; None: as many as the slots hold."""
        ...

    def size_of(self, manifest: Manifest) -> int: ...

    def cached(self, digest: str) -> HostAdapter | None: ...

    def read(self, path: Path, digest: str) -> HostAdapter: ...

    def drop(self, held: HostAdapter, /) -> None: ...

    def load(self, slot: int, held: HostAdapter, /) -> None: ...

    def unload(self, slot: int) -> None: ...

    def idle(self, slot: int) -> None: ...


class _Load:
    __slots__ = ("began", "ref", "size", "slot")

    def __init__(self, slot: int, ref: AdapterRef, size: int | None) -> None:
        self.slot = slot
        self.ref = ref
        self.size = size
        """What the slot table has set aside."""
        self.began = time.perf_counter()


class AdapterLoader(Generic[HostAdapter]):
    """Also the slot table's `SlotMemory`. `start_load` may be called from any thread, the rest from one."""

    def __init__(
        self,
        artifact_dir: Path,
        pool: Pool[HostAdapter],
        on_done: OnDone,
        base_digest: str | None = None,
        num_readers: int = 1,
    ) -> None:
        """With `base_digest`, adapters packed against another base are refused even where their sizes fit.

        With several readers, adapters may be ready in another order than they were asked for.
        """
        self._artifact_dir = artifact_dir
        self._pool = pool
        self._on_done = on_done
        self._base_digest = base_digest
        self._sizes: dict[str, int] = {}
        self._to_read: SimpleQueue[_Load | None] = SimpleQueue()
        self._to_load: SimpleQueue[tuple[_Load, HostAdapter] | None] = SimpleQueue()
        self._closing = threading.Event()
        self.load_seconds = 0.0
        """From the start of a load to its end, summed over loads that succeeded."""
        self._readers = [
            threading.Thread(target=self._read_all, name=f"adapter-reader-{index}", daemon=True)
            for index in range(num_readers)
        ]
        self._loader = threading.Thread(target=self._load_all, name="adapter-loader", daemon=True)
        for thread in (*self._readers, self._loader):
            thread.start()

    # The slot table asks ---------------------------------------------------------------------------------

    @property
    def capacity(self) -> int | None:
        return self._pool.capacity

    def size_of(self, ref: AdapterRef) -> int | None:
        """Bytes of the pool that the adapter will take; None when its artifact cannot tell."""
        size = self._sizes.get(ref.digest)
        if size is None:
            try:
                size = self._pool.size_of(read_manifest(artifact_path(self._artifact_dir, ref.digest)))
            except (OSError, ArtifactError):
                return None  # loading it will say why
            if len(self._sizes) >= MAX_KNOWN_SIZES:
                del self._sizes[next(iter(self._sizes))]
            self._sizes[ref.digest] = size
        return size

    def start_load(self, slot: int, ref: AdapterRef) -> None:
        """Begin to fill a slot that no row of a batch refers to; `on_done` tells how it went."""
        assert not self._closing.is_set(), "the loader is closed"
        load = _Load(slot, ref, self._sizes.get(ref.digest))
        held = self._pool.cached(ref.digest)
        if held is None:
            self._to_read.put(load)
        else:
            self._to_load.put((load, held))

    def refuse(self, ref: AdapterRef, reason: str) -> None:
        """Report that the adapter cannot be loaded, as of a load that failed."""
        self._on_done(NO_SLOT, ref.digest, reason)

    def idle(self, slot: int) -> None:
        """The slot's last request has ended: no step planned from now on reads it."""
        self._pool.idle(slot)

    def unload(self, slot: int) -> None:
        """The slot's adapter was evicted, or failed to load."""
        self._pool.unload(slot)

    def close(self) -> None:
        """Finish what is under way, drop what waits without a report, and end the threads."""
        self._closing.set()
        for _ in self._readers:
            self._to_read.put(None)
        for thread in self._readers:
            thread.join()
        self._to_load.put(None)
        self._loader.join()

    # ------------------------------------------------------------------------------------------------------

    def _read_all(self) -> None:
        while (load := self._to_read.get()) is not None and not self._closing.is_set():
            error = self._attempt(load, self._read, artifact_path(self._artifact_dir, load.ref.digest))
            if error is not None:
                self._report(load, error)

    def _load_all(self) -> None:
        while (work := self._to_load.get()) is not None:
            load, held = work
            if self._closing.is_set():
                self._pool.drop(held)
            else:
                self._report(load, self._attempt(load, self._load, held))

    def _attempt(self, load: _Load, action: Callable[[_Load, _T], None], argument: _T) -> str | None:
        """What went wrong, for the tenant to read: no paths of this machine in it."""
        try:
            action(load, argument)
        except FileNotFoundError:
            return f"no packed adapter {load.ref.digest} on this engine's disk"
        except OSError as error:
            return f"packed adapter cannot be read: {error.strerror or type(error).__name__}"
        except MemoryError as error:
            return ": ".join(["not enough memory for the adapter", *map(str, error.args)])
        except (ValueError, RuntimeError) as error:
            # ArtifactError, and what torch raises when a device refuses.
            return f"packed adapter refused: {error}"
        return None

    def _report(self, load: _Load, error: str | None) -> None:
        if error is None:
            self.load_seconds += time.perf_counter() - load.began
        self._on_done(load.slot, load.ref.digest, error)

    def _read(self, load: _Load, path: Path) -> None:
        self._pool.unload(load.slot)  # its former adapter goes before the new one takes memory
        held = self._pool.read(path, load.ref.digest)
        self._to_load.put((load, held))

    def _load(self, load: _Load, held: HostAdapter) -> None:
        try:
            self._check(load, held.manifest)
        except ArtifactError:
            self._pool.drop(held)
            raise
        self._pool.load(load.slot, held)

    def _check(self, load: _Load, manifest: Manifest) -> None:
        if self._base_digest is not None and manifest.base_digest != self._base_digest:
            raise ArtifactError("base_digest", "packed against another base")
        if manifest.rank != load.ref.rank:
            raise ArtifactError("rank", f"is {manifest.rank}, the request says {load.ref.rank}")
        if self._pool.capacity is not None and load.size is None:
            # No room was set aside. Another attempt will find its size.
            raise ArtifactError("size", "the artifact came while it was being asked for")
