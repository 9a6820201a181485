"""Adapters on the device: every mix of rows, ranks and absent modules; one tenant's NaN stays in its rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from kernels.lora import LoraContext
from kernels.lora.cases import CASES, Case, ListPool, random_group
from kernels.lora_work import MAX_ITEM_ROWS, NO_SLOT, SlotGroup
from tests.gpu.closeness import assert_near

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poisoned")]

WIDTH_IN, WIDTHS = 256, (192, 64, 64)
RANKS = ((4, 4, 4), (8, 8, 8), (16, 0, 16), (0, 32, 0), (64, 64, 64), (0, 0, 0), (5, 3, 0), (32, 16, 8))
MIXES: dict[str, tuple[int, ...]] = {
    "none": (NO_SLOT,) * 12,
    "one among the base": (NO_SLOT,) * 5 + (3,) + (NO_SLOT,) * 5,
    "one alone": (4,),
    "all the same, few": (2,) * MAX_ITEM_ROWS,
    "all the same, many": (4,) * 40,
    "all distinct": tuple(range(len(RANKS))),
    "decodes of all": (0, 1, 2, 3, 4, 5, 6, 7, NO_SLOT) * 6,
    "chunks side by side": (0,) * 30 + (1,) * 5 + (4,) * 50 + (NO_SLOT,) * 9 + (7,) * 20,
    "chunks interleaved": (0, 4, NO_SLOT, 6) * 15 + (1, 2, 3),
    "only an empty adapter": (5,) * 3,
}


def at(pool: ListPool, device: torch.device) -> ListPool:
    def move(group: SlotGroup | None) -> SlotGroup | None:
        if group is None or group.a is None:
            return group
        b = tuple(None if matrix is None else matrix.to(device) for matrix in group.b)
        return SlotGroup(group.a.to(device), b, group.ranks, group.scales)

    return ListPool({key: [move(group) for group in slots] for key, slots in pool.groups.items()})


def apply(
    context: LoraContext, x: torch.Tensor, base: torch.Tensor, row_slots: Sequence[int], widths: Sequence[int]
) -> torch.Tensor:
    context.begin(np.asarray(row_slots))
    out = base.clone()
    context.shrink(0, "group", x)
    context.expand(0, "group", out, widths)
    return out


def compare(case: Case, device: torch.device) -> None:
    pool = case.pool()
    x, base = case.inputs()
    expected = apply(LoraContext(pool), x, base, case.row_slots, case.widths)
    context = LoraContext(at(pool, device), device)
    got = apply(context, x.to(device), base.to(device), case.row_slots, case.widths)
    assert_near(got, expected, 1e-5)
    bare = [row for row, slot in enumerate(case.row_slots) if slot == NO_SLOT or not any(case.ranks[slot])]
    assert torch.equal(got[bare].cpu(), base[bare])
    again = apply(context, x.to(device), base.to(device), case.row_slots, case.widths)
    assert torch.equal(again, got)


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case.width_in}-{case.widths}-{len(case.row_slots)}rows"
)
def test_shared_cases(case: Case, device: torch.device) -> None:
    compare(case, device)


@pytest.mark.parametrize("mix", MIXES)
def test_mixes(mix: str, device: torch.device) -> None:
    compare(Case(WIDTH_IN, WIDTHS, RANKS, MIXES[mix]), device)


@pytest.mark.parametrize("rank", [4, 8, 12, 16, 24, 32, 48, 64])
@pytest.mark.parametrize("num_rows", [1, 7, 40])
def test_ranks(rank: int, num_rows: int, device: torch.device) -> None:
    compare(Case(WIDTH_IN, WIDTHS, ((rank, rank, rank), (4, 0, 64)), (0,) * num_rows + (1, NO_SLOT)), device)


def test_half_precision_stays_near(device: torch.device) -> None:
    case = Case(WIDTH_IN, WIDTHS, RANKS, MIXES["chunks interleaved"])
    pool = case.pool()
    x, base = (tensor.bfloat16() for tensor in case.inputs())
    expected = apply(LoraContext(pool), x.float(), base.float(), case.row_slots, case.widths)
    got = apply(
        LoraContext(at(pool, device), device), x.to(device), base.to(device), case.row_slots, case.widths
    )
    assert_near(got, expected, 2e-2)


def test_one_context_over_many_steps(device: torch.device) -> None:
    """Slots come, go and change versions while the stacks on the device are kept."""
    rng = np.random.default_rng(3)

    def adapter(seed: int) -> SlotGroup | None:
        ranks = [int(rank) for rank in rng.choice([0, 4, 8, 16, 64], len(WIDTHS))]
        return random_group(ranks, [0.5, 2.0, 1.0], WIDTH_IN, WIDTHS, seed)

    pool = ListPool({(0, "group"): [adapter(slot) for slot in range(6)]})
    there = at(pool, device)
    here, context = LoraContext(pool), LoraContext(there, device)
    for step in range(120):
        if step % 7 == 3:
            slot = int(rng.integers(6))
            pool.groups[0, "group"][slot] = adapter(1000 + step)
            there.groups[0, "group"][slot] = at(pool, device).groups[0, "group"][slot]
            pool.versions[slot] += 1
            there.versions[slot] += 1
        num_rows = int(rng.integers(1, 40))
        row_slots = rng.integers(-1, rng.integers(1, 7), num_rows).tolist()
        x, base = torch.randn(num_rows, WIDTH_IN), torch.randn(num_rows, sum(WIDTHS))
        got = apply(context, x.to(device), base.to(device), row_slots, WIDTHS)
        assert_near(got, apply(here, x, base, row_slots, WIDTHS), 1e-5)


@pytest.mark.parametrize("wild_rows", [1, 3, 20])
@pytest.mark.parametrize("damage", ["overflow", "nan", "inf in b"])
def test_a_wild_adapter_leaves_batch_mates_bit_equal(
    wild_rows: int, damage: str, device: torch.device
) -> None:
    case = Case(64, (48, 16), ((8, 8), (8, 4), (4, 8), (16, 0)), (0,))
    pool, tame = at(case.pool(), device), at(case.pool(), device)
    wild = pool.groups[0, "group"][1]
    assert wild is not None
    assert wild.a is not None
    assert wild.b[0] is not None
    if damage == "overflow":
        wild.a.fill_(3e38)
        wild.b[0].fill_(3e38)
    elif damage == "nan":
        wild.a.fill_(float("nan"))
    else:
        wild.b[0].fill_(float("inf"))
    row_slots = [0, 2] + [1] * wild_rows + [0, NO_SLOT, 2] + [3] * 12
    x = torch.randn(len(row_slots), 64, device=device)
    base = torch.randn(len(row_slots), 64, device=device)
    context = LoraContext(pool, device)
    got = apply(context, x, base, row_slots, case.widths)
    clean = apply(LoraContext(tame, device), x, base, row_slots, case.widths)
    damaged = torch.tensor([slot == 1 for slot in row_slots], device=device)
    assert not got[damaged].isfinite().all(1).any()
    assert torch.equal(got[~damaged], clean[~damaged])
    # Its numbers are still in scratch memory and in the stacks: the next step must not meet them.
    after = [0, 2, NO_SLOT, 3, 0] + [NO_SLOT] * (len(row_slots) - 5)
    got = apply(context, x, base, after, case.widths)
    assert_near(got, apply(LoraContext(tame, device), x, base, after, case.widths), 1e-6)
