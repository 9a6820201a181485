"""More adapters than slots: they take turns, and the wait of each is bounded."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.lora.slot_allocator import SlotAllocator
from engine.lora.slots import NO_SLOT, SlotState
from engine.protocol import AdapterRef
from tests.engine.plain.harness import Engine, adapter, submission
from tests.engine.plain.memory import Memory, bounded_engine
from tests.support.examples import examples

A, B, C, D = (adapter(name) for name in "abcd")
PATIENCE_S = 5.0


class World:
    """Residency over slots whose loads end when told."""

    def __init__(self, num_slots: int, capacity: int | None = None, **sizes: int) -> None:
        self.now = 0.0
        self.memory = Memory(num_slots, capacity, sizes)
        self.slots = self.memory.table
        self.slot_allocator = SlotAllocator(self.slots, lambda: self.now, PATIENCE_S)

    @property
    def loads(self) -> list[tuple[int, AdapterRef]]:
        return self.memory.started

    def finish_loads(self) -> None:
        loads, self.memory.started = self.memory.started, []
        for slot, ref in loads:
            self.slot_allocator.loaded(slot, ref.digest)

    def admit(self, ref: AdapterRef) -> int:
        assert self.slot_allocator.admits(ref)
        self.slot_allocator.remove_demand(ref)
        return self.slot_allocator.acquire(ref)


def test_loading_starts_when_the_request_queues() -> None:
    world = World(1)
    world.slot_allocator.add_demand(A)
    assert [ref for _, ref in world.loads] == [A]
    assert not world.slot_allocator.admits(A)
    world.finish_loads()
    assert world.slot_allocator.admits(A)


def test_an_idle_adapter_nobody_waits_for_gives_way_at_once() -> None:
    world = World(1)
    world.slot_allocator.add_demand(A)
    world.finish_loads()
    world.slot_allocator.release(world.admit(A))
    world.slot_allocator.add_demand(B)
    assert [ref for _, ref in world.loads] == [B]


def test_an_idle_adapter_in_demand_keeps_its_slot_until_its_turn_is_over() -> None:
    world = World(1)
    world.slot_allocator.add_demand(A)
    world.finish_loads()
    world.slot_allocator.add_demand(B)
    world.now = PATIENCE_S - 1
    world.slot_allocator.take_turns()
    assert not world.loads
    assert world.slot_allocator.admits(A)
    world.now = PATIENCE_S
    world.slot_allocator.take_turns()
    assert [ref for _, ref in world.loads] == [B]
    assert not world.slot_allocator.admits(A)
    world.slot_allocator.check_integrity()


def test_a_claimed_slot_admits_no_more_and_changes_hands_when_drained() -> None:
    world = World(1)
    for _ in range(2):
        world.slot_allocator.add_demand(A)
    world.finish_loads()
    slot = world.admit(A)
    world.slot_allocator.add_demand(B)
    world.now = PATIENCE_S
    world.slot_allocator.take_turns()
    assert not world.slot_allocator.admits(A)
    assert not world.loads
    world.slot_allocator.check_integrity()
    world.slot_allocator.release(slot)
    assert [ref for _, ref in world.loads] == [B]
    world.slot_allocator.check_integrity()
    world.finish_loads()
    world.slot_allocator.release(world.admit(B))
    # Nobody waits for B any more, so A, whose second request still does, has it back.
    assert not world.slot_allocator.admits(A)
    assert [ref for _, ref in world.loads] == [A]


def test_a_claim_ends_with_its_last_request() -> None:
    world = World(1)
    for _ in range(2):
        world.slot_allocator.add_demand(A)
    world.finish_loads()
    world.admit(A)
    world.slot_allocator.add_demand(B)
    world.now = PATIENCE_S
    world.slot_allocator.take_turns()
    assert not world.slot_allocator.admits(A)
    world.slot_allocator.remove_demand(B)
    assert world.slot_allocator.admits(A)
    world.slot_allocator.check_integrity()


def test_a_claim_ends_when_another_slot_is_found() -> None:
    world = World(2)
    for ref in (A, B):
        for _ in range(2):
            world.slot_allocator.add_demand(ref)
    world.finish_loads()
    slots = {ref.digest: world.admit(ref) for ref in (A, B)}
    world.slot_allocator.add_demand(C)
    world.now = PATIENCE_S
    world.slot_allocator.take_turns()
    closed, other = (A, B) if not world.slot_allocator.admits(A) else (B, A)
    world.slot_allocator.remove_demand(other)
    world.slot_allocator.release(slots[other.digest])
    assert not world.slot_allocator.admits(C)  # but it is being loaded now, into the other's slot
    assert [ref for _, ref in world.loads] == [C]
    assert world.slot_allocator.admits(closed)
    world.slot_allocator.check_integrity()


def test_a_newly_loaded_adapter_has_its_turn_before_it_can_be_claimed() -> None:
    world = World(1)
    world.slot_allocator.add_demand(A)
    world.slot_allocator.add_demand(B)
    world.now = 2 * PATIENCE_S
    world.finish_loads()
    world.slot_allocator.take_turns()
    assert world.slot_allocator.admits(A)
    world.now = 3 * PATIENCE_S
    world.slot_allocator.take_turns()
    assert not world.slot_allocator.admits(A)


def test_prefetching_takes_no_slot_from_an_adapter_in_demand() -> None:
    world = World(1)
    world.slot_allocator.add_demand(A)
    world.finish_loads()
    world.slot_allocator.prefetch(B)
    assert not world.loads
    world.slot_allocator.release(world.admit(A))
    world.slot_allocator.prefetch(B)
    assert [ref for _, ref in world.loads] == [B]


def running(world: World, *refs: AdapterRef, demand: int = 2) -> dict[str, int]:
    """Adapters with a request that runs and others that wait. Slots by digest."""
    slots = {}
    for ref in refs:
        for _ in range(demand):
            world.slot_allocator.add_demand(ref)
        world.finish_loads()
        slots[ref.digest] = world.admit(ref)
    return slots


def test_a_claim_closes_as_many_slots_as_it_needs_bytes() -> None:
    world = World(9, 10, a=3, b=3, c=4, d=6)
    slots = running(world, A, B, C)
    world.slot_allocator.add_demand(D)
    world.now = PATIENCE_S
    world.slot_allocator.take_turns()
    admitted = [world.slot_allocator.admits(ref) for ref in (A, B, C)]
    assert admitted.count(False) == 2
    closed = [ref for ref, admits in zip((A, B, C), admitted, strict=True) if not admits]
    world.slot_allocator.release(slots[closed[0].digest])
    assert not world.loads, "half of its room is no room"
    assert world.slot_allocator.admits(closed[0]) is False, "a closed slot that has drained stays closed"
    world.slot_allocator.release(slots[closed[1].digest])
    assert [ref for _, ref in world.loads] == [D]
    world.slot_allocator.check_integrity()


def test_small_adapters_do_not_take_the_bytes_a_large_one_collects() -> None:
    world = World(9, 10, a=5, b=5, c=10, d=5)
    slots = running(world, A, B, demand=1)
    world.slot_allocator.add_demand(C)
    world.now = PATIENCE_S
    world.slot_allocator.take_turns()
    world.slot_allocator.release(slots[A.digest])
    world.slot_allocator.add_demand(D)
    assert not world.loads
    assert not world.slot_allocator.admits(D)
    world.slot_allocator.release(slots[B.digest])
    assert [ref for _, ref in world.loads] == [C]
    world.slot_allocator.check_integrity()


def test_nobody_claims_before_a_large_one_that_still_lacks_slots() -> None:
    world = World(9, 10, a=5, b=5, c=10, d=5)
    running(world, A)
    world.now = 4.0
    running(world, B)
    world.slot_allocator.add_demand(C)
    world.slot_allocator.add_demand(D)
    world.now = 4.0 + PATIENCE_S - 0.5
    world.slot_allocator.take_turns()
    assert world.slot_allocator.admits(A), "nobody has waited long enough"
    world.now = 4.0 + PATIENCE_S
    world.slot_allocator.take_turns()
    assert not world.slot_allocator.admits(A)
    assert not world.slot_allocator.admits(B)
    world.slot_allocator.check_integrity()


def test_a_claim_void_gives_all_its_slots_back() -> None:
    world = World(9, 10, a=5, b=5, c=10)
    running(world, A, B)
    world.slot_allocator.add_demand(C)
    world.now = PATIENCE_S
    world.slot_allocator.take_turns()
    assert not world.slot_allocator.admits(A)
    world.slot_allocator.remove_demand(C)
    assert world.slot_allocator.admits(A)
    assert world.slot_allocator.admits(B)
    world.slot_allocator.check_integrity()


def test_a_smaller_adapter_is_tried_where_a_larger_one_found_no_room() -> None:
    world = World(9, 10, a=4, b=7, c=6)
    running(world, A)
    world.slot_allocator.add_demand(B)
    world.slot_allocator.add_demand(C)
    assert [ref for _, ref in world.loads] == [C]


def test_an_adapter_larger_than_all_memory_is_refused_at_once_and_once() -> None:
    world = World(2, 10, a=11)
    for _ in range(3):
        world.slot_allocator.add_demand(A)
    assert not world.slot_allocator.admits(A)
    assert world.memory.refused == [(A, "it takes 11 bytes, and there are 10 for all adapters")]
    for _ in range(3):
        world.slot_allocator.remove_demand(A)
    world.slot_allocator.failed(NO_SLOT, A.digest)
    world.slot_allocator.check_integrity()
    world.slot_allocator.add_demand(A)
    assert len(world.memory.refused) == 2, "who asks again is told again"


def test_a_refused_request_ends_with_the_reason() -> None:
    engine = bounded_engine(10, {A.digest: 11}, num_slots=2)
    engine.submit(submission("r", [1, 2], adapter=A))
    engine.submit(submission("s", [1, 2]))
    engine.run()
    assert engine.rejected["r"].code == "adapter_unavailable"
    assert "it takes 11 bytes, and there are 10" in engine.rejected["r"].message
    assert engine.reason("s") == "length"
    engine.check_idle()


def test_pinned_adapters_have_no_turns() -> None:
    world = World(9, 10, a=5, b=5, c=5)
    world.slot_allocator.prefetch(A, pinned=True)
    world.finish_loads()
    slots = running(world, B)
    world.slot_allocator.add_demand(C)
    world.now = PATIENCE_S
    world.slot_allocator.take_turns()
    assert not world.slot_allocator.admits(B), "B's slot is closed, though A's is idle"
    world.slot_allocator.release(slots[B.digest])
    assert [ref for _, ref in world.loads] == [C]
    world.finish_loads()
    world.slot_allocator.prefetch(A, pinned=False)
    # Nobody waits for A: B, which has a request waiting, may have its bytes now.
    world.slot_allocator.take_turns()
    assert not world.slot_allocator.admits(B)
    assert [ref for _, ref in world.loads] == [B]
    world.slot_allocator.check_integrity()


def test_pinning_an_adapter_whose_slot_is_closed_opens_it() -> None:
    world = World(4)
    running(world, A, B, C, D)
    world.slot_allocator.add_demand(adapter("e"))
    world.now = PATIENCE_S
    world.slot_allocator.take_turns()
    closed = next(ref for ref in (A, B, C, D) if not world.slot_allocator.admits(ref))
    world.slot_allocator.prefetch(closed, pinned=True)
    assert world.slot_allocator.admits(closed)
    world.slot_allocator.check_integrity()
    world.slot_allocator.take_turns()
    assert world.slot_allocator.admits(closed)
    assert sum(not world.slot_allocator.admits(ref) for ref in (A, B, C, D)) == 1
    world.slot_allocator.check_integrity()


@settings(max_examples=examples(120), deadline=None)
@given(num_slots=st.integers(1, 5), capacity=st.integers(1, 30), random=st.integers(0, 2**32).map(Random))
def test_any_sequence_by_bytes_keeps_the_line_in_order(num_slots: int, capacity: int, random: Random) -> None:
    names = "abcdef"
    world = World(num_slots, capacity, **{name: random.randint(1, 12) for name in names})
    waiting: list[AdapterRef] = []
    held: list[int] = []

    def report(slot: int, ref: AdapterRef, error: str | None) -> None:
        if error is None and random.random() < 0.9:
            world.slot_allocator.loaded(slot, ref.digest)
            return
        world.slot_allocator.failed(slot, ref.digest)
        for other in [other for other in waiting if other == ref]:
            waiting.remove(other)
            world.slot_allocator.remove_demand(other)

    for _ in range(120):
        world.now += random.random()
        ref = adapter(random.choice(names))
        match random.randrange(7):
            case 0 | 1:
                world.slot_allocator.add_demand(ref)
                waiting.append(ref)
            case 2 if waiting:
                world.slot_allocator.remove_demand(waiting.pop(random.randrange(len(waiting))))
            case 3 if held:
                world.slot_allocator.release(held.pop(random.randrange(len(held))))
            case 4:
                for slot, loading, error in world.memory.reports():
                    report(slot, loading, error)
            case 5:
                world.slot_allocator.take_turns()
                for candidate in sorted(waiting, key=lambda ref: ref.digest):
                    if world.slot_allocator.admits(candidate) and random.random() < 0.5:
                        waiting.remove(candidate)
                        held.append(world.admit(candidate))
            case 6:
                world.slot_allocator.prefetch(ref, random.choice([True, False, None]))
        world.slot_allocator.check_integrity()
    # All that runs ends, again and again: whoever waits gets its turn, or hears why it never will.
    for _ in range(40 * len(names)):
        world.now += PATIENCE_S
        for index in held:
            world.slot_allocator.release(index)
        held.clear()
        for slot, loading, error in world.memory.reports():
            report(slot, loading, error)
        world.slot_allocator.take_turns()
        for candidate in sorted(set(waiting), key=lambda ref: ref.digest):
            if world.slot_allocator.admits(candidate):
                waiting.remove(candidate)
                held.append(world.admit(candidate))
        world.slot_allocator.check_integrity()
    assert not waiting, "somebody starves"


@settings(max_examples=examples(60), deadline=None)
@given(num_slots=st.integers(0, 3), random=st.integers(0, 2**32).map(Random))
def test_any_sequence_keeps_the_line_in_order(num_slots: int, random: Random) -> None:
    world = World(num_slots)
    refs = [adapter(name) for name in "abcdef"]
    waiting: list[AdapterRef] = []
    held: list[int] = []
    for _ in range(100):
        world.now += random.random()
        ref = random.choice(refs)
        match random.randrange(6):
            case 0 | 1:
                world.slot_allocator.add_demand(ref)
                waiting.append(ref)
            case 2 if waiting:
                world.slot_allocator.remove_demand(waiting.pop(random.randrange(len(waiting))))
            case 3 if held:
                world.slot_allocator.release(held.pop(random.randrange(len(held))))
            case 4 if world.loads:
                slot, loading = world.loads.pop(0)
                world.slot_allocator.loaded(slot, loading.digest)
            case 5:
                world.slot_allocator.take_turns()
                for candidate in sorted(waiting, key=lambda ref: ref.digest):
                    if world.slot_allocator.admits(candidate) and random.random() < 0.5:
                        waiting.remove(candidate)
                        held.append(world.admit(candidate))
        world.slot_allocator.check_integrity()


@pytest.mark.parametrize(("num_slots", "num_adapters"), [(1, 4), (2, 9), (4, 6)])
def test_no_adapter_waits_longer_than_its_place_in_the_line_allows(num_slots: int, num_adapters: int) -> None:
    """Every adapter always has more requests waiting than can run: the hardest case for who has no slot."""
    engine = Engine(
        num_slots=num_slots, num_blocks=400, max_rows=4 * num_slots, max_batch_tokens=64, max_waiting=10_000
    )
    refs = [adapter(f"a{number}") for number in range(num_adapters)]
    max_tokens = 6
    number = 0

    def refill() -> None:
        nonlocal number
        open_by_digest = {ref.digest: 0 for ref in refs}
        for request_id, submit in engine.submitted.items():
            if request_id not in engine.finished:
                assert submit.adapter is not None
                open_by_digest[submit.adapter.digest] += 1
        for ref in refs:
            for _ in range(8 - open_by_digest[ref.digest]):
                number += 1
                engine.submit(
                    submission(f"r{number}", [1, 2, 3], max_tokens, adapter=ref, tenant=f"t{number}")
                )

    served_at = {ref.digest: engine.now for ref in refs}
    longest = 0.0
    for _ in range(300):
        refill()
        engine.now += 1.0
        for chunk in engine.step().chunks:
            ref = engine.submitted[chunk.request_id].adapter
            assert ref is not None
            longest = max(longest, engine.now - served_at[ref.digest])
            served_at[ref.digest] = engine.now
    # A turn: patience, the last requests, the load and the step after it; and so many turns before one's own.
    turn = engine.limits.slot_patience_s + max_tokens + 3
    assert longest <= turn * -(-num_adapters // num_slots)
    assert engine.runner.distinct_slots <= num_slots
    most_loads = num_slots * (1 + 300 / engine.limits.slot_patience_s)
    assert engine.core.stats.adapter_loads <= most_loads, "slots change hands within a turn: thrashing"


@pytest.mark.parametrize("seed", range(3))
def test_large_adapters_wait_no_longer_than_their_turns_allow(seed: int) -> None:
    """Adapters of 1 to 8 of 10 bytes, all always in demand: small ones fit together, large ones do not."""
    sizes = {adapter(f"a{number}").digest: size for number, size in enumerate((1, 2, 8, 3, 5, 8, 1))}
    engine = bounded_engine(
        10, sizes, num_slots=16, num_blocks=400, max_rows=16, max_batch_tokens=64, max_waiting=10_000
    )
    refs = [adapter(f"a{number}") for number in range(len(sizes))]
    random = Random(seed)
    served_at = {ref.digest: engine.now for ref in refs}
    longest = 0.0
    for number in range(400):
        open_digests = [
            submit.adapter.digest
            for request_id, submit in engine.submitted.items()
            if request_id not in engine.finished and submit.adapter is not None
        ]
        for ref in refs:
            for copy in range(5 - open_digests.count(ref.digest)):
                name = f"r{number}-{ref.digest[:8]}-{copy}"
                engine.submit(submission(name, [1, 2], random.randint(1, 6), adapter=ref, tenant=name))
        engine.now += 1.0
        for chunk in engine.step().chunks:
            served = engine.submitted[chunk.request_id].adapter
            assert served is not None
            longest = max(longest, engine.now - served_at[served.digest])
            served_at[served.digest] = engine.now
    # No two of 8 bytes fit together: at worst everybody before one has a turn alone.
    turn = engine.limits.slot_patience_s + 6 + 3
    assert longest <= turn * len(refs)
    assert engine.core.stats.adapter_evictions > 0


@pytest.mark.parametrize("patience", [0.0, 1e-6, 0.5])
@pytest.mark.parametrize("auto_load", [True, False])
@pytest.mark.parametrize("num_slots", [1, 2])
def test_a_patience_shorter_than_a_step_ends_all_requests(
    num_slots: int, auto_load: bool, patience: float
) -> None:
    """A slot that was just loaded is offered to its requests before another adapter may claim it."""
    engine = Engine(
        num_slots=num_slots, auto_load=auto_load, slot_patience_s=patience, max_rows=3, max_waiting=100
    )
    for number in range(20):
        engine.submit(submission(f"r{number}", [1, 2], 3, adapter=(A, B, C)[number % 3]))
    for _ in range(400):
        if not engine.core.has_work:
            break
        engine.now += 1.0
        while engine.loads:
            engine.finish_load()
        engine.step()
    assert len(engine.finished) == 20
    engine.check_idle()


def test_slots_that_suffice_never_change_hands() -> None:
    engine = Engine(num_slots=3)
    for number in range(30):
        engine.submit(submission(f"r{number}", [1, 2], 3, adapter=(A, B, C)[number % 3]))
    engine.run()
    engine.check_idle()
    assert engine.core.stats.adapter_loads == 3
    assert engine.core.stats.adapter_evictions == 0
    assert engine.slots.ensure_loaded(A) is SlotState.READY
