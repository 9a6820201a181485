"""The LoRA kernels on the device: every mix through one graph, ranks, types, odd widths, wild adapters."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from kernels.activation import Activation, Projection
from kernels.linear_fp8 import Fp8Weight, linear_fp8
from kernels.lora.device_cases import CASES, DeviceCase, DeviceRun, Slot, make_table
from kernels.lora.table import E4M3
from kernels.lora.tiling import MEDIUM_BUCKET
from kernels.lora_work import NO_SLOT
from kernels.rms_norm import rms_norm
from tests.kernels.lora_rows import Group, run_case, run_delta, run_group

pytestmark = pytest.mark.gpu

WIDTH_IN, WIDTHS = 256, (192, 64, 64)
SLOTS = (
    Slot((4, 4, 4)),
    Slot((8, 8, 8), E4M3),
    Slot((16, 0, 16)),
    None,
    Slot((64, 64, 64)),
    Slot((0, 0, 0)),
    Slot((5, 3, 0), E4M3),
    Slot((0, 128, 33)),
)
MIXES: dict[str, tuple[int, ...]] = {
    "none": (),
    "one among the base": (NO_SLOT,) * 5 + (4,) + (NO_SLOT,) * 5,
    "one alone": (1,),
    "all the same, few": (2,) * 9,
    "all the same": (4,) * 64,
    "all distinct": tuple(range(len(SLOTS))),
    "pairs and blocks": (0, 1, 2, 3, 4, 5, 6, 7, NO_SLOT) * 2 + (0, 1, 6) * 10,
    "pieces of a slot": (7,) * 33 + (1,) * 17,
    "only adapters that are empty": (5,) * 3 + (3,) * 2,
}


def captured(step: Callable[[], None]) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def padded(row_slots: tuple[int, ...], bucket: int) -> np.ndarray:
    slots = np.full(bucket, NO_SLOT)
    slots[: len(row_slots)] = row_slots
    return slots


@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_the_naive_statement(case: DeviceCase) -> None:
    run_case(case, "cuda", torch.bfloat16, tolerance=8e-3)


@pytest.mark.parametrize("case", [case for case in CASES if case.num_tokens <= MEDIUM_BUCKET], ids=str)
def test_a_delta_in_memory_of_its_own(case: DeviceCase, device: torch.device) -> None:
    run_delta(case, device, torch.bfloat16, tolerance=8e-3)


@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize("case", [case for case in CASES if case.num_tokens <= 256], ids=str)
def test_parts_of_a_groups_ranks_are_summed(case: DeviceCase, size: int, device: torch.device) -> None:
    run_group(case, size, device, torch.bfloat16, tolerance=8e-3)


def test_expand_waits_for_the_words_of_all_ranks(device: torch.device) -> None:
    case = DeviceCase(
        2048, (2048, 256), tuple(Slot((16, 16)) for _ in range(32)), (*tuple(range(32)), 3, 3), bucket=40
    )
    group = Group.make(case, 2, device, torch.bfloat16)
    expected = group.exchange()[0]
    group.shrink(0)
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        out = group.expand(0)
        expanded = beside.record_event()
    time.sleep(0.05)
    assert not expanded.query(), "the second rank has sent nothing"
    group.shrink(1)
    beside.synchronize()
    assert torch.equal(out, expected)


@pytest.mark.parametrize("bucket", [64, 320])
def test_one_graph_serves_every_mix(bucket: int) -> None:
    """Captured with no work at all; two layers, so that scratch memory is used in turn."""
    table = make_table(SLOTS, WIDTH_IN, WIDTHS, "cuda", num_layers=2)
    run, eager = (DeviceRun(table, WIDTH_IN, bucket) for _ in range(2))
    reference = DeviceRun(make_table(SLOTS, WIDTH_IN, WIDTHS, num_layers=2), WIDTH_IN, bucket)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(bucket, WIDTH_IN, generator=generator).to("cuda", torch.bfloat16)
    base = torch.randn(bucket, sum(WIDTHS), generator=generator).to("cuda", torch.bfloat16)
    scale = (0.5 + torch.rand(bucket, generator=generator)).cuda()
    out = torch.empty_like(base)
    there = torch.empty_like(x)

    def step() -> None:
        for layer in range(2):
            run.add(there, out, WIDTHS, scale, layer)

    run.begin(padded((), bucket))
    graph = captured(step)
    repeated = {f"{name}, repeated": mix * (bucket // len(mix)) for name, mix in MIXES.items() if mix}
    for name, mix in {**MIXES, **repeated}.items():
        slots = padded(mix[:bucket], bucket)
        bare = torch.from_numpy(slots < 0)
        there.copy_(x)
        there[bare.cuda()] = float("nan")
        out.copy_(base)
        run.begin(slots)
        graph.replay()
        expected = base.clone()
        eager.begin(slots)
        for layer in range(2):
            eager.add(there, expected, WIDTHS, scale, layer)
        assert torch.equal(out, expected), name
        near = base.cpu()
        reference.begin(slots)
        for layer in range(2):
            reference.add(there.cpu(), near, WIDTHS, scale.cpu(), layer)
        # Tensor cores take shrunk values in bf16: what that costs goes with what is added to a row.
        added = (near.float() - base.cpu().float()).abs().amax(1, keepdim=True)
        assert ((out.cpu().float() - near.float()).abs() <= 2e-2 * (added + near.float().abs())).all(), name
        assert torch.equal(out.cpu()[bare], base.cpu()[bare]), name
        assert not run.lora._scratch.counters.any(), name


@pytest.mark.parametrize("wild_rows", [1, 2, 3, 20, 100])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
def test_a_wild_adapter_leaves_batch_mates_bit_equal(wild_rows: int, value: float) -> None:
    bucket = 300 if wild_rows == 100 else 64
    slots = padded((0, 4, 4) + (2,) * wild_rows + (0, 4, 6, NO_SLOT, 4, 1, 7, 7, 7), bucket)
    mine = torch.from_numpy(slots == 2).cuda()
    x = torch.randn(bucket, WIDTH_IN, device="cuda").bfloat16()
    base = torch.randn(bucket, sum(WIDTHS), device="cuda").bfloat16()
    outs = []
    for spoil in ({2: value}, {}):
        run = DeviceRun(make_table(SLOTS, WIDTH_IN, WIDTHS, "cuda", spoil=spoil), WIDTH_IN, bucket)
        run.begin(slots)
        out = base.clone()
        run.add(x, out, WIDTHS)
        outs.append(out)
        # What the wild adapter left in scratch memory must not reach the next step's rows.
        after = padded((0, 4, 4, NO_SLOT, 7, 7, 7), bucket)
        run.begin(after)
        out = base.clone()
        run.add(x, out, WIDTHS)
        outs.append(out)
    wild, wild_after, tame, tame_after = outs
    assert not wild[mine, :192].isfinite().all(1).any()
    assert torch.equal(wild[~mine], tame[~mine])
    assert torch.equal(wild_after, tame_after)


@pytest.mark.parametrize("bucket", [16, 64, 320])
@pytest.mark.parametrize("invariant", [False, True])
def test_a_rows_bits_do_not_depend_on_its_mates(bucket: int, invariant: bool) -> None:
    """A slot's rows alone, among others, and elsewhere in the batch: the same bits, as many rows it has."""
    table = make_table(SLOTS, WIDTH_IN, WIDTHS, "cuda")
    run = DeviceRun(table, WIDTH_IN, bucket, batch_invariant=invariant)
    rng = np.random.default_rng(bucket)
    x = torch.randn(bucket, WIDTH_IN, device="cuda").bfloat16()
    for count in (1, 2, 5, bucket // 3):
        for slot in (0, 1, 4):
            values = []
            for others in (NO_SLOT, 2, 6, 7):
                slots = np.full(bucket, others)
                places = rng.permutation(bucket)[:count]
                places.sort()
                slots[places] = slot
                mixed = torch.randn_like(x)
                mixed[places] = x[:count]
                out = torch.zeros(bucket, sum(WIDTHS), device="cuda", dtype=torch.bfloat16)
                run.begin(slots)
                run.add(mixed, out, WIDTHS)
                values.append(out[places])
            assert all(torch.equal(value, values[0]) for value in values), (slot, count)


def test_batch_invariant_bits_are_those_of_a_lone_row() -> None:
    table = make_table(SLOTS, WIDTH_IN, WIDTHS, "cuda")
    x = torch.randn(320, WIDTH_IN, device="cuda").bfloat16()
    wanted = None
    for bucket, count in ((1, 1), (64, 1), (64, 2), (64, 40), (320, 1), (320, 200)):
        run = DeviceRun(table, WIDTH_IN, bucket, batch_invariant=True)
        run.begin(padded((4,) * count, bucket))
        out = torch.zeros(bucket, sum(WIDTHS), device="cuda", dtype=torch.bfloat16)
        run.add(x[:bucket], out, WIDTHS)
        wanted = out[0].clone() if wanted is None else wanted
        assert torch.equal(out[0], wanted), (bucket, count)


def test_a_slot_that_changes_between_replays_is_noticed() -> None:
    """The table's addresses are in the graph, its contents are not."""
    table = make_table(SLOTS, WIDTH_IN, WIDTHS, "cuda")
    run = DeviceRun(table, WIDTH_IN, 8)
    x = torch.randn(8, WIDTH_IN, device="cuda").bfloat16()
    out = torch.zeros(8, sum(WIDTHS), device="cuda", dtype=torch.bfloat16)
    graph = captured(lambda: run.add(x, out, WIDTHS))
    run.begin(padded((3, 3, 3), 8))
    out.zero_()
    graph.replay()
    assert not out.any()
    table.offsets[:, :, 3], table.ranks[:, :, 3] = table.offsets[:, :, 4], table.ranks[:, :, 4]
    graph.replay()
    filled = out.clone()
    assert filled[:3].any()
    run.begin(padded((4, 4, 4), 8))
    out.zero_()
    graph.replay()
    assert torch.equal(out, filled)
    table.clear(4)
    out.zero_()
    graph.replay()
    assert not out.any()


@pytest.mark.parametrize("bucket", [1, 16, 64])
def test_adapters_follow_a_product_on_one_stream(bucket: int, device: torch.device) -> None:
    """Norms, products and adapters of six layers in one graph, where they overlap, and with a wait after each
    launch: the same bits, again and again.
    """
    width, num_layers = 4096, 6
    table = make_table(
        (Slot((16,)), Slot((9,), E4M3), None, Slot((64,))), width, (width,), device, num_layers
    )
    run = DeviceRun(table, width, bucket, width_out=width)
    weights = [
        Fp8Weight.quantize(torch.randn(width, width, device=device).bfloat16() / 64, None)
        for _ in range(num_layers)
    ]
    start = torch.randn(bucket, width, device=device).bfloat16()
    residual, x, y = (torch.empty_like(start) for _ in range(3))
    quantized = torch.empty(bucket, width, device=device, dtype=torch.float8_e4m3fn)
    scale_T = torch.empty(bucket, device=device)
    ones = torch.ones(width, device=device).bfloat16()

    def step(after_each: Callable[[], None]) -> None:
        residual.copy_(start)
        update: Projection | None = None
        for layer in range(num_layers + 1):
            rms_norm(
                residual if update is None else update.y_TN,
                ones,
                1e-5,
                x,
                None if update is None else residual,
                scale_T=None if update is None else update.scale_T,
                delta=None if update is None else update.delta,
                quantized=quantized,
                quantized_scale_T=scale_T,
            )
            after_each()
            if layer < num_layers:
                inputs = Activation(x, quantized, scale_T)
                update = linear_fp8(inputs, weights[layer], y, lets_in_late=True)
                after_each()
                update = replace(update, delta=run.lora.delta(layer, "group", x, (width,)))
                after_each()

    run.begin(padded((), bucket))
    graph = captured(lambda: step(lambda: None))
    for mix in ((0,), (0, 1, 2, 3, NO_SLOT) * 12, (3,) * 20, (NO_SLOT, 1) * 7):
        for _ in range(20):
            start.normal_()
            run.begin(padded(mix[:bucket], bucket))
            step(torch.cuda.synchronize)
            expected = residual.clone(), x.clone()
            run.begin(padded(mix[:bucket], bucket))
            graph.replay()
            assert torch.equal(residual, expected[0])
            assert torch.equal(x, expected[1])
            assert residual.isfinite().all()


def test_shrink_beside_the_base_on_another_stream() -> None:
    """Captured as the engine may: shrink on a side stream, joined before expand."""
    table = make_table(SLOTS, WIDTH_IN, WIDTHS, "cuda")
    run = DeviceRun(table, WIDTH_IN, 64)
    x = torch.randn(64, WIDTH_IN, device="cuda").bfloat16()
    weight = torch.randn(WIDTH_IN, sum(WIDTHS), device="cuda").bfloat16()
    out = torch.empty(64, sum(WIDTHS), device="cuda", dtype=torch.bfloat16)
    side = torch.cuda.Stream()

    def step() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run.lora.shrink(0, "group", x)
        torch.mm(x, weight, out=out)
        torch.cuda.current_stream().wait_stream(side)
        run.lora.expand(0, "group", out, WIDTHS)

    run.begin(padded((), 64))
    graph = captured(step)
    for mix in MIXES.values():
        run.begin(padded(mix, 64))
        graph.replay()
        expected = torch.mm(x, weight)
        run.add(x, expected, WIDTHS)
        assert torch.equal(out, expected)
