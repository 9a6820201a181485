"""Defines what brings packed adapters to this host's disk before they are loaded into a slot.

The engine knows no store. Where packed adapters lie in a shared folder there is nothing to bring (`OnDisk`);
elsewhere the process that starts the engine hands it a fetcher.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

OnFetched = Callable[[str, str | None], None]
"""(digest, None or the error for clients), called on a thread of the fetcher."""


@dataclass(slots=True)
class FetchCounters:
    """Monotonic since the start of the engine, but `fetching`."""

    fetching: int = 0
    """Artifacts that are being fetched now, or wait for their turn."""
    fetched: int = 0
    num_bytes: int = 0
    """Of fetched artifacts."""
    seconds: float = 0.0
    """From the start of a fetch to its end, summed over those that succeeded."""
    failures: dict[str, int] = field(default_factory=dict)
    """By cause."""


class HeldArtifacts(Protocol):
    """Artifacts on this host's disk, by digest. The slot table calls it on the step loop's thread: no method
    waits for a disk or a store.
    """

    @property
    def counters(self) -> FetchCounters: ...

    def hold(self, digest: str) -> bool:
        """Returns whether the artifact is on disk, and stays there until it is released.

        If not, begins to bring it; the result is reported.
        """
        ...

    def release(self, digest: str, *, is_suspect: bool = False) -> None:
        """Ends what `hold` began, if anything. `is_suspect`: it could not be loaded, and may be damaged."""
        ...


class ArtifactFetcher(HeldArtifacts, Protocol):
    """Brings artifacts from elsewhere."""

    @property
    def directory(self) -> Path:
        """Returns the folder of the artifacts that are held."""
        ...

    def start(self, on_fetched: OnFetched) -> None:
        """Call once, before any other method."""
        ...

    def close(self) -> None:
        """Ends all fetches without a report."""
        ...


class OnDisk:
    """A folder that has all artifacts that there are: loading one says if it is missing."""

    def __init__(self) -> None:
        self.counters = FetchCounters()

    def hold(self, digest: str) -> bool:
        return True

    def release(self, digest: str, *, is_suspect: bool = False) -> None:
        pass
