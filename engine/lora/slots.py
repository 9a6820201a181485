"""Tracks which adapter is in which slot of the pool, and evicts idle slots for other adapters.

A slot's states:

    EMPTY --ensure_loaded--> LOADING --loaded--> READY --evicted, while unreferenced and not pinned--> EMPTY
                                \\--failed--> EMPTY

Before `ensure_loaded` or `replace`, the adapter's artifact must be at hand (`is_at_hand`): it is held until
its load has ended.

An adapter needs a slot and, where memory is bounded, its bytes: as many others are evicted as that takes.
Loading is started through a callable and reported back.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable
from enum import Enum
from typing import NamedTuple, Protocol

from engine.lora.fetching import FetchCounters, HeldArtifacts, OnDisk
from engine.protocol import AdapterRef

NO_SLOT = -1
"""In reports on adapters without a slot: one was rejected, or its artifact was fetched or could not be."""


class SlotState(Enum):
    EMPTY = "empty"
    LOADING = "loading"
    READY = "ready"


class Room(NamedTuple):
    """What an adapter needs of the pool, or what is left of it."""

    slots: int
    num_bytes: int

    def covers(self, need: Room) -> bool:
        return self.slots >= need.slots and self.num_bytes >= need.num_bytes

    def plus(self, other: Room) -> Room:
        return Room(self.slots + other.slots, self.num_bytes + other.num_bytes)

    def minus(self, other: Room) -> Room:
        return Room(self.slots - other.slots, self.num_bytes - other.num_bytes)


NO_ROOM = Room(0, 0)


class AdapterSlot:
    """One place for one adapter in the pool."""

    __slots__ = ("index", "load_began_at", "loaded_at", "num_bytes", "ref", "references", "state")

    def __init__(self, index: int) -> None:
        self.index = index
        self.state = SlotState.EMPTY
        self.ref: AdapterRef | None = None
        self.num_bytes = 0
        """Of the pool's memory; 0 where that is not bounded."""
        self.references = 0
        """Running requests on the adapter. A referenced slot is never evicted."""
        self.load_began_at = self.loaded_at = 0.0
        """Unix seconds: of the last load."""

    @property
    def room(self) -> Room:
        """What evicting its adapter would free."""
        return Room(1, self.num_bytes)


StartLoad = Callable[[int, AdapterRef], None]
"""Begins to fill a slot with an adapter.

May report `loaded` or `failed` before it returns, or at any later time.
"""


class SlotMemory(Protocol):
    """The memory behind the slots."""

    @property
    def capacity(self) -> int | None:
        """Bytes of all adapters together; None: as many as the slots hold."""
        ...

    def size_of(self, ref: AdapterRef) -> int | None:
        """Returns the adapter's bytes; None when they cannot be known, and loading it will fail."""
        ...

    def refuse(self, ref: AdapterRef, reason: str) -> None:
        """Reports later, for `NO_SLOT`, that the adapter cannot be loaded."""
        ...

    def idle(self, slot: int) -> None:
        """Notes that the slot's last reference is gone."""
        ...

    def unload(self, slot: int) -> None:
        """Notes that the slot is empty."""
        ...


class Unbounded:
    """Memory without a bound, which ignores notifications."""

    capacity: int | None = None

    def size_of(self, ref: AdapterRef) -> int | None:
        return 0

    def refuse(self, ref: AdapterRef, reason: str) -> None:
        raise AssertionError("unbounded memory rejects no adapter")

    def idle(self, slot: int) -> None:
        pass

    def unload(self, slot: int) -> None:
        pass


class SlotTable:
    """All slots.

    Invariants: a digest is in at most one slot; only READY slots have references; the slots' bytes are within
    the memory's capacity.
    """

    def __init__(
        self,
        num_slots: int,
        start_load: StartLoad,
        memory: SlotMemory | None = None,
        artifacts: HeldArtifacts | None = None,
    ) -> None:
        """`num_slots` may be 0: then no adapter can ever be served. Raises ValueError when negative."""
        if num_slots < 0:
            raise ValueError(f"num_slots must not be negative, not {num_slots}")
        self.slots = [AdapterSlot(index) for index in range(num_slots)]
        self.num_loads = 0
        self.num_evictions = 0
        self._start_load = start_load
        self._memory: SlotMemory = Unbounded() if memory is None else memory
        self._artifacts: HeldArtifacts = OnDisk() if artifacts is None else artifacts
        self.capacity = self._memory.capacity
        self._num_bytes = 0
        self._by_digest: dict[str, AdapterSlot] = {}
        self._empty = list(reversed(self.slots))
        # READY and unreferenced, the least recently used first.
        self._idle: OrderedDict[int, AdapterSlot] = OrderedDict()
        self._pinned: dict[str, Room] = {}

    def find(self, digest: str) -> AdapterSlot | None:
        """Returns the slot that holds the adapter or is being filled with it."""
        return self._by_digest.get(digest)

    @property
    def free(self) -> Room:
        """What no adapter holds."""
        num_bytes = 0 if self.capacity is None else self.capacity - self._num_bytes
        return Room(len(self._empty), num_bytes)

    def need(self, ref: AdapterRef) -> Room:
        """Returns the room that the adapter takes."""
        size = 0 if self.capacity is None else self._memory.size_of(ref)
        return Room(1, size or 0)

    def is_at_hand(self, ref: AdapterRef) -> bool:
        """Returns whether the adapter's artifact is on disk, and is held. If not, has it fetched, which is
        reported for `NO_SLOT`.
        """
        return self._artifacts.hold(ref.digest)

    def let_go(self, digest: str) -> None:
        """Ends the hold on the artifact of an adapter that is not loading: no request needs it."""
        slot = self._by_digest.get(digest)
        if slot is None or slot.state is not SlotState.LOADING:
            self._artifacts.release(digest)

    @property
    def fetch_counters(self) -> FetchCounters:
        return self._artifacts.counters

    def ensure_loaded(
        self, ref: AdapterRef, kept: Container[str] = (), reserved: Room = NO_ROOM
    ) -> SlotState:
        """Loads the adapter unless it is in a slot, if there is room: free, or held by adapters that can be
        evicted.

        Never evicts a referenced slot, nor one that is pinned or whose digest is in `kept`; leaves as much as
        `reserved` free. Returns the adapter's state: EMPTY when there was no room for it, and then nothing
        was evicted.
        """
        slot = self._by_digest.get(ref.digest)
        if slot is not None:
            return slot.state
        need = self.need(ref).plus(reserved)
        evicted = self._evictable(need.minus(self.free), kept)
        if evicted is None:
            return SlotState.EMPTY
        return self.replace(evicted, ref).state

    def replace(self, evicted: Iterable[AdapterSlot], ref: AdapterRef) -> AdapterSlot:
        """Evicts idle (READY, unreferenced) slots, and loads an adapter that has room then."""
        assert ref.digest not in self._by_digest
        for slot in evicted:
            self._evict(slot)
        need = self.need(ref)
        assert self.free.covers(need), f"{need} is not within {self.free}"
        slot = self._empty.pop()
        slot.ref = ref
        slot.state = SlotState.LOADING
        slot.num_bytes = need.num_bytes
        self._num_bytes += need.num_bytes
        self._by_digest[ref.digest] = slot
        self.num_loads += 1
        slot.load_began_at = time.time()
        self._start_load(slot.index, ref)
        return slot

    def acquire(self, ref: AdapterRef) -> int:
        """Holds the adapter, which must be READY, for one running request. Returns the slot's index."""
        slot = self._by_digest[ref.digest]
        assert slot.state is SlotState.READY, f"slot {slot.index} is {slot.state.value}, not ready"
        if not slot.references:
            del self._idle[slot.index]
        slot.references += 1
        return slot.index

    def release(self, index: int) -> AdapterSlot:
        """Undoes one `acquire`. Returns the slot, which is idle if that was the last reference."""
        slot = self.slots[index]
        assert slot.references > 0, f"slot {index} released more often than acquired"
        slot.references -= 1
        if not slot.references:
            self._idle[index] = slot
            self._memory.idle(index)
        return slot

    def loaded(self, index: int, digest: str) -> AdapterSlot:
        """Records that a load has succeeded."""
        slot = self._settle(index, digest)
        self._artifacts.release(digest)
        slot.state = SlotState.READY
        slot.loaded_at = time.time()
        self._idle[index] = slot
        return slot

    def failed(self, index: int, digest: str) -> AdapterSlot:
        """Records that a load has failed: the slot is empty again. The next `ensure_loaded` tries again."""
        slot = self._settle(index, digest)
        self._artifacts.release(digest, is_suspect=True)
        self._vacate(slot)
        return slot

    # Pins ------------------------------------------------------------------------------------------------

    def pin(self, ref: AdapterRef) -> bool:
        """Keeps the adapter, once it is in a slot, until unpinned. Returns False when too much is pinned
        already.

        At most half of the slots and half of the bytes can be pinned, so that other adapters take turns in
        the rest.
        """
        if ref.digest in self._pinned:
            return True
        need = self.need(ref)
        total = self._pinned_room().plus(need)
        if 2 * total.slots > len(self.slots):
            return False
        if self.capacity is not None and 2 * total.num_bytes > self.capacity:
            return False
        self._pinned[ref.digest] = need
        return True

    def unpin(self, digest: str) -> None:
        """Allows the adapter to be evicted again, if it was pinned."""
        self._pinned.pop(digest, None)

    def is_pinned(self, digest: str) -> bool:
        return digest in self._pinned

    def rejection_reason(self, ref: AdapterRef) -> str | None:
        """Returns why there can never be room for the adapter; None when there can."""
        if self.capacity is None:
            return None
        size = self.need(ref).num_bytes
        if size > self.capacity:
            return f"it takes {size} bytes, and there are {self.capacity} for all adapters"
        left = self.capacity - self._pinned_room(ref.digest).num_bytes
        if size > left:
            return f"it takes {size} bytes, and there are {left} besides pinned adapters"
        return None

    def refuse(self, ref: AdapterRef, reason: str) -> None:
        """Reports that the adapter cannot be loaded."""
        self._memory.refuse(ref, reason)

    # Inspection ------------------------------------------------------------------------------------------

    @property
    def num_ready(self) -> int:
        return sum(1 for slot in self.slots if slot.state is SlotState.READY)

    @property
    def num_loading(self) -> int:
        return sum(1 for slot in self.slots if slot.state is SlotState.LOADING)

    def check_integrity(self) -> None:
        """Asserts the invariants. Linear in the number of slots."""
        empty = {slot.index for slot in self._empty}
        for slot in self.slots:
            ref = slot.ref
            assert (ref is None) == (slot.state is SlotState.EMPTY) == (slot.index in empty)
            assert ref is None or self._by_digest[ref.digest] is slot
            assert slot.references >= 0
            assert not slot.references or slot.state is SlotState.READY
            assert (slot.index in self._idle) == (slot.state is SlotState.READY and not slot.references)
            assert slot.num_bytes >= 0
            assert ref is not None or not slot.num_bytes
        assert len(self._by_digest) + len(empty) == len(self.slots)
        assert len(self._empty) == len(empty)
        assert self._num_bytes == sum(slot.num_bytes for slot in self.slots)
        assert self.capacity is None or self._num_bytes <= self.capacity

    # ------------------------------------------------------------------------------------------------------

    def _evictable(self, missing: Room, kept: Container[str]) -> list[AdapterSlot] | None:
        """Returns evictable slots that free what is missing, the longest idle first; None when all do not."""
        found: list[AdapterSlot] = []
        if NO_ROOM.covers(missing):
            return found
        room = NO_ROOM
        for slot in self._idle.values():
            assert slot.ref is not None
            digest = slot.ref.digest
            if digest not in kept and digest not in self._pinned:
                found.append(slot)
                room = room.plus(slot.room)
                if room.covers(missing):
                    return fewest_covering(found, missing)
        return None

    def _evict(self, slot: AdapterSlot) -> None:
        assert slot.state is SlotState.READY
        assert not slot.references, f"slot {slot.index} is in use"
        del self._idle[slot.index]
        self.num_evictions += 1
        self._vacate(slot)

    def _vacate(self, slot: AdapterSlot) -> None:
        assert slot.ref is not None
        del self._by_digest[slot.ref.digest]
        self._num_bytes -= slot.num_bytes
        slot.state = SlotState.EMPTY
        slot.ref = None
        slot.num_bytes = 0
        self._empty.append(slot)
        self._memory.unload(slot.index)

    def _pinned_room(self, besides: str = "") -> Room:
        rooms = [room for digest, room in self._pinned.items() if digest != besides]
        return Room(len(rooms), sum(room.num_bytes for room in rooms))

    def _settle(self, index: int, digest: str) -> AdapterSlot:
        slot = self.slots[index]
        assert slot.state is SlotState.LOADING, f"slot {index} is {slot.state.value}, not loading"
        assert slot.ref is not None
        assert slot.ref.digest == digest, f"slot {index} was loading another adapter"
        return slot


def fewest_covering(slots: Iterable[AdapterSlot], missing: Room) -> list[AdapterSlot]:
    """Returns the slots needed to free what is missing; later ones are dropped from the list first."""
    kept = list(slots)
    room = NO_ROOM
    for slot in kept:
        room = room.plus(slot.room)
    for slot in reversed(kept.copy()):
        rest = room.minus(slot.room)
        if rest.covers(missing):
            kept.remove(slot)
            room = rest
    return kept
