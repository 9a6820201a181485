"""Decides which adapters get slots, and which are evicted, when more are in demand than fit.

While there is room, an adapter is loaded as soon as a request needs it, and idle slots without waiting
requests are evicted, the least recently used first. When there is not, adapters take turns:

* an adapter that has waited longer than `patience_s` has a claim, the longest waiting first;
* a claim closes as many slots as give the adapter room, among those that have been ready for at least
  `patience_s` or that no request needs: no request on their adapters is admitted any more, so that they drain
  as their running requests end. When all have drained, they are evicted for the claimant;
* what a claim needs besides its closed slots is reserved for it: smaller adapters that arrive later cannot
  take the bytes that a larger one is collecting. While too few slots can be closed, no adapter behind it
  has a claim.

So an adapter waits for at most the patience, the running requests of the slots it takes and a load, times its
place in the line over the number of adapters that fit. Pinned adapters take no turns: they stay. One that can
never fit is rejected at once. One whose artifact is not on this host is fetched first; it keeps its place in
the line, and claims nothing meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from engine.lora.slots import NO_ROOM, NO_SLOT, AdapterSlot, Room, SlotState, SlotTable, fewest_covering
from engine.protocol import AdapterRef


@dataclass(slots=True)
class _Claim:
    """An adapter's claim on room that other adapters hold."""

    ref: AdapterRef
    need: Room
    closed: set[int] = field(default_factory=set)
    """Indices of the slots that drain for it."""


class SlotAllocator:
    """Tracks which adapters waiting requests need, and gives them slots in turns."""

    def __init__(self, slots: SlotTable, clock: Callable[[], float], patience_s: float) -> None:
        self.slots = slots
        self._clock = clock
        self._patience_s = patience_s
        # Waiting requests by digest; an adapter with any is not evicted, except for a claim.
        self._waiting: dict[str, int] = {}
        # Adapters with waiting requests and without a slot, and since when: the longest waiting first.
        self._missing: dict[str, tuple[AdapterRef, float]] = {}
        # By digest, the longest waiting first; only the last may lack closed slots.
        self._claims: dict[str, _Claim] = {}
        # By index of the closed slot: the digest that will take its room.
        self._closed: dict[int, str] = {}
        self._ready_since: dict[int, float] = {}
        # Loaded since the last turns: their requests could not be admitted yet.
        self._unoffered: set[int] = set()
        # There is no room for this many bytes until a slot is released, loaded or emptied, or an adapter is
        # no longer in demand.
        self._exhausted: int | None = None
        # Adapters whose rejection has not been reported yet.
        self._refused: set[str] = set()
        # Adapters that were prefetched, and how, while their artifacts are being fetched.
        self._to_prefetch: dict[str, tuple[AdapterRef, bool | None]] = {}

    def add_demand(self, ref: AdapterRef) -> None:
        """Notes that a request waits for the adapter. Starts loading at once if there is room."""
        digest = ref.digest
        self._waiting[digest] = self._waiting.get(digest, 0) + 1
        if not self._ensure_slot(ref) and digest not in self._missing:
            self._missing[digest] = (ref, self._clock())

    def remove_demand(self, ref: AdapterRef) -> None:
        """Notes that a request no longer waits for the adapter: it was admitted, or ended."""
        digest = ref.digest
        self._waiting[digest] -= 1
        if not self._waiting[digest]:
            del self._waiting[digest]
            self._exhausted = None
            self._end_wait(digest)
            self.slots.let_go(digest)

    def prefetch(self, ref: AdapterRef, pinned: bool | None = None) -> None:
        """Loads the adapter if no adapter in demand loses its slot by that.

        `pinned`: True keeps it from now on, within the bounds of `SlotTable.pin`; False ends that; None
        changes nothing. An adapter that is not pinned may be evicted unused.
        """
        digest = ref.digest
        if pinned is False:
            self.slots.unpin(digest)
            self._exhausted = None
        if self.slots.find(digest) is None and not self.slots.is_at_hand(ref):
            _, before = self._to_prefetch.get(digest, (ref, None))
            self._to_prefetch[digest] = (ref, before if pinned is None else pinned)
            return
        if pinned:
            self._pin(ref)
        if not self._ensure_slot(ref) and digest not in self._waiting:
            self.slots.let_go(digest)

    def fetched(self, digest: str) -> None:
        """Records that an adapter's artifact is on this host: what waited for that goes on."""
        if digest in self._to_prefetch:
            self.prefetch(*self._to_prefetch.pop(digest))
        elif digest in self._missing:
            self._ensure_slot(self._missing[digest][0])
        else:
            self.slots.let_go(digest)

    def admits(self, ref: AdapterRef) -> bool:
        """Returns whether a waiting request on the adapter may run now.

        If the adapter has no slot, tries to load it.
        """
        slot = self.slots.find(ref.digest)
        if slot is None:
            if not self._ensure_slot(ref):
                return False
            slot = self.slots.find(ref.digest)
        return slot is not None and slot.state is SlotState.READY and slot.index not in self._closed

    def acquire(self, ref: AdapterRef) -> int:
        """Holds an adapter, for which `admits` is true, for one running request. Returns its slot."""
        return self.slots.acquire(ref)

    def release(self, index: int) -> None:
        """Releases a running request's slot. The last release of a claim's slots hands them over."""
        slot = self.slots.release(index)
        self._exhausted = None
        if not slot.references and index in self._closed:
            self._hand_over(self._claims[self._closed[index]])

    def loaded(self, index: int, digest: str) -> None:
        self._ready_since[index] = self._clock()
        self._unoffered.add(index)
        self._exhausted = None
        self.slots.loaded(index, digest)

    def failed(self, index: int, digest: str) -> None:
        """Records that a load or a fetch failed. The caller rejects the requests that wait for the
        adapter.
        """
        if index == NO_SLOT:
            self._refused.discard(digest)
            self._to_prefetch.pop(digest, None)
            return
        self.slots.failed(index, digest)
        self._exhausted = None

    @property
    def missing(self) -> Iterable[str]:
        """The digests that requests wait for and that have no slot, the longest waiting first."""
        return self._missing

    def num_waiting(self, digest: str) -> int:
        """Returns how many requests wait for the adapter."""
        return self._waiting.get(digest, 0)

    def is_closed(self, index: int) -> bool:
        """Returns whether the slot is claimed: no request on its adapter is admitted any more."""
        return index in self._closed

    def take_turns(self) -> None:
        """Lets adapters that have waited too long claim room. Call once before admitting."""
        if self._missing:
            self._claim_room(self._clock())
        self._unoffered.clear()

    def _claim_room(self, now: float) -> None:
        overdue = []
        for ref, since in self._missing.values():
            if now - since < self._patience_s:
                break
            overdue.append(ref)
        for ref in overdue:
            if self._ensure_slot(ref) or ref.digest in self._refused or not self.slots.is_at_hand(ref):
                continue
            claim = self._claims.setdefault(ref.digest, _Claim(ref, self.slots.need(ref)))
            if not self._close_slots(claim, now):
                return

    def check_integrity(self) -> None:
        self.slots.check_integrity()
        assert all(count > 0 for count in self._waiting.values())
        assert self._missing.keys() <= self._waiting.keys(), "an adapter without waiting requests is missing"
        assert all(self.slots.find(digest) is None for digest in self._missing), (
            "a resident adapter is missing"
        )
        assert self._claims.keys() <= self._missing.keys(), "a claim of an adapter that is not missing"
        closed = {index: digest for digest, claim in self._claims.items() for index in claim.closed}
        assert closed == self._closed
        assert len(closed) == sum(len(claim.closed) for claim in self._claims.values()), (
            "a slot is claimed twice"
        )
        for index in closed:
            slot = self.slots.slots[index]
            assert slot.ref is not None
            assert slot.state is SlotState.READY
            assert not self.slots.is_pinned(slot.ref.digest)
        complete = [NO_ROOM.covers(self._shortfall(claim)) for claim in self._claims.values()]
        assert all(complete[:-1]), "a claim behind one that lacks slots"
        sinces = [since for _, since in self._missing.values()]
        assert sinces == sorted(sinces), "the line is out of order"

    def __contains__(self, digest: object) -> bool:
        """Returns whether the adapter must keep its slot: in demand, or closed for a claim."""
        if digest in self._waiting:
            return True
        assert isinstance(digest, str)
        slot = self.slots.find(digest)
        return slot is not None and slot.index in self._closed

    # ------------------------------------------------------------------------------------------------------

    def _ensure_slot(self, ref: AdapterRef) -> bool:
        """Returns whether the adapter has a slot, or could be given one that no adapter in demand loses."""
        digest = ref.digest
        if self.slots.find(digest) is None:
            if not self.slots.is_at_hand(ref):
                return False
            reason = self.slots.rejection_reason(ref)
            if reason is not None:
                self._refuse(ref, reason)
                return False
            num_bytes = self.slots.need(ref).num_bytes
            if self._exhausted is not None and num_bytes >= self._exhausted:
                return False
            if self.slots.ensure_loaded(ref, self, self._reserved_before(digest)) is SlotState.EMPTY:
                self._exhausted = num_bytes
                return False
        self._end_wait(digest)
        return True

    def _refuse(self, ref: AdapterRef, reason: str) -> None:
        """Rejects an adapter, once: the requests that wait for it are rejected when the report arrives."""
        self._end_claim(ref.digest)
        if ref.digest not in self._refused:
            self._refused.add(ref.digest)
            self.slots.refuse(ref, reason)

    def _reserved_before(self, digest: str) -> Room:
        """Returns what earlier claims need besides their closed slots."""
        total = NO_ROOM
        for claimant, claim in self._claims.items():
            if claimant == digest:
                break
            rest = claim.need.minus(self._closed_room(claim))
            total = total.plus(Room(max(0, rest.slots), max(0, rest.num_bytes)))
        return total

    def _closed_room(self, claim: _Claim) -> Room:
        room = NO_ROOM
        for index in claim.closed:
            room = room.plus(self.slots.slots[index].room)
        return room

    def _shortfall(self, claim: _Claim) -> Room:
        """Returns what the claimant would lack if its closed slots had drained; not above zero if nothing."""
        free = self.slots.free.minus(self._reserved_before(claim.ref.digest))
        return claim.need.minus(free).minus(self._closed_room(claim))

    def _close_slots(self, claim: _Claim, now: float) -> bool:
        """Closes slots until the claimant will have room, and hands them over if they have drained already.

        Returns False when too few can be closed yet.
        """
        shortfall = self._shortfall(claim)
        if not NO_ROOM.covers(shortfall):
            chosen, room = [], NO_ROOM
            for slot in self._closable_slots(now):
                chosen.append(slot)
                room = room.plus(slot.room)
                if room.covers(shortfall):
                    chosen = fewest_covering(chosen, shortfall)
                    break
            for slot in chosen:
                claim.closed.add(slot.index)
                self._closed[slot.index] = claim.ref.digest
            if not room.covers(shortfall):
                return False
        self._hand_over(claim)
        return True

    def _closable_slots(self, now: float) -> list[AdapterSlot]:
        """Returns the slots that can be closed, the best first.

        Those whose adapter no request needs, or that had their turn. Fewest requests to wait for first, then
        the longest ready.
        """
        candidates = []
        for slot in self.slots.slots:
            if slot.state is not SlotState.READY or slot.index in self._closed:
                continue
            assert slot.ref is not None
            digest, since = slot.ref.digest, self._ready_since[slot.index]
            in_demand = digest in self._waiting or slot.references > 0
            # With a patience shorter than a step, slots would change hands without admitting any request.
            if slot.index in self._unoffered and digest in self._waiting and not slot.references:
                continue
            if not self.slots.is_pinned(digest) and (not in_demand or now - since >= self._patience_s):
                candidates.append((slot.references, in_demand, since, slot.index, slot))
        return [candidate[-1] for candidate in sorted(candidates)]

    def _hand_over(self, claim: _Claim) -> None:
        """Evicts what the claimant needs of its closed slots and loads it, if they have all drained."""
        closed = [self.slots.slots[index] for index in sorted(claim.closed)]
        if any(slot.references for slot in closed) or not NO_ROOM.covers(self._shortfall(claim)):
            return
        digest = claim.ref.digest
        free = self.slots.free.minus(self._reserved_before(digest))
        evicted = fewest_covering(closed, claim.need.minus(free))
        refs = [slot.ref for slot in evicted if slot.ref is not None]
        self._end_wait(digest)
        self.slots.replace(evicted, claim.ref)
        now = self._clock()
        for ref in refs:
            if ref.digest in self._waiting:
                self._missing[ref.digest] = (ref, now)

    def _pin(self, ref: AdapterRef) -> None:
        slot = self.slots.find(ref.digest)
        if self.slots.pin(ref) and slot is not None and slot.index in self._closed:
            # The claimant, and those behind it, claim again at the next turn.
            claimants = list(self._claims)
            for digest in claimants[claimants.index(self._closed[slot.index]) :]:
                self._end_claim(digest)

    def _end_wait(self, digest: str) -> None:
        """Ends the adapter's wait and its claim: it has a slot, or no request needs it."""
        self._missing.pop(digest, None)
        self._end_claim(digest)

    def _end_claim(self, digest: str) -> None:
        claim = self._claims.pop(digest, None)
        if claim is not None:
            self._exhausted = None  # its reserved room is free again
            for index in claim.closed:
                del self._closed[index]
