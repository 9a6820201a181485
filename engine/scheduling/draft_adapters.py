"""Tracks which draft adapter guesses for which requests, and keeps those in use in their slots.

A draft adapter is in a slot like any other: loaded when requests could use it, idle and evictable when none
does. It never takes a slot that an adapter in demand has, and leaves its own where one is waiting: guesses
save time, and a request without its adapter does not run at all.
"""

from __future__ import annotations

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


class _Use:
    """A draft adapter that is wanted."""

    __slots__ = ("load_after", "slot", "used_at")

    def __init__(self) -> None:
        self.slot: int | None = None
        """Its slot, while that is held."""
        self.used_at = 0.0
        self.load_after = 0.0


class DraftAdapters:
    """The draft adapters of one scheduler."""

    def __init__(self, allocator: SlotAllocator, clock: Callable[[], float]) -> None:
        """`clock` returns monotonic seconds."""
        self.choice = DraftAdapterChoice()
        """Set before the first request, where there are draft adapters."""
        self._allocator = allocator
        self._clock = clock
        self._uses: dict[str, _Use] = {}

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
        use = self._uses[adapter.ref.digest]
        use.used_at = self._clock()
        if use.slot is None:
            use.slot = self._allocator.acquire(adapter.ref)
        return use.slot

    def let_go(self) -> None:
        """Lets go of the slots that other adapters wait for, or that were not used lately. Called when no
        step in flight reads them.
        """
        if not self._uses:
            return
        now, is_short = self._clock(), self._is_short
        for use in self._uses.values():
            if use.slot is None:
                continue
            is_wanted = is_short or self._allocator.is_closed(use.slot)
            if is_wanted or now - use.used_at > IDLE_SECONDS:
                slot, use.slot = use.slot, None
                use.load_after = now + PAUSE_SECONDS if is_wanted else use.load_after
                self._allocator.release(slot)

    def failed(self, digest: str) -> None:
        """Notes that an adapter could not be loaded."""
        if digest in self._uses:
            self._uses[digest].load_after = self._clock() + PAUSE_SECONDS

    @property
    def held(self) -> Sequence[int]:
        """The slots that are held, each by one reference."""
        return [use.slot for use in self._uses.values() if use.slot is not None]

    @property
    def _is_short(self) -> bool:
        return any(True for _ in self._allocator.missing)

    def _is_ready(self, ref: AdapterRef) -> bool:
        """Returns whether the adapter is in a slot that no other one waits for. If it is in none, loads
        it.
        """
        use = self._uses.get(ref.digest)
        if use is None:
            use = self._uses[ref.digest] = _Use()
        slot = self._allocator.slots.find(ref.digest)
        if slot is not None:
            return slot.state is SlotState.READY and not self._allocator.is_closed(slot.index)
        now = self._clock()
        if now >= use.load_after and not self._is_short:
            use.load_after = now + PAUSE_SECONDS
            self._allocator.prefetch(ref)
        return False
