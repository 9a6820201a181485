"""Adapters of sizes, and the memory behind slots that holds so many bytes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.lora.slots import NO_SLOT, AdapterSlot, SlotTable
from engine.protocol import AdapterRef
from tests.engine.plain.harness import Engine, adapter


class Bounded:
    """So many bytes, for a whole engine whose loads succeed."""

    def __init__(self, capacity: int, sizes: dict[str, int]) -> None:
        """`sizes` by digest."""
        self.capacity: int | None = capacity
        self.sizes = sizes
        self.refuse: Callable[[AdapterRef, str], None] = lambda ref, reason: None

    def size_of(self, ref: AdapterRef) -> int | None:
        return self.sizes[ref.digest]

    def idle(self, slot: int) -> None:
        pass

    def unload(self, slot: int) -> None:
        pass


def bounded_engine(capacity: int, sizes: dict[str, int], **settings: Any) -> Engine:
    memory = Bounded(capacity, sizes)
    engine = Engine(memory=memory, **settings)
    memory.refuse = lambda ref, reason: engine.core.adapter_loaded(NO_SLOT, ref.digest, reason)
    return engine


class Memory:
    """A loader that has been told, and waits; what it does not know the size of fails to load."""

    def __init__(self, num_slots: int, capacity: int | None, sizes: dict[str, int]) -> None:
        self.capacity = capacity
        self.sizes = {adapter(name).digest: size for name, size in sizes.items()}
        self.started: list[tuple[int, AdapterRef]] = []
        self.refused: list[tuple[AdapterRef, str]] = []
        self.heard: list[tuple[str, int]] = []
        self.table = SlotTable(num_slots, self.start_load, self)

    def start_load(self, slot: int, ref: AdapterRef) -> None:
        assert not self.table.slots[slot].references, "a slot in use was reloaded"
        self.started.append((slot, ref))

    def size_of(self, ref: AdapterRef) -> int | None:
        return self.sizes.get(ref.digest)

    def refuse(self, ref: AdapterRef, reason: str) -> None:
        self.refused.append((ref, reason))

    def idle(self, slot: int) -> None:
        self.heard.append(("idle", slot))

    def unload(self, slot: int) -> None:
        self.heard.append(("unload", slot))

    def reports(self) -> list[tuple[int, AdapterRef, str | None]]:
        """(slot, adapter, what went wrong) of everything told since last asked."""
        reports: list[tuple[int, AdapterRef, str | None]] = [
            (NO_SLOT, ref, reason) for ref, reason in self.refused
        ]
        for slot, ref in self.started:
            reports.append((slot, ref, None if ref.digest in self.sizes else "missing"))
        self.started, self.refused = [], []
        return reports

    def resident(self) -> set[str]:
        """Names of one letter, of all that are in a slot."""
        names = {adapter(name).digest: name for name in "abcdefghijklmnop"}
        return {names[slot.ref.digest] for slot in self.table.slots if slot.ref is not None}

    def slot(self, ref: AdapterRef) -> AdapterSlot:
        found = self.table.find(ref.digest)
        assert found is not None
        return found
