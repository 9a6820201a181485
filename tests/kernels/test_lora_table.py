"""The device path's table, work lists and reference, on a CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.lora import tiling
from kernels.lora.device import LAST_NUMBER
from kernels.lora.device_cases import CASES, DeviceCase, DeviceRun, Slot, make_table, naive_device_lora
from kernels.lora.device_work import DeviceWork
from kernels.lora.table import ALIGNMENT, E4M3, AdapterTable
from kernels.lora_work import NO_SLOT
from kernels.step_inputs import StepInputs
from tests.kernels.lora_rows import run_case, run_delta
from tests.support.speed import calls_of_nothing, times_as_long

FAST = [case for case in CASES if case.width_in * sum(case.widths) <= 1 << 20]


@pytest.mark.parametrize("case", FAST, ids=str)
def test_reference_matches_the_naive_statement(case: DeviceCase) -> None:
    run_case(case, "cpu", torch.float32, tolerance=1e-5)


@pytest.mark.parametrize("case", [case for case in FAST if case.num_tokens <= tiling.MEDIUM_BUCKET], ids=str)
def test_reference_of_a_delta_matches_the_naive_statement(case: DeviceCase) -> None:
    run_delta(case, "cpu", torch.float32, tolerance=1e-5)


def test_small_cases_reach_every_path() -> None:
    """Otherwise the interpreter's tests would leave kernels out."""
    reached = np.zeros(3, np.int64)
    rows_of_pairs: set[int] = set()
    for case in FAST:
        work = build(case.padded_slots(), len(case.slots), case.batch_invariant)
        reached += work.counts.host
        rows_of_pairs |= set(work.pairs.host[: work.counts.host[0], 2].tolist())
    assert reached.all()
    assert rows_of_pairs == {1, 2}


# ---- work lists


def build(row_slots: list[int] | np.ndarray, num_slots: int = 8, invariant: bool = False) -> DeviceWork:
    inputs = StepInputs("cpu")
    work = DeviceWork(inputs, max(len(row_slots), 1), num_slots, invariant)
    inputs.freeze()
    work.order.host[:] = -7
    work.build(np.asarray(row_slots))
    return work


def spans(work: DeviceWork) -> dict[int, list[int]]:
    """Rows of the batch by slot, as the lists have them; checks that no row is there twice."""
    found: dict[int, list[int]] = {}
    sizes = (tiling.PAIR_ROWS, tiling.BLOCK_ROWS, tiling.TILE_ROWS)
    for pieces, count, size in zip(
        (work.pairs, work.blocks, work.tiles), work.counts.host, sizes, strict=True
    ):
        for slot, first, rows in pieces.host[:count, :3].tolist():
            assert 0 < rows <= size
            found.setdefault(slot, []).extend(work.order.host[first : first + rows].tolist())
    for _, first, rows, row0, row1 in work.pairs.host[: work.counts.host[0], :5].tolist():
        assert [row0, row1] == work.order.host[[first, first + rows - 1]].tolist()
    rows = [row for some in found.values() for row in some]
    assert len(rows) == len(set(rows))
    return found


def test_pieces_are_runs_of_one_slots_rows() -> None:
    row_slots = [3, NO_SLOT, 5, 3, 5, 5, NO_SLOT, 7]
    work = build(row_slots + [NO_SLOT] * tiling.MEDIUM_BUCKET)
    assert work.active
    assert work.counts.host.tolist() == [2, 1, 0]
    assert work.order.host[:6].tolist() == [0, 3, 2, 4, 5, 7]
    assert work.pairs.host[:2, :5].tolist() == [[3, 0, 2, 0, 3], [7, 5, 1, 7, 7]]
    assert work.blocks.host[0, :3].tolist() == [5, 2, 3]


def test_in_small_buckets_all_rows_are_pairs() -> None:
    work = build([3, NO_SLOT, 5, 3, 5, 5, NO_SLOT, 7])
    assert work.counts.host.tolist() == [4, 0, 0]
    assert work.order.host[:6].tolist() == [0, 3, 2, 4, 5, 7]
    assert work.pairs.host[:4, :5].tolist() == [
        [3, 0, 2, 0, 3],
        [5, 2, 2, 2, 4],
        [5, 4, 1, 5, 5],
        [7, 5, 1, 7, 7],
    ]


def test_a_batch_of_the_base_alone_has_no_work() -> None:
    work = build([NO_SLOT] * 4)
    assert not work.active
    assert work.counts.host.tolist() == [0, 0, 0]


def test_a_step_leaves_nothing_of_the_one_before() -> None:
    work = build([1] * 40 + [2] * 300 + [3, 4, 4, 4])
    assert work.counts.host.all()
    work.build(np.asarray([NO_SLOT, 4]))
    assert work.counts.host.tolist() == [1, 0, 0]
    assert spans(work) == {4: [1]}
    work.build(np.full(340, NO_SLOT))
    assert work.counts.host.tolist() == [0, 0, 0]


@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize("num_rows", [1, 16, 17, 128, 129, 256, 257, 1000])
def test_every_row_is_in_its_slots_pieces_and_fits_the_grid(num_rows: int, invariant: bool) -> None:
    rng = np.random.default_rng(num_rows)
    for num_slots in (1, 2, 40, 300):
        for skew in (1.0, 4.0):
            slots = (rng.random(num_rows) ** skew * (num_slots + 1)).astype(np.int64) - 1
            work = build(slots, num_slots, invariant)
            expected = {
                int(slot): np.flatnonzero(slots == slot).tolist() for slot in np.unique(slots) if slot >= 0
            }
            assert spans(work) == expected
            limits = work.limits(num_rows)
            num_pairs, num_blocks, num_tiles = work.counts.host.tolist()
            assert num_pairs <= limits.pairs
            assert num_blocks <= limits.blocks
            assert num_tiles <= limits.tiles
            assert work.pairs.host[:num_pairs, 2].sum() + work.blocks.host[:num_blocks, 2].sum() <= (
                limits.split_rows
            )


def test_the_path_depends_on_the_slots_own_rows() -> None:
    row_slots = [0, 1, 1, 2, 2, 2] + [3] * 17
    work = build(row_slots + [NO_SLOT] * tiling.MEDIUM_BUCKET)
    assert work.pairs.host[: work.counts.host[0], 0].tolist() == [0, 1]
    assert work.blocks.host[: work.counts.host[1], 0].tolist() == [2, 3, 3]
    invariant = build(row_slots, invariant=True)
    assert invariant.blocks.host[: invariant.counts.host[1], 0].tolist() == [0, 1, 2, 3, 3]
    assert invariant.counts.host[0] == 0
    padded = build(row_slots + [NO_SLOT] * 300)
    assert padded.tiles.host[: padded.counts.host[2], 0].tolist() == [3]


def test_more_rows_than_made_for_are_refused() -> None:
    work = build([0, 1])
    with pytest.raises(ValueError, match="3 rows"):
        work.build(np.zeros(3, np.int64))


def test_lists_are_built_in_a_fraction_of_a_step() -> None:
    """256 rows on 64 adapters: 35 us on the machine of the benchmarks, and 256 calls of nothing 10."""
    slots = np.random.default_rng(0).integers(0, 64, 256)
    work = build(slots, 64)
    assert times_as_long(lambda: work.build(slots), than=calls_of_nothing(256)) < 15


# ---- table


def small_table() -> AdapterTable:
    table = AdapterTable(2, 3, ("qkv", "o"), "cpu", max_rank=16)
    table.arena = torch.zeros(4096, dtype=torch.uint8)
    return table


def test_a_cleared_slot_is_empty_and_others_stay() -> None:
    table = small_table()
    table.ranks[:, :, :2] = 8
    table.clear(1)
    assert (table.ranks[:, :, 0] == 8).all()
    assert not table.ranks[:, :, 1:].any()


def test_what_kernels_can_serve_passes() -> None:
    ranks = torch.full((2, 2, 4), 8, dtype=torch.int32)
    ranks[..., 3] = E4M3
    small_table().check(torch.arange(2 * 2 * 5).view(2, 2, 5) * ALIGNMENT, ranks)


@pytest.mark.parametrize(
    ("offset", "rank", "code", "reason"),
    [
        (0, 17, 0, "ranks"),
        (0, -1, 0, "ranks"),
        (0, 4, 2, "neither"),
        (8, 4, 0, "multiples"),
        (8192, 4, 0, "outside"),
        (-16, 4, 0, "outside"),
    ],
)
def test_what_kernels_cannot_serve_is_refused(offset: int, rank: int, code: int, reason: str) -> None:
    table = small_table()
    offsets = torch.zeros(2, 2, 5, dtype=torch.int64)
    ranks = torch.zeros(2, 2, 4, dtype=torch.int32)
    offsets[1, 0, 2], ranks[1, 0, 0], ranks[1, 0, 3] = offset, rank, code
    with pytest.raises(ValueError, match=reason):
        table.check(offsets, ranks)
    with pytest.raises(ValueError, match="slot"):
        table.check(offsets[:1], ranks)


def test_the_arena_is_set_once_and_aligned() -> None:
    table = small_table()
    with pytest.raises(AssertionError, match="once"):
        table.arena = torch.zeros(64, dtype=torch.uint8)
    fresh = AdapterTable(1, 1, ("o",), "cpu")
    with pytest.raises(AssertionError, match="no arena"):
        _ = fresh.arena
    with pytest.raises(ValueError, match="multiples"):
        fresh.arena = torch.zeros(65, dtype=torch.uint8)[1:]
    with pytest.raises(ValueError, match="arena"):
        fresh.arena = torch.zeros(64)


# ---- the context


def test_numbers_of_exchanges_begin_again_in_cleared_memory() -> None:
    """An expand that waits for a word takes any that has its number."""
    case = FAST[2]
    table = make_table(case.slots, case.width_in, case.widths, num_layers=3)
    run = DeviceRun(table, case.width_in, case.num_tokens, width_out=sum(case.widths))
    numbers, words = run.lora._numbers.device, run.lora._scratch.words
    seen = []
    for _ in range(3):
        run.begin(case.padded_slots())
        seen.append(numbers.tolist())
    assert seen == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    words.fill_(5 << 32)
    run.lora._next_number = LAST_NUMBER - 3
    run.begin(case.padded_slots())
    assert numbers.tolist() == [LAST_NUMBER - 3, LAST_NUMBER - 2, LAST_NUMBER - 1]
    assert words.all()
    run.begin(case.padded_slots())
    assert numbers.tolist() == [1, 2, 3]
    assert not words.any()


def test_a_delta_belongs_to_small_buckets_and_to_engines_of_one_gpu() -> None:
    table = make_table((Slot((4,)),), 64, (48,))
    too_many = tiling.MEDIUM_BUCKET + 1
    bare, run = DeviceRun(table, 64, too_many), DeviceRun(table, 64, too_many, width_out=48)
    assert not bare.lora.runs_beside(1)
    assert run.lora.runs_beside(tiling.MEDIUM_BUCKET)
    assert not run.lora.runs_beside(too_many)
    assert not DeviceRun(table, 64, 8, width_out=48, early=False).lora.runs_beside(1)
    run.begin(np.zeros(too_many, np.int64))
    with pytest.raises(ValueError, match="x "):
        run.lora.delta(0, "group", torch.zeros(too_many, 64), (48,))
    with pytest.raises(ValueError, match="made for 48"):
        run.lora.delta(0, "group", torch.zeros(1, 64), (48, 1))


def test_expand_belongs_to_the_shrink_before_it() -> None:
    table = make_table((Slot((4,)),), 64, (48,), num_layers=2)
    run = DeviceRun(table, 64, 2)
    run.begin(np.asarray([0, NO_SLOT]))
    out = torch.zeros(2, 48)
    with pytest.raises(AssertionError, match="after shrink"):
        run.lora.expand(0, "group", out, (48,))
    run.lora.shrink(0, "group", torch.zeros(2, 64))
    with pytest.raises(AssertionError, match="after shrink"):
        run.lora.expand(1, "group", out, (48,))


def test_shapes_that_do_not_go_together_are_refused() -> None:
    run = DeviceRun(make_table((Slot((4,)),), 64, (48,)), 64, 2)
    run.begin(np.asarray([0, 0]))
    with pytest.raises(ValueError, match="lora: x"):
        run.lora.shrink(0, "group", torch.zeros(2, 32))
    with pytest.raises(ValueError, match="lora: x"):
        run.lora.shrink(0, "group", torch.zeros(3, 64))
    run.lora.shrink(0, "group", torch.zeros(2, 64))
    with pytest.raises(ValueError, match="widths"):
        run.lora.expand(0, "group", torch.zeros(2, 48), (40,))


def test_naive_statement_sees_every_adapter() -> None:
    """The yardstick itself: a row of an adapter changes, others do not."""
    case = next(case for case in FAST if case.scaled)
    _, base, _ = case.inputs()
    expected, _ = naive_device_lora(case, make_table(case.slots, case.width_in, case.widths))
    for row, slot in enumerate(case.padded_slots()):
        weights = case.slots[slot] if slot >= 0 else None
        assert torch.equal(expected[row], base[row].double()) == (weights is None or not any(weights.ranks))
