"""Tracks which draft adapter guesses for which requests, and keeps those in use in their slots.

A draft adapter is in a slot like any other: loaded when requests could use it, idle and evictable when none
does. It never takes a slot that an adapter in demand has, and leaves its own where one is waiting: guesses
save time, and a request without its adapter does not run at all.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from engine.lora.draft_adapters import DraftAdapter, DraftAdapterChoice
from engine.lora.slot_allocator import SlotAllocator
from engine.lora.slots import SlotState
from engine.protocol import AdapterRef
from engine.request import Request

IDLE_SECONDS = 1.0
"""A draft adapter that guessed nothing for so long may be evicted."""
PAUSE_SECONDS = 10.0
"""Between two loads of one, where its slot was needed, or a load failed."""
MAX_PAUSED = 4096
"""Draft adapters whose last load is remembered."""


class _Held:
    """A draft adapter whose slot is held."""

    __slots__ = ("slot", "used_at")

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.used_at = 0.0


class DraftAdapters:
    """The draft adapters of one scheduler."""

    def __init__(self, allocator: SlotAllocator, clock: Callable[[], float]) -> None:
        """`clock` returns monotonic seconds."""
        self.choice = DraftAdapterChoice()
        """Set before the first request, where there are draft adapters."""
        self._allocator = allocator
        self._clock = clock
        self._held: dict[str, _Held] = {}
        self._load_after: OrderedDict[str, float] = OrderedDict()
        """By digest: when it may be loaded again."""

    def ready(self, request: Request) -> DraftAdapter | None:
        """Returns the draft adapter that can guess for a request now. Where it is in no slot, begins to load
        it, if no adapter in demand loses its slot by that.
        """
        if not request.may_guess:
            return None
        adapter = self.choice.find(None if request.adapter is None else request.adapter.digest)
        return adapter if adapter is not None and self._is_ready(adapter.ref) else None

    def use(self, adapter: DraftAdapter) -> int:
        """Holds a draft adapter, which is ready, for the step being planned. Returns its slot."""
        held = self._held.get(adapter.ref.digest)
        if held is None:
            held = self._held[adapter.ref.digest] = _Held(self._allocator.acquire(adapter.ref))
        held.used_at = self._clock()
        return held.slot

    def let_go(self) -> None:
        """Lets go of the slots that other adapters wait for, or that were not used lately. Called when no
        step in flight reads them.
        """
        if not self._held:
            return
        now, is_short = self._clock(), self._is_short
        for digest, held in list(self._held.items()):
            is_wanted = is_short or self._allocator.is_closed(held.slot)
            if is_wanted:
                self._pause(digest)
            if is_wanted or now - held.used_at > IDLE_SECONDS:
                del self._held[digest]
                self._allocator.release(held.slot)

    def failed(self, digest: str) -> None:
        """Notes that an adapter could not be loaded."""
        if digest in self._load_after:
            self._pause(digest)

    @property
    def held(self) -> Sequence[int]:
        """The slots that are held, each by one reference."""
        return [held.slot for held in self._held.values()]

    @property
    def _is_short(self) -> bool:
        return any(True for _ in self._allocator.missing)

    def _is_ready(self, ref: AdapterRef) -> bool:
        """Returns whether the adapter is in a slot, and no other one waits for any. If it is in none, loads
        it.
        """
        if self._is_short:
            return False
        slot = self._allocator.slots.find(ref.digest)
        if slot is not None:
            return slot.state is SlotState.READY and not self._allocator.is_closed(slot.index)
        if self._clock() >= self._load_after.get(ref.digest, 0.0):
            self._pause(ref.digest)
            self._allocator.prefetch(ref)
        return False

    def _pause(self, digest: str) -> None:
        self._load_after[digest] = self._clock() + PAUSE_SECONDS
        self._load_after.move_to_end(digest)
        if len(self._load_after) > MAX_PAUSED:
            self._load_after.popitem(last=False)
