"""Decides on which replicas adapters are pinned: on their homes, which change as replicas come and go."""

from __future__ import annotations

from collections.abc import Iterator

from engine.protocol import AdapterRef
from routing.placement import Placement

PINNED_COPIES = 2
"""Homes of a pinned adapter at least: when one replica fails, requests on it wait for no load."""

PinChange = tuple[str, AdapterRef, bool]
"""A replica, and an adapter that it is to pin, or to unpin."""


class PinnedAdapters:
    """The adapters that are to stay loaded, and where they were pinned."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._wanted: dict[str, AdapterRef] = {}
        self._pinned_at: dict[str, set[str]] = {}

    def set(self, adapter: AdapterRef, pinned: bool) -> list[PinChange]:
        """Pins or unpins an adapter. Returns what to send to replicas, pins that were sent before included: a
        message may have been lost.
        """
        digest = adapter.digest
        if pinned:
            self._wanted[digest] = adapter
            self._placement.pin(digest, PINNED_COPIES)
            homes = self._placement.homes(digest)
            moved = self._move(adapter)
            return [*moved, *((name, adapter, True) for name in homes if (name, adapter, True) not in moved)]
        # Other processes have pinned it on the same replicas, whether or not this one has.
        holding = self._pinned_at.pop(digest, set()).union(self._placement.order(digest, PINNED_COPIES))
        self._wanted.pop(digest, None)
        self._placement.pin(digest, 0)
        return [(name, adapter, False) for name in sorted(holding)]

    def forget(self, replica: str) -> None:
        """Forgets the pins of a replica that is gone."""
        for holding in self._pinned_at.values():
            holding.discard(replica)

    def moved(self) -> Iterator[PinChange]:
        """Yields what to send to replicas after some have joined or left."""
        for adapter in list(self._wanted.values()):
            yield from self._move(adapter)

    def _move(self, adapter: AdapterRef) -> list[PinChange]:
        homes = set(self._placement.homes(adapter.digest))
        holding = self._pinned_at.get(adapter.digest, set())
        self._pinned_at[adapter.digest] = homes
        changes = [(name, adapter, True) for name in sorted(homes - holding)]
        return changes + [(name, adapter, False) for name in sorted(holding - homes)]
