"""LoRA over mixed batches against one row and one module at a time; isolation between slots."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from kernels.lora import LoraContext
from kernels.lora.cases import CASES, Case, ListPool, naive_lora, random_group
from kernels.lora.stack import PATIENCE, Residents
from kernels.lora_work import MAX_ITEM_ROWS, NO_SLOT, LoraWork, SlotGroup


def apply(
    context: LoraContext, x: torch.Tensor, base: torch.Tensor, row_slots: Sequence[int], widths: Sequence[int]
) -> torch.Tensor:
    context.begin(np.asarray(row_slots))
    out = base.clone()
    context.shrink(0, "group", x)
    context.expand(0, "group", out, widths)
    return out


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case.width_in}-{case.widths}-{len(case.row_slots)}rows"
)
def test_matches_the_naive_statement(case: Case) -> None:
    pool = case.pool()
    x, base = case.inputs()
    got = apply(LoraContext(pool), x, base, case.row_slots, case.widths)
    expected = naive_lora(x, base, pool.group(0, "group"), case.row_slots, case.widths)
    torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-4)
    for row, slot in enumerate(case.row_slots):
        if slot == NO_SLOT:
            assert torch.equal(got[row], base[row])


def test_a_row_has_the_same_bits_in_any_batch() -> None:
    """Few rows share one batched product, many have their own: no row may tell the difference."""
    case = Case(96, (40, 24), ((16, 8), (4, 0), (64, 32), (1, 3)), (0,) * 12)
    pool = case.pool()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 96, generator=generator)
    base = torch.randn(64, 64, generator=generator)
    for slot in range(4):
        whole = apply(LoraContext(pool), x, base, [slot] * 64, case.widths)
        for others in (NO_SLOT, (slot + 1) % 4, (slot + 2) % 4):
            for count in (1, 2, 4, MAX_ITEM_ROWS, MAX_ITEM_ROWS + 1, 30):
                row_slots = [slot] * count + [others] * (64 - count)
                mixed = apply(LoraContext(pool), x, base, row_slots, case.widths)
                assert torch.equal(mixed[:count], whole[:count]), (slot, others, count)


def test_one_context_over_many_steps_equals_a_fresh_one() -> None:
    """The stacks are a cache: slots come, go, change versions and ranks; the answers must not notice."""
    rng = np.random.default_rng(3)
    widths = (24, 16)

    def adapter(seed: int) -> SlotGroup | None:
        ranks = [int(rank) for rank in rng.choice([0, 2, 4, 8, 16], 2)]
        return random_group(ranks, [0.5, 2.0], 32, widths, seed)

    pool = ListPool({(0, "group"): [adapter(slot) for slot in range(6)]})
    context = LoraContext(pool)
    for step in range(150):
        if step % 7 == 3:
            slot = int(rng.integers(6))
            pool.groups[0, "group"][slot] = adapter(1000 + step)
            pool.versions[slot] += 1
        num_rows = int(rng.integers(1, 24))
        row_slots = rng.integers(-1, rng.integers(1, 7), num_rows)
        x, base = torch.randn(num_rows, 32), torch.randn(num_rows, 40)
        got = apply(context, x, base, row_slots, widths)
        assert torch.equal(got, apply(LoraContext(pool), x, base, row_slots, widths)), step
        expected = naive_lora(x, base, pool.group(0, "group"), row_slots.tolist(), widths)
        torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-4)


def test_a_repeated_step_notices_that_a_slot_has_changed() -> None:
    widths = (24, 16)
    pool = ListPool({(0, "group"): [random_group([4, 2], [0.5, 2.0], 32, widths, seed) for seed in range(2)]})
    context = LoraContext(pool)
    x, base = torch.randn(6, 32), torch.randn(6, 40)
    row_slots = [0, 1, 0, NO_SLOT, 1, 1]
    first = apply(context, x, base, row_slots, widths)
    assert torch.equal(apply(context, x, base, row_slots, widths), first)
    pool.groups[0, "group"][1] = random_group([8, 0], [0.5, 2.0], 32, widths, 9)
    pool.versions[1] += 1
    changed = apply(context, x, base, row_slots, widths)
    assert torch.equal(changed, apply(LoraContext(pool), x, base, row_slots, widths))
    assert torch.equal(changed[[0, 2, 3]], first[[0, 2, 3]])
    assert not torch.equal(changed[[1, 4, 5]], first[[1, 4, 5]])


@pytest.mark.parametrize("wild_rows", [1, 3, 20])
@pytest.mark.parametrize("damage", ["overflow", "nan", "inf in b"])
def test_a_wild_adapter_leaves_batch_mates_bit_equal(wild_rows: int, damage: str) -> None:
    case = Case(64, (48, 16), ((8, 8), (8, 4), (4, 8)), (0,))
    pool, tame = case.pool(), case.pool()
    wild = pool.groups[0, "group"][1]
    assert wild is not None
    assert wild.a is not None
    if damage == "overflow":
        wild.a.fill_(3e38)
        wild.b[0].fill_(3e38)
        assert wild.a.isfinite().all()
    elif damage == "nan":
        wild.a.fill_(float("nan"))
    else:
        wild.b[0].fill_(float("inf"))
    row_slots = [0, 2] + [1] * wild_rows + [0, NO_SLOT, 2]
    x = torch.randn(len(row_slots), 64)
    base = torch.randn(len(row_slots), 64)
    got = apply(LoraContext(pool), x, base, row_slots, case.widths)
    clean = apply(LoraContext(tame), x, base, row_slots, case.widths)
    for row, slot in enumerate(row_slots):
        if slot == 1:
            assert not got[row].isfinite().all()
        else:
            assert torch.equal(got[row], clean[row])


def test_nothing_happens_without_adapters() -> None:
    context = LoraContext(ListPool({(0, "group"): [None]}))
    context.begin(np.full(5, NO_SLOT))
    assert not context.active
    base = torch.randn(5, 8)
    out = base.clone()
    context.shrink(0, "group", torch.randn(5, 4))
    context.expand(0, "group", out, (8,))
    assert torch.equal(out, base)


def test_padding_rows_after_the_step_are_ignored() -> None:
    case = CASES[0]
    pool = case.pool()
    context = LoraContext(pool)
    context.begin(np.asarray([0]))
    x, base = torch.randn(4, 64), torch.randn(4, 48)
    x[1:] = float("nan")
    out = base.clone()
    context.shrink(0, "group", x)
    context.expand(0, "group", out, (48,))
    assert torch.equal(out[1:], base[1:])
    assert out[0].isfinite().all()


def test_what_is_added_is_divided_by_the_rows_scale() -> None:
    case = Case(64, (32, 16), ((4, 4), (8, 0)), (0, 1, NO_SLOT, 1))
    pool = case.pool()
    x, base = case.inputs()
    scale = torch.tensor([0.5, 2.0, 3.0, 0.125])
    context = LoraContext(pool)
    context.begin(np.asarray(case.row_slots))
    out = base / scale[:, None]
    context.shrink(0, "group", x)
    context.expand(0, "group", out, case.widths, scale)
    expected = naive_lora(x, base, pool.group(0, "group"), case.row_slots, case.widths)
    torch.testing.assert_close((out * scale[:, None]).double(), expected, rtol=1e-4, atol=1e-4)


def test_expand_belongs_to_the_shrink_before_it() -> None:
    context = LoraContext(CASES[0].pool())
    context.begin(np.asarray([0]))
    context.shrink(0, "group", torch.zeros(1, 64))
    with pytest.raises(AssertionError, match="after shrink"):
        context.expand(1, "group", torch.zeros(1, 48), (48,))


def test_refuses_what_does_not_fit() -> None:
    context = LoraContext(CASES[0].pool())
    context.begin(np.asarray([0, 0]))
    context.shrink(0, "group", torch.zeros(2, 64))
    with pytest.raises(ValueError, match="widths"):
        context.expand(0, "group", torch.zeros(2, 48), (40,))
    context.shrink(0, "group", torch.zeros(1, 64))
    with pytest.raises(ValueError, match="began with 2"):
        context.expand(0, "group", torch.zeros(1, 48), (48,))


def test_work_groups_rows_by_slot() -> None:
    work = LoraWork()
    row_slots = np.asarray([3, NO_SLOT, 5, 3] + [7] * (MAX_ITEM_ROWS + 1))
    work.build(row_slots)
    assert work.item_slots == [3, 5]
    assert work.item_rows == 4
    assert work.item_gather.tolist() == [[0, 3, 3, 3], [2, 2, 2, 2]]
    assert work.item_valid.sum(1).tolist() == [2, 1]
    assert [(segment.slot, len(segment.rows)) for segment in work.segments] == [(7, MAX_ITEM_ROWS + 1)]
    work.build(np.full(2, NO_SLOT))
    assert not work.active


def test_idle_residents_are_dropped_after_a_while() -> None:
    residents = Residents()
    residents.place([(slot, 1) for slot in range(40)])
    for _ in range(PATIENCE):
        assert residents.place([(39, 1)]) == [39]
    assert residents.place([(39, 1)]) == [0]
    assert residents.size == 1


def test_a_new_version_takes_the_place_of_the_old() -> None:
    residents = Residents()
    residents.place([(0, 1), (1, 1)])
    generation = residents.generation
    assert residents.place([(0, 2), (1, 1)]) == [0, 1]
    assert residents.size == 2
    assert residents.generation != generation
