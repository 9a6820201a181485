"""Ranges never overlap, none is lost, and what is free can be had: after moves if need be, of few bytes."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.lora.artifact import GROUPS
from engine.lora.image import image_bytes
from engine.lora.manifest import Dtype, ModuleShape, lay_out
from engine.lora.ranges import ALIGNMENT, Ranges, rounded
from tests.support.examples import examples

UNIT = ALIGNMENT


def filled(*sizes: int, capacity: int | None = None) -> tuple[Ranges, list[int]]:
    ranges = Ranges(capacity or sum(map(rounded, sizes)))
    starts = [ranges.take(size) for size in sizes]
    assert None not in starts
    return ranges, [start for start in starts if start is not None]


def test_a_range_takes_its_bytes_and_no_more_than_the_rest_of_a_unit() -> None:
    ranges = Ranges(10 * UNIT + 5)
    assert ranges.capacity == 10 * UNIT
    assert ranges.take(1) == 0
    assert ranges.take(UNIT + 1) == UNIT
    assert ranges.num_free == 7 * UNIT
    assert ranges.take(7 * UNIT + 1) is None
    ranges.check_integrity()


def test_the_smallest_hole_that_fits_is_taken() -> None:
    ranges, (first, _, second, _) = filled(3 * UNIT, UNIT, 2 * UNIT, UNIT)
    ranges.give(first)
    ranges.give(second)
    assert ranges.take(2 * UNIT) == second
    ranges.check_integrity()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2)])
def test_neighbours_become_one(order: tuple[int, ...]) -> None:
    ranges, starts = filled(UNIT, UNIT, UNIT)
    for index in order:
        ranges.give(starts[index])
        ranges.check_integrity()
    assert ranges.take(3 * UNIT) == 0


def test_no_move_is_planned_where_a_hole_fits() -> None:
    ranges, starts = filled(UNIT, UNIT, 2 * UNIT)
    ranges.give(starts[0])
    ranges.give(starts[2])
    assert ranges.plan(2 * UNIT) == []


def test_the_cheapest_run_is_moved() -> None:
    # Holes of 1 around a range of 5, and holes of 1 around one of 2: either pair would do.
    ranges, starts = filled(*(size * UNIT for size in (1, 5, 1, 9, 1, 2, 1)))
    for index in (0, 2, 4, 6):
        ranges.give(starts[index])
    (move,) = ranges.plan(2 * UNIT)
    assert move == (starts[5], starts[4], 2 * UNIT)
    ranges.move(move)
    ranges.check_integrity()
    assert ranges.take(2 * UNIT) == starts[4] + 2 * UNIT


def test_more_than_is_free_cannot_be_planned_for() -> None:
    ranges, starts = filled(UNIT, UNIT)
    ranges.give(starts[0])
    with pytest.raises(AssertionError, match="bytes requested"):
        ranges.plan(2 * UNIT)


def test_a_negative_capacity_is_refused() -> None:
    with pytest.raises(ValueError, match="capacity"):
        Ranges(-1)


@settings(max_examples=examples(150), deadline=None)
@given(capacity=st.integers(0, 60), random=st.integers(0, 2**32).map(Random))
def test_whatever_is_free_can_be_had(capacity: int, random: Random) -> None:
    """A model of the memory, unit by unit, is moved as planned: contents stay what their owners wrote."""
    ranges = Ranges(capacity * UNIT)
    memory: list[int | None] = [None] * capacity
    held: dict[int, tuple[int, int]] = {}

    def check() -> None:
        ranges.check_integrity()
        for name, (start, size) in held.items():
            assert memory[start : start + size] == [name] * size, "contents were lost"
        assert ranges.num_free == UNIT * (capacity - sum(size for _, size in held.values()))

    for name in range(60):
        if held and random.random() < 0.45:
            start, size = held.pop(random.choice(list(held)))
            assert ranges.give(start * UNIT) == size * UNIT
            memory[start : start + size] = [None] * size
        size = random.randint(1, 12)
        if size * UNIT <= ranges.num_free:
            while moves := ranges.plan(size * UNIT):
                # As the pool does: some of the moves, then a new plan, perhaps after something was freed.
                for move in moves[: random.randint(1, len(moves))]:
                    ranges.move(move)
                    source, target, width = (value // UNIT for value in move)
                    memory[target : target + width] = memory[source : source + width]
                    owner = next(name for name, place in held.items() if place[0] == source)
                    held[owner] = (target, width)
                    check()
            start = ranges.take(size * UNIT)
            assert start is not None, "free bytes suffice, and yet there is no room"
            start //= UNIT
            held[name] = (start, size)
            memory[start : start + size] = [name] * size
        else:
            assert ranges.take(size * UNIT) is None
        check()


WIDTHS = {
    "q_proj": (4096, 4096),
    "k_proj": (4096, 1024),
    "v_proj": (4096, 1024),
    "o_proj": (4096, 4096),
    "gate_proj": (4096, 14336),
    "up_proj": (4096, 14336),
    "down_proj": (14336, 4096),
}
"""(in, out) of Llama-3.1-8B's linears."""


@pytest.mark.parametrize(("dtype", "width"), [("bfloat16", 2), ("float8_e4m3", 1)])
def test_256_adapters_of_mixed_ranks_cost_their_true_bytes(dtype: Dtype, width: int) -> None:
    assert WIDTHS.keys() == {name for names in GROUPS.values() for name in names}
    ranges = Ranges(100 << 30)
    random = Random(0)
    true_bytes = 0
    for _ in range(256):
        shapes = {}
        for name, (k, n) in WIDTHS.items():
            rank = random.choice((8, 16, 32, 64))
            shapes[name] = ModuleShape(rank, k, n, 1.0)
            true_bytes += 32 * rank * (k + n) * width
        image = image_bytes(lay_out([shapes] * 32, "b" * 64, dtype))
        assert ranges.take(image) is not None
    taken = ranges.capacity - ranges.num_free
    assert true_bytes <= taken <= 1.05 * true_bytes
