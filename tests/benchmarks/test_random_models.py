"""Random bases and adapters: what they promise about their numbers."""

from queue import SimpleQueue

import numpy as np
import pytest
import torch

from benchmarks.library_pools import LibraryDevicePool, LibraryLoader, resident_bytes
from benchmarks.random_adapters import STRIDE, AdapterLibrary
from benchmarks.random_base import Outliers, Plain, random_base
from benchmarks.scorer import HostScorer
from benchmarks.shapes import shape
from engine.lora.pool import AdapterPool
from engine.lora.slots import SlotTable

TINY = shape("tiny")
CPU = torch.device("cpu")


def test_bases_of_one_seed_differ_in_their_quantisation_alone() -> None:
    ids = list(range(3, 40))
    exact, again, int8 = (
        HostScorer(random_base(TINY, quantization), {}, 64).logits(ids, None)
        for quantization in ("none", "none", "int8")
    )
    other = HostScorer(random_base(TINY, seed=1), {}, 64).logits(ids, None)
    assert torch.equal(exact, again)
    apart = (exact - int8).norm() / exact.norm()
    assert 0 < apart < 0.1
    assert (exact - other).norm() / exact.norm() > 1


def test_an_unknown_quantisation_is_refused() -> None:
    with pytest.raises(ValueError, match="fp3"):
        random_base(TINY, "fp3")


def test_outliers_are_heavy_tailed_weights_and_a_few_large_channels() -> None:
    weights, plain = Outliers(CPU, torch.float32), Plain(CPU, torch.float32)
    heavy, normal = weights.linear(512, 2048), plain.linear(512, 2048)

    def share_beyond(weight: torch.Tensor, deviations: float) -> float:
        return float((weight.abs() > deviations * weight.std()).float().mean())

    assert share_beyond(normal, 6) == 0
    assert share_beyond(heavy, 6) == pytest.approx(1 / 2000, rel=0.5)
    norm = weights.norm(2048)
    ordered = norm.sort().values
    assert float(ordered[:-8].median()) == pytest.approx(1, rel=0.1)
    assert float(ordered[-8:].median()) == pytest.approx(16, rel=0.3)  # 2 048 / 256 of them


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_adapters_are_different_finite_and_load(dtype: str) -> None:
    library = AdapterLibrary(TINY)
    found = library.register(5, [8, 16], dtype)
    assert [adapter.ref.rank for adapter in found] == [8, 16, 8, 16, 8]
    assert found == library.register(5, [8, 16], dtype)
    slabs = [library.packed(adapter.ref.digest).slab for adapter in found]
    assert len({slab.tobytes() for slab in slabs}) == 5
    assert (slabs[0] == slabs[2]).mean() < 0.5  # another window is other numbers nearly everywhere
    pool = AdapterPool(TINY, 5)
    for slot, adapter in enumerate(found):
        pool.load(slot, library.packed(adapter.ref.digest))  # refuses numbers that are not finite
    group = pool.group(1, "gate_up")[1]
    assert group is not None
    assert group.ranks == (16, 16)
    assert float(group.a.std()) == pytest.approx(0.02, rel=0.5)


def test_another_adapter_moves_the_output_another_way() -> None:
    library = AdapterLibrary(TINY)
    found = library.register(2, [16])
    model = random_base(TINY)
    scorer = HostScorer(model, {str(one.number): library.packed(one.ref.digest) for one in found}, 64)
    ids = list(range(5, 30))
    base, first, second = (scorer.logits(ids, name) for name in (None, "0", "1"))
    for one, other in ((base, first), (base, second), (first, second)):
        assert (one - other).norm() / one.norm() > 0.05


def test_an_adapter_of_rank_16_takes_its_true_bytes() -> None:
    library = AdapterLibrary(shape("llama-3.1-8b"))
    (adapter,) = library.register(1, [16])
    assert library.num_bytes(adapter) == 83_886_080
    assert np.dtype(np.uint16).itemsize * library.manifest(16, "bf16").num_elements == 83_886_080


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_a_device_pool_gets_every_adapter_its_own_bytes(dtype: str) -> None:
    """Through the engine's loader and slot table, in exactly the memory that was counted."""
    library = AdapterLibrary(TINY)
    found = library.register(4, [8, 16], dtype)
    capacity = resident_bytes(library, found)
    pool = LibraryDevicePool(library, TINY, 4, capacity, "cpu")
    done: SimpleQueue[tuple[int, str, str | None]] = SimpleQueue()
    loader = LibraryLoader(library, pool, lambda *report: done.put(report))
    slots = SlotTable(4, loader.start_load, loader)
    try:
        for adapter in found:
            slots.ensure_loaded(adapter.ref)
        reports = [done.get(timeout=20) for _ in found]
        assert all(error is None for _, _, error in reports), reports
        assert pool.num_bytes_used == capacity
        pool.check_integrity()
        with pool.launching():
            pass  # entries of the table are written when the next step is launched
        numbers = library.numbers(dtype)
        for slot, digest, _ in reports:
            adapter = library.find(digest)
            offset, rank = int(pool.table.offsets[0, 0, slot, 0]), adapter.ref.rank
            a_bytes = 3 * rank * TINY.hidden_size * numbers.itemsize
            there = pool.table.arena[offset : offset + a_bytes].numpy()
            window = numbers[adapter.number * STRIDE :].view(np.uint8)[:a_bytes]
            assert (there == window).all()
            assert pool.table.ranks[1, 2, slot].tolist()[:3] == [rank, rank, 0]
            scales = pool.table.arena[int(pool.table.offsets[1, 0, slot, -1]) :][: 4 * 3 * rank]
            assert scales.view(torch.float32).isfinite().all()
    finally:
        loader.close()
        pool.close()


def test_an_adapter_nobody_registered_is_not_there() -> None:
    with pytest.raises(KeyError):
        AdapterLibrary(TINY).packed("0" * 64)
