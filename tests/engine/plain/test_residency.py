"""More adapters than slots: they take turns, and the wait of each is bounded."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.lora.residency import Residency
from engine.lora.slots import SlotState, SlotTable
from engine.protocol import AdapterRef
from tests.engine.plain.harness import Engine, adapter, submission

A, B, C = (adapter(name) for name in "abc")
PATIENCE_S = 5.0


class World:
    """Residency over slots whose loads end when told."""

    def __init__(self, num_slots: int) -> None:
        self.now = 0.0
        self.loads: list[tuple[int, AdapterRef]] = []
        self.slots = SlotTable(num_slots, lambda slot, ref: self.loads.append((slot, ref)))
        self.residency = Residency(self.slots, lambda: self.now, PATIENCE_S)

    def finish_loads(self) -> None:
        loads, self.loads = self.loads, []
        for slot, ref in loads:
            self.residency.loaded(slot, ref.digest)

    def admit(self, ref: AdapterRef) -> int:
        assert self.residency.admits(ref)
        self.residency.dismiss(ref)
        return self.residency.acquire(ref)


def test_loading_starts_when_the_request_queues() -> None:
    world = World(1)
    world.residency.expect(A)
    assert [ref for _, ref in world.loads] == [A]
    assert not world.residency.admits(A)
    world.finish_loads()
    assert world.residency.admits(A)


def test_an_idle_adapter_nobody_waits_for_gives_way_at_once() -> None:
    world = World(1)
    world.residency.expect(A)
    world.finish_loads()
    world.residency.release(world.admit(A))
    world.residency.expect(B)
    assert [ref for _, ref in world.loads] == [B]


def test_an_idle_adapter_in_demand_keeps_its_slot_until_its_turn_is_over() -> None:
    world = World(1)
    world.residency.expect(A)
    world.finish_loads()
    world.residency.expect(B)
    world.now = PATIENCE_S - 1
    world.residency.take_turns()
    assert not world.loads
    assert world.residency.admits(A)
    world.now = PATIENCE_S
    world.residency.take_turns()
    assert [ref for _, ref in world.loads] == [B]
    assert not world.residency.admits(A)
    world.residency.check_integrity()


def test_a_claimed_slot_admits_no_more_and_changes_hands_when_drained() -> None:
    world = World(1)
    for _ in range(2):
        world.residency.expect(A)
    world.finish_loads()
    slot = world.admit(A)
    world.residency.expect(B)
    world.now = PATIENCE_S
    world.residency.take_turns()
    assert not world.residency.admits(A)
    assert not world.loads
    world.residency.check_integrity()
    world.residency.release(slot)
    assert [ref for _, ref in world.loads] == [B]
    world.residency.check_integrity()
    world.finish_loads()
    world.residency.release(world.admit(B))
    # Nobody waits for B any more, so A, whose second request still does, has it back.
    assert not world.residency.admits(A)
    assert [ref for _, ref in world.loads] == [A]


def test_a_claim_ends_with_its_last_request() -> None:
    world = World(1)
    for _ in range(2):
        world.residency.expect(A)
    world.finish_loads()
    world.admit(A)
    world.residency.expect(B)
    world.now = PATIENCE_S
    world.residency.take_turns()
    assert not world.residency.admits(A)
    world.residency.dismiss(B)
    assert world.residency.admits(A)
    world.residency.check_integrity()


def test_a_claim_ends_when_another_slot_is_found() -> None:
    world = World(2)
    for ref in (A, B):
        for _ in range(2):
            world.residency.expect(ref)
    world.finish_loads()
    slots = {ref.digest: world.admit(ref) for ref in (A, B)}
    world.residency.expect(C)
    world.now = PATIENCE_S
    world.residency.take_turns()
    closed, other = (A, B) if not world.residency.admits(A) else (B, A)
    world.residency.dismiss(other)
    world.residency.release(slots[other.digest])
    assert not world.residency.admits(C)  # but it is being loaded now, into the other's slot
    assert [ref for _, ref in world.loads] == [C]
    assert world.residency.admits(closed)
    world.residency.check_integrity()


def test_a_newly_loaded_adapter_has_its_turn_before_it_can_be_claimed() -> None:
    world = World(1)
    world.residency.expect(A)
    world.residency.expect(B)
    world.now = 2 * PATIENCE_S
    world.finish_loads()
    world.residency.take_turns()
    assert world.residency.admits(A)
    world.now = 3 * PATIENCE_S
    world.residency.take_turns()
    assert not world.residency.admits(A)


def test_prefetching_takes_no_slot_from_an_adapter_in_demand() -> None:
    world = World(1)
    world.residency.expect(A)
    world.finish_loads()
    world.residency.prefetch(B)
    assert not world.loads
    world.residency.release(world.admit(A))
    world.residency.prefetch(B)
    assert [ref for _, ref in world.loads] == [B]


@settings(max_examples=60, deadline=None)
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
                world.residency.expect(ref)
                waiting.append(ref)
            case 2 if waiting:
                world.residency.dismiss(waiting.pop(random.randrange(len(waiting))))
            case 3 if held:
                world.residency.release(held.pop(random.randrange(len(held))))
            case 4 if world.loads:
                slot, loading = world.loads.pop(0)
                world.residency.loaded(slot, loading.digest)
            case 5:
                world.residency.take_turns()
                for candidate in sorted(waiting, key=lambda ref: ref.digest):
                    if world.residency.admits(candidate) and random.random() < 0.5:
                        waiting.remove(candidate)
                        held.append(world.admit(candidate))
        world.residency.check_integrity()


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


def test_slots_that_suffice_never_change_hands() -> None:
    engine = Engine(num_slots=3)
    for number in range(30):
        engine.submit(submission(f"r{number}", [1, 2], 3, adapter=(A, B, C)[number % 3]))
    engine.run()
    engine.check_idle()
    assert engine.core.stats.adapter_loads == 3
    assert engine.core.stats.adapter_evictions == 0
    assert engine.slots.want(A) is SlotState.READY
