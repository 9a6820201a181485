"""Loads packed adapters from disk into slots of an adapter pool, on threads beside the step loop.

Reader threads bring artifacts into host memory; one thread loads them into their slots, first come, first
served. What is in host memory already does not queue behind what has to be read. Every load is reported;
after a failure the threads continue. The slot table decides which slot holds what.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

import structlog

from engine.lora.artifact import ArtifactError, Manifest, artifact_path, read_manifest
from engine.lora.draft_adapters import DraftAdapterError, NotedDraftAdapters
from engine.lora.signatures import AdapterVerifier
from engine.lora.slots import NO_SLOT
from engine.protocol import AdapterRef

log = structlog.get_logger(__name__)

OnDone = Callable[[int, str, str | None], None]
"""(slot, digest, None or the error), called on a loader's thread, or by `refuse` on the caller's."""

MAX_KNOWN_SIZES = 65_536
NUM_READERS_ON_GPU = 4
"""Threads that read adapters from disk into host memory: one verifies about a gigabyte per second."""


class HasManifest(Protocol):
    """An adapter in host memory."""

    manifest: Manifest


HostAdapter = TypeVar("HostAdapter", bound=HasManifest)
_T = TypeVar("_T")


class Pool(Protocol[HostAdapter]):
    """The memory that adapters are loaded into: the CPU's or a device's."""

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
        """Bytes that the slot table reserved."""
        self.began = time.perf_counter()


class AdapterLoader(Generic[HostAdapter]):
    """Loads adapters; also the slot table's `SlotMemory`. `start_load` may be called from any thread, the
    rest from one.
    """

    def __init__(
        self,
        artifact_dir: Path,
        pool: Pool[HostAdapter],
        on_done: OnDone,
        base_digest: str | None = None,
        num_readers: int = 1,
        verifier: AdapterVerifier | None = None,
        draft_adapters: NotedDraftAdapters | None = None,
    ) -> None:
        """With `base_digest`, adapters packed against another base are rejected even if their sizes fit. With
        `verifier`, their signatures are verified before they are read. With `draft_adapters`, it is looked up
        which ones guess for them.

        With several readers, adapters may become ready in another order than requested.
        """
        self._artifact_dir = artifact_dir
        self._pool = pool
        self._on_done = on_done
        self._base_digest = base_digest
        self._verifier = verifier
        self._draft_adapters = draft_adapters
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

    # Called by the slot table ----------------------------------------------------------------------------

    @property
    def capacity(self) -> int | None:
        return self._pool.capacity

    def size_of(self, ref: AdapterRef) -> int | None:
        """Returns the pool's bytes that the adapter will take; None when its artifact cannot be read."""
        size = self._sizes.get(ref.digest)
        if size is None:
            try:
                size = self._pool.size_of(read_manifest(artifact_path(self._artifact_dir, ref.digest)))
            except (OSError, ArtifactError):
                return None  # loading it will report why
            if len(self._sizes) >= MAX_KNOWN_SIZES:
                del self._sizes[next(iter(self._sizes))]
            self._sizes[ref.digest] = size
        return size

    def start_load(self, slot: int, ref: AdapterRef) -> None:
        """Begins to fill a slot that no row of a batch refers to; `on_done` reports the result."""
        assert not self._closing.is_set(), "the loader is closed"
        load = _Load(slot, ref, self._sizes.get(ref.digest))
        held = self._pool.cached(ref.digest)
        if held is None:
            self._to_read.put(load)
        else:
            self._to_load.put((load, held))

    def refuse(self, ref: AdapterRef, reason: str) -> None:
        """Reports that the adapter cannot be loaded, as if a load had failed."""
        self._on_done(NO_SLOT, ref.digest, reason)

    def idle(self, slot: int) -> None:
        """Notes that the slot's last request has ended: no step planned from now on reads it."""
        self._pool.idle(slot)

    def unload(self, slot: int) -> None:
        """Empties a slot whose adapter was evicted or failed to load."""
        self._pool.unload(slot)

    def close(self) -> None:
        """Finishes the load under way, drops waiting ones without a report, and ends the threads."""
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
        """Returns the error, for the tenant to read: without paths of this machine."""
        try:
            action(load, argument)
        except FileNotFoundError:
            return f"packed adapter {load.ref.digest} is not on this engine's disk"
        except OSError as error:
            return f"packed adapter cannot be read: {error.strerror or type(error).__name__}"
        except MemoryError as error:
            return ": ".join(["not enough memory for the adapter", *map(str, error.args)])
        except (ValueError, RuntimeError) as error:
            # ArtifactError, and errors that torch raises for a device.
            return f"packed adapter rejected: {error}"
        return None

    def _report(self, load: _Load, error: str | None) -> None:
        if error is None:
            self.load_seconds += time.perf_counter() - load.began
        self._on_done(load.slot, load.ref.digest, error)

    def _read(self, load: _Load, path: Path) -> None:
        self._pool.unload(load.slot)  # free the former adapter's memory before the new one takes some
        if self._verifier is not None:
            self._verifier.check(path)
        try:
            held = self._pool.read(path, load.ref.digest)
        except ArtifactError as error:
            if self._verifier is not None:
                self._verifier.refused(load.ref.digest, "file", error)
            raise
        self._look_up_draft_adapter(load.ref.digest)
        self._to_load.put((load, held))

    def _look_up_draft_adapter(self, digest: str) -> None:
        """A wrong note costs no request its adapter: the engine's own draft adapter guesses for it."""
        if self._draft_adapters is None:
            return
        try:
            self._draft_adapters.look(digest)
        except DraftAdapterError as error:
            log.warning("note of a draft adapter ignored", adapter=digest, reason=str(error))

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
            # No memory was reserved. Another attempt will find its size.
            raise ArtifactError("size", "the artifact arrived after its size was looked up; retry")
