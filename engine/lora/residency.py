"""Which adapters should have slots: more may be in demand than there are slots, and none may starve.

Owns the demand of waiting requests for adapters, and the turns adapters take. While slots are enough, an
adapter gets one as soon as it is asked for, and idle slots nobody waits for are evicted, the least recently
used first. When they are not, slots change hands by turns:

* an adapter that has waited longer than `patience_s` has a claim, the longest waiting first;
* a claim closes a slot that has had at least `patience_s` to itself: no request on its adapter is admitted
  any more, so that it drains as its running requests end, and then goes to the claimant.

So an adapter waits for at most patience, the running requests of one slot and a load, times its place in
the line over the number of slots. Refuses to know requests: it is told of adapters only.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.lora.slots import AdapterSlot, SlotState, SlotTable
from engine.protocol import AdapterRef


class Residency:
    def __init__(self, slots: SlotTable, clock: Callable[[], float], patience_s: float) -> None:
        self.slots = slots
        self._clock = clock
        self._patience_s = patience_s
        # Waiting requests by digest; whoever has some is not evicted, except for a claim.
        self._waiting: dict[str, int] = {}
        # Adapters with waiting requests and without a slot, with the time since when: the longest waiting
        # first.
        self._missing: dict[str, tuple[AdapterRef, float]] = {}
        # By index of the closed slot: the digest that will have it.
        self._claims: dict[int, str] = {}
        self._ready_since: dict[int, float] = {}
        # No slot is to be had, until one is released, loaded or emptied, or an adapter is in demand no more.
        self._exhausted = False

    def expect(self, ref: AdapterRef) -> None:
        """A request on the adapter waits. Loading starts at once if there is a slot for it."""
        digest = ref.digest
        self._waiting[digest] = self._waiting.get(digest, 0) + 1
        if not self._obtain(ref) and digest not in self._missing:
            self._missing[digest] = (ref, self._clock())

    def dismiss(self, ref: AdapterRef) -> None:
        """A request on the adapter waits no more: admitted, or gone."""
        digest = ref.digest
        self._waiting[digest] -= 1
        if not self._waiting[digest]:
            del self._waiting[digest]
            self._exhausted = False
            self._found(digest)

    def prefetch(self, ref: AdapterRef) -> None:
        """Load the adapter if that costs no adapter in demand its slot. It may be evicted again unused."""
        self._obtain(ref)

    def admits(self, ref: AdapterRef) -> bool:
        """True when a waiting request on the adapter may run now.

        Otherwise asks for a slot, if it has none.
        """
        slot = self.slots.find(ref.digest)
        if slot is None:
            if not self._obtain(ref):
                return False
            slot = self.slots.find(ref.digest)
        return slot is not None and slot.state is SlotState.READY and slot.index not in self._claims

    def acquire(self, ref: AdapterRef) -> int:
        """Pin the adapter, which `admits`, for one running request. Returns its slot."""
        return self.slots.acquire(ref)

    def release(self, index: int) -> None:
        """A running request has ended or was preempted. The last one of a closed slot hands it over."""
        slot = self.slots.release(index)
        self._exhausted = False
        if not slot.references and index in self._claims:
            self._hand_over(slot)

    def loaded(self, index: int, digest: str) -> None:
        self._ready_since[index] = self._clock()
        self._exhausted = False
        self.slots.loaded(index, digest)

    def failed(self, index: int, digest: str) -> None:
        """Whoever waits for the adapter is for the caller to turn away."""
        self.slots.failed(index, digest)
        self._exhausted = False

    def take_turns(self) -> None:
        """Let adapters that have waited too long claim slots. Call once before admitting."""
        if not self._missing:
            return
        now = self._clock()
        claimants = set(self._claims.values())
        overdue = []
        for digest, (ref, since) in self._missing.items():
            if now - since < self._patience_s:
                break
            if digest not in claimants:
                overdue.append(ref)
        for ref in overdue:
            if self._obtain(ref):
                continue
            slot = self._closable(now)
            if slot is None:
                return
            self._claims[slot.index] = ref.digest
            if not slot.references:
                self._hand_over(slot)

    def check_integrity(self) -> None:
        self.slots.check_integrity()
        assert all(count > 0 for count in self._waiting.values())
        assert self._missing.keys() <= self._waiting.keys(), "an adapter nobody waits for is missed"
        assert all(self.slots.find(digest) is None for digest in self._missing), (
            "a resident adapter is missed"
        )
        assert set(self._claims.values()) <= self._missing.keys(), "a claim of an adapter that is not missed"
        assert len(set(self._claims.values())) == len(self._claims), "an adapter claims two slots"
        sinces = [since for _, since in self._missing.values()]
        assert sinces == sorted(sinces), "the line is out of order"

    def _obtain(self, ref: AdapterRef) -> bool:
        """Whether the adapter has a slot, or could be given one that nobody in demand loses."""
        if self.slots.find(ref.digest) is None:
            if self._exhausted:
                return False
            if self.slots.want(ref, spare=self._waiting) is SlotState.EMPTY:
                self._exhausted = True
                return False
        self._found(ref.digest)
        return True

    def _closable(self, now: float) -> AdapterSlot | None:
        """The slot to close.

        Had its turn, fewest requests to wait for, and of those the one longest ready.
        """
        candidates = [
            slot
            for slot in self.slots.slots
            if slot.state is SlotState.READY
            and slot.index not in self._claims
            and now - self._ready_since[slot.index] >= self._patience_s
        ]
        return min(
            candidates, key=lambda slot: (slot.references, self._ready_since[slot.index]), default=None
        )

    def _hand_over(self, slot: AdapterSlot) -> None:
        claimant, _ = self._missing[self._claims.pop(slot.index)]
        evicted = slot.ref
        assert evicted is not None
        del self._missing[claimant.digest]
        self.slots.replace(slot, claimant)
        if evicted.digest in self._waiting:
            self._missing[evicted.digest] = (evicted, self._clock())

    def _found(self, digest: str) -> None:
        """The adapter needs to wait no more.

        It has a slot, or nobody asks for it. Its claim, if any, is void.
        """
        if self._missing.pop(digest, None) is not None:
            self._claims = {index: claimant for index, claimant in self._claims.items() if claimant != digest}
