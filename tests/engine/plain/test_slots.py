"""Slots: one adapter each, never taken from who runs on them, the longest idle given away first."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.lora.slots import SlotState, SlotTable
from engine.protocol import AdapterRef
from tests.engine.plain.harness import adapter

A, B, C, D = (adapter(name) for name in "abcd")


class Loads:
    """A loader that has been told, and waits."""

    def __init__(self, num_slots: int) -> None:
        self.started: list[tuple[int, AdapterRef]] = []
        self.table = SlotTable(num_slots, lambda slot, ref: self.started.append((slot, ref)))

    def finish(self) -> None:
        for slot, ref in self.started:
            self.table.loaded(slot, ref.digest)
        self.started.clear()


def ready(num_slots: int, *refs: AdapterRef) -> SlotTable:
    loads = Loads(num_slots)
    for ref in refs:
        assert loads.table.want(ref) is SlotState.LOADING
    loads.finish()
    return loads.table


def test_a_wanted_adapter_is_loaded_once() -> None:
    loads = Loads(2)
    assert loads.table.want(A) is SlotState.LOADING
    assert loads.table.want(A) is SlotState.LOADING
    assert [ref for _, ref in loads.started] == [A]
    loads.finish()
    assert loads.table.want(A) is SlotState.READY
    assert (loads.table.num_ready, loads.table.num_loading) == (1, 0)


def test_an_adapter_without_a_slot_to_go_to_stays_out() -> None:
    loads = Loads(1)
    loads.table.want(A)
    assert loads.table.want(B) is SlotState.EMPTY
    assert [ref for _, ref in loads.started] == [A]


def test_a_slot_in_use_is_never_evicted() -> None:
    table = ready(2, A, B)
    table.acquire(A)
    slot = table.acquire(B)
    assert table.want(C) is SlotState.EMPTY
    table.release(slot)
    assert table.want(C) is SlotState.LOADING
    assert table.find(B.digest) is None
    assert table.find(A.digest) is not None
    table.check_integrity()


def test_the_longest_idle_goes_first() -> None:
    table = ready(3, A, B, C)
    for ref in (A, C, B, A):
        table.release(table.acquire(ref))
    table.want(D)
    assert table.find(C.digest) is None
    assert (table.num_loads, table.num_evictions) == (4, 1)


def test_spared_adapters_are_passed_over() -> None:
    table = ready(2, A, B)
    assert table.want(C, spare={A.digest}) is SlotState.LOADING
    assert table.find(A.digest) is not None
    assert table.want(D, spare={A.digest, C.digest}) is SlotState.EMPTY


def test_a_failed_load_leaves_the_slot_empty_and_can_be_tried_again() -> None:
    loads = Loads(1)
    loads.table.want(A)
    loads.table.failed(0, A.digest)
    loads.started.clear()
    loads.table.check_integrity()
    assert loads.table.find(A.digest) is None
    assert loads.table.want(A) is SlotState.LOADING
    loads.finish()
    assert loads.table.acquire(A) == 0


def test_a_report_on_another_load_is_caught() -> None:
    loads = Loads(1)
    loads.table.want(A)
    with pytest.raises(AssertionError, match="another adapter"):
        loads.table.loaded(0, B.digest)
    loads.table.loaded(0, A.digest)
    with pytest.raises(AssertionError, match="not loading"):
        loads.table.loaded(0, A.digest)


def test_an_adapter_not_ready_cannot_be_acquired() -> None:
    loads = Loads(1)
    loads.table.want(A)
    with pytest.raises(AssertionError, match="not ready"):
        loads.table.acquire(A)


def test_a_loader_may_report_at_once() -> None:
    table = SlotTable(1, lambda slot, ref: table.loaded(slot, ref.digest) and None)
    assert table.want(A) is SlotState.READY


def test_a_negative_number_of_slots_is_refused() -> None:
    with pytest.raises(ValueError, match="num_slots"):
        SlotTable(-1, lambda slot, ref: None)


@settings(max_examples=60, deadline=None)
@given(num_slots=st.integers(0, 4), random=st.integers(0, 2**32).map(Random))
def test_any_sequence_keeps_the_table_whole(num_slots: int, random: Random) -> None:
    loads = Loads(num_slots)
    table = loads.table
    refs = [adapter(name) for name in "abcdefg"]
    held: list[tuple[int, str]] = []
    for _ in range(80):
        ref = random.choice(refs)
        match random.randrange(4):
            case 0:
                table.want(ref, spare={random.choice(refs).digest})
            case 1 if loads.started:
                slot, loading = loads.started.pop(random.randrange(len(loads.started)))
                (table.loaded if random.random() < 0.8 else table.failed)(slot, loading.digest)
            case 2:
                found = table.find(ref.digest)
                if found is not None and found.state is SlotState.READY:
                    held.append((table.acquire(ref), ref.digest))
            case 3 if held:
                table.release(held.pop(random.randrange(len(held)))[0])
        table.check_integrity()
        for slot, digest in held:
            occupant = table.slots[slot].ref
            assert occupant is not None
            assert occupant.digest == digest
