"""Adapters whose artifacts come from elsewhere: none has a slot, or claims one, before they are here."""

from __future__ import annotations

from engine.lora.fetching import FetchCounters
from engine.lora.slot_allocator import SlotAllocator
from engine.lora.slots import NO_SLOT
from engine.protocol import AdapterRef
from tests.engine.plain.harness import Engine, adapter, submission
from tests.engine.plain.memory import Memory

A, B, C = (adapter(name) for name in "abc")
PATIENCE_S = 5.0


class Artifacts:
    """A fetcher whose fetches end when told."""

    def __init__(self) -> None:
        self.counters = FetchCounters()
        self.asked: list[str] = []
        self.held: set[str] = set()
        self.suspects: list[str] = []

    def hold(self, digest: str) -> bool:
        if digest not in self.held and digest not in self.asked:
            self.asked.append(digest)
        return digest in self.held

    def release(self, digest: str, *, is_suspect: bool = False) -> None:
        self.held.discard(digest)
        if is_suspect:
            self.suspects.append(digest)

    def bring(self, ref: AdapterRef) -> None:
        self.asked.remove(ref.digest)
        self.held.add(ref.digest)


class World:
    def __init__(self, num_slots: int, capacity: int | None = None, **sizes: int) -> None:
        self.now = 0.0
        self.artifacts = Artifacts()
        self.memory = Memory(num_slots, capacity, sizes)
        self.memory.table._artifacts = self.artifacts
        self.slots = self.memory.table
        self.allocator = SlotAllocator(self.slots, lambda: self.now, PATIENCE_S)

    def fetched(self, ref: AdapterRef) -> None:
        self.artifacts.bring(ref)
        self.allocator.fetched(ref.digest)

    @property
    def loads(self) -> list[AdapterRef]:
        return [ref for _, ref in self.memory.started]

    def finish_loads(self) -> None:
        started, self.memory.started = self.memory.started, []
        for slot, ref in started:
            self.allocator.loaded(slot, ref.digest)


def test_an_adapter_has_no_slot_before_its_artifact_is_here() -> None:
    world = World(1, 10, a=4)
    world.allocator.add_demand(A)
    assert world.loads == []
    assert not world.allocator.admits(A)
    assert world.slots.free.slots == 1
    world.fetched(A)
    assert world.loads == [A]
    assert world.artifacts.held == {A.digest}, "its loader reads it"
    world.finish_loads()
    assert world.artifacts.held == set()
    assert world.allocator.admits(A)
    world.allocator.check_integrity()


def test_what_is_fetched_claims_no_slot_and_keeps_its_place_in_the_line() -> None:
    world = World(1)
    world.allocator.add_demand(A)
    world.fetched(A)
    world.finish_loads()
    world.allocator.add_demand(B)
    world.allocator.add_demand(C)
    world.now = 2 * PATIENCE_S
    world.allocator.take_turns()
    assert world.allocator.admits(A), "its slot is not closed for what is not here"
    world.fetched(C)
    world.fetched(B)
    world.allocator.take_turns()
    assert world.loads == [B], "it has waited longest"
    world.allocator.check_integrity()


def test_an_artifact_that_no_request_waits_for_any_more_is_let_go() -> None:
    world = World(1)
    world.allocator.add_demand(A)
    world.allocator.remove_demand(A)
    world.fetched(A)
    assert (world.loads, world.artifacts.held) == ([], set())
    world.allocator.add_demand(B)
    world.fetched(B)
    world.allocator.add_demand(C)
    world.fetched(C)
    assert C.digest in world.artifacts.held, "it waits for a slot"
    world.allocator.remove_demand(C)
    assert world.artifacts.held == {B.digest}


def test_a_prefetched_adapter_is_pinned_by_its_true_size_once_it_is_here() -> None:
    world = World(4, 10, a=6, b=4)
    world.allocator.prefetch(A, pinned=True)
    world.allocator.prefetch(A)
    assert world.loads == []
    world.fetched(A)
    assert world.loads == [A]
    assert not world.slots.is_pinned(A.digest), "it takes more than half of the memory"
    world.finish_loads()
    world.allocator.prefetch(B, pinned=True)
    world.fetched(B)
    assert world.slots.is_pinned(B.digest)
    world.finish_loads()
    world.allocator.prefetch(C, pinned=True)
    world.allocator.prefetch(C, pinned=False)
    world.memory.sizes[C.digest] = 1
    world.fetched(C)
    assert not world.slots.is_pinned(C.digest)


def test_a_prefetched_adapter_without_room_is_let_go() -> None:
    world = World(1)
    world.allocator.add_demand(A)
    world.fetched(A)
    world.finish_loads()
    world.allocator.prefetch(B)
    world.fetched(B)
    assert (world.loads, world.artifacts.held) == ([], set())


def test_a_failed_load_makes_the_artifact_suspect() -> None:
    world = World(1)
    world.allocator.add_demand(A)
    world.fetched(A)
    world.allocator.failed(0, A.digest)
    assert world.artifacts.suspects == [A.digest]


def test_requests_run_once_the_artifact_is_here_and_others_run_meanwhile() -> None:
    artifacts = Artifacts()
    engine = Engine()
    engine.slots._artifacts = artifacts
    engine.submit(submission("base", [1, 2], 8))
    engine.submit(submission("adapted", [1, 2], adapter=A))
    engine.run()
    assert engine.reason("base") == "length"
    assert engine.load_order == []
    assert not engine.core.has_work, "the step loop sleeps while the artifact is on its way"
    artifacts.bring(A)
    engine.core.adapter_loaded(NO_SLOT, A.digest, None)
    assert engine.core.has_work
    engine.run()
    assert engine.reason("adapted") == "length"
    assert artifacts.held == set()
    engine.check_idle()


def test_a_failed_fetch_rejects_the_requests_that_wait_and_the_next_one_tries_again() -> None:
    artifacts = Artifacts()
    engine = Engine()
    engine.slots._artifacts = artifacts
    engine.submit(submission("first", [1, 2], adapter=A))
    engine.core.prefetch(A)
    engine.step()
    artifacts.asked.clear()
    engine.core.adapter_loaded(NO_SLOT, A.digest, "the object store has no such adapter")
    engine.step()
    assert engine.rejected["first"].code == "adapter_unavailable"
    assert "the object store has no such adapter" in engine.rejected["first"].message
    assert artifacts.asked == []
    engine.submit(submission("second", [1, 2], adapter=A))
    assert artifacts.asked == [A.digest]
    artifacts.bring(A)
    engine.core.adapter_loaded(NO_SLOT, A.digest, None)
    engine.run()
    assert engine.reason("second") == "length"
    engine.check_idle()
