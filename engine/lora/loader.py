"""Fills slots of the adapter pool from packed artifacts on disk, on a thread beside the step loop.

Owns the order of loads (first come, first served) and the report on each. A load that fails is reported and
the thread goes on. Refuses to know which slot should hold what.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

from engine.lora.artifact import ArtifactError, PackedAdapter, artifact_path
from engine.lora.pool import AdapterPool
from engine.protocol import AdapterRef

OnDone = Callable[[int, str, str | None], None]
"""(slot, digest, None or what went wrong), called on the loader's thread."""


class AdapterLoader:
    """One thread that loads adapters. `start_load` may be called from any thread."""

    def __init__(
        self, artifact_dir: Path, pool: AdapterPool, on_done: OnDone, base_digest: str | None = None
    ) -> None:
        """With `base_digest`, adapters packed against another base are refused even where their sizes fit."""
        self._artifact_dir = artifact_dir
        self._pool = pool
        self._on_done = on_done
        self._base_digest = base_digest
        self._queue: SimpleQueue[tuple[int, AdapterRef] | None] = SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="adapter-loader", daemon=True)
        self._thread.start()

    def start_load(self, slot: int, ref: AdapterRef) -> None:
        """Begin to fill a slot that no row of a batch refers to; `on_done` tells how it went."""
        assert not self._closing.is_set(), "the loader is closed"
        self._queue.put((slot, ref))

    def close(self) -> None:
        """Finish the load under way, drop those that wait without a report, and end the thread."""
        self._closing.set()
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (work := self._queue.get()) is not None and not self._closing.is_set():
            slot, ref = work
            self._on_done(slot, ref.digest, self._load(slot, ref))

    def _load(self, slot: int, ref: AdapterRef) -> str | None:
        """What went wrong, for the tenant to read: no paths of this machine in it."""
        path = artifact_path(self._artifact_dir, ref.digest)
        self._pool.unload(slot)  # its former adapter goes before the new one takes memory
        try:
            packed = PackedAdapter.read(path, ref.digest)
            self._check(packed, ref)
            self._pool.load(slot, packed)
        except FileNotFoundError:
            return f"no packed adapter {ref.digest} on this engine's disk"
        except OSError as error:
            return f"packed adapter cannot be read: {error.strerror or type(error).__name__}"
        except MemoryError:
            return "not enough memory for the adapter"
        except (ValueError, RuntimeError) as error:
            # ArtifactError, and what torch raises when a device refuses.
            return f"packed adapter refused: {error}"
        return None

    def _check(self, packed: PackedAdapter, ref: AdapterRef) -> None:
        manifest = packed.manifest
        if self._base_digest is not None and manifest.base_digest != self._base_digest:
            raise ArtifactError("base_digest", "packed against another base")
        if manifest.rank != ref.rank:
            raise ArtifactError("rank", f"is {manifest.rank}, the request says {ref.rank}")
