"""Which adapter is in which slot of the adapter pool, and which slots may be given to another.

Owns the slots' states, their references and the order of eviction. A slot's whole life:

    EMPTY --want--> LOADING --loaded--> READY --want of another, while unreferenced--> LOADING
                       \\--failed--> EMPTY

Refuses to know requests, tensors and files: loading is started through a callable and reported back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container
from enum import Enum

from engine.protocol import AdapterRef


class SlotState(Enum):
    EMPTY = "empty"
    LOADING = "loading"
    READY = "ready"


class AdapterSlot:
    """One place for one adapter in the pool."""

    __slots__ = ("index", "ref", "references", "state")

    def __init__(self, index: int) -> None:
        self.index = index
        self.state = SlotState.EMPTY
        self.ref: AdapterRef | None = None
        self.references = 0
        """Running requests on the adapter. A referenced slot is never evicted."""


StartLoad = Callable[[int, AdapterRef], None]
"""Begin to fill a slot with an adapter.

May report `loaded` or `failed` before it returns, or any time later.
"""


class SlotTable:
    """All slots. Invariants: a digest is in at most one slot; references only on READY slots."""

    def __init__(self, num_slots: int, start_load: StartLoad) -> None:
        """`num_slots` may be 0: then no adapter can ever be served. Raises ValueError when negative."""
        if num_slots < 0:
            raise ValueError(f"num_slots must not be negative, not {num_slots}")
        self.slots = [AdapterSlot(index) for index in range(num_slots)]
        self.num_loads = 0
        self.num_evictions = 0
        self._start_load = start_load
        self._by_digest: dict[str, AdapterSlot] = {}
        self._empty = list(reversed(self.slots))
        # READY and unreferenced, the least recently used first.
        self._idle: OrderedDict[int, AdapterSlot] = OrderedDict()

    def find(self, digest: str) -> AdapterSlot | None:
        """The slot that holds the adapter, or is being filled with it."""
        return self._by_digest.get(digest)

    def want(self, ref: AdapterRef, spare: Container[str] = ()) -> SlotState:
        """See to it that the adapter is in a slot, if there is one to give: empty, or evictable.

        Never evicts a referenced slot, nor one whose digest is in `spare`. Returns the state the adapter is
        in now: EMPTY when no slot could be given to it.
        """
        slot = self._by_digest.get(ref.digest)
        if slot is None:
            slot = self._vacant(spare)
            if slot is None:
                return SlotState.EMPTY
            self._load(slot, ref)
        return slot.state

    def replace(self, slot: AdapterSlot, ref: AdapterRef) -> None:
        """Give an idle (READY, unreferenced) slot to an adapter that has none."""
        assert ref.digest not in self._by_digest
        self._evict(slot)
        self._load(slot, ref)

    def acquire(self, ref: AdapterRef) -> int:
        """Pin the adapter, which must be READY, for one running request. Returns the slot's index."""
        slot = self._by_digest[ref.digest]
        assert slot.state is SlotState.READY, f"slot {slot.index} is {slot.state.value}, not ready"
        if not slot.references:
            del self._idle[slot.index]
        slot.references += 1
        return slot.index

    def release(self, index: int) -> AdapterSlot:
        """Undo one `acquire`. Returns the slot: idle now, if that was the last reference."""
        slot = self.slots[index]
        assert slot.references > 0, f"slot {index} released more often than acquired"
        slot.references -= 1
        if not slot.references:
            self._idle[index] = slot
        return slot

    def loaded(self, index: int, digest: str) -> AdapterSlot:
        """A load has succeeded."""
        slot = self._settle(index, digest)
        slot.state = SlotState.READY
        self._idle[index] = slot
        return slot

    def failed(self, index: int, digest: str) -> AdapterSlot:
        """A load has failed: the slot is empty again. The next `want` tries anew."""
        slot = self._settle(index, digest)
        del self._by_digest[digest]
        slot.state = SlotState.EMPTY
        slot.ref = None
        self._empty.append(slot)
        return slot

    @property
    def num_ready(self) -> int:
        return sum(1 for slot in self.slots if slot.state is SlotState.READY)

    @property
    def num_loading(self) -> int:
        return sum(1 for slot in self.slots if slot.state is SlotState.LOADING)

    def check_integrity(self) -> None:
        """Assert the invariants. Linear in the number of slots."""
        empty = {slot.index for slot in self._empty}
        for slot in self.slots:
            ref = slot.ref
            assert (ref is None) == (slot.state is SlotState.EMPTY) == (slot.index in empty)
            assert ref is None or self._by_digest[ref.digest] is slot
            assert slot.references >= 0
            assert not slot.references or slot.state is SlotState.READY
            assert (slot.index in self._idle) == (slot.state is SlotState.READY and not slot.references)
        assert len(self._by_digest) + len(empty) == len(self.slots)
        assert len(self._empty) == len(empty)

    def _vacant(self, spare: Container[str]) -> AdapterSlot | None:
        if self._empty:
            return self._empty.pop()
        for slot in self._idle.values():
            assert slot.ref is not None
            if slot.ref.digest not in spare:
                self._evict(slot)
                return slot
        return None

    def _evict(self, slot: AdapterSlot) -> None:
        assert slot.ref is not None
        del self._idle[slot.index]
        del self._by_digest[slot.ref.digest]
        self.num_evictions += 1

    def _load(self, slot: AdapterSlot, ref: AdapterRef) -> None:
        slot.ref = ref
        slot.state = SlotState.LOADING
        self._by_digest[ref.digest] = slot
        self.num_loads += 1
        self._start_load(slot.index, ref)

    def _settle(self, index: int, digest: str) -> AdapterSlot:
        slot = self.slots[index]
        assert slot.state is SlotState.LOADING, f"slot {index} is {slot.state.value}, not loading"
        assert slot.ref is not None
        assert slot.ref.digest == digest, f"slot {index} was loading another adapter"
        return slot
