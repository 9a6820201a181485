"""Captures on a GPU, whatever else the process holds."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
from torch import Tensor

from engine.device.graphs import Bucket, StepGraphs

pytestmark = pytest.mark.gpu


class _Gone:
    """An engine that nobody refers to any more, but itself."""

    def __init__(self, graphs: StepGraphs) -> None:
        self.graphs = graphs
        self.itself = self


def _doubling(device: torch.device) -> tuple[StepGraphs, Tensor]:
    x_T = torch.arange(8.0, device=device)

    def forward(bucket: Bucket) -> Tensor:
        litter = [[] for _ in range(100)]  # enough for a collection, with the threshold below
        assert litter
        return x_T[: bucket.num_tokens] * 2

    return StepGraphs(forward, [1, 8], [8]), x_T


def test_garbage_that_holds_graphs_does_not_spoil_a_capture(device: torch.device) -> None:
    threshold = gc.get_threshold()
    graphs, x_T = _doubling(device)
    old, _ = _doubling(device)
    old.capture(old.buckets(False))
    gc.collect()
    try:
        gc.set_threshold(10)
        _Gone(old)
        del old
        graphs.capture(graphs.buckets(False))
    finally:
        gc.set_threshold(*threshold)
    for bucket in graphs.buckets(False):
        torch.testing.assert_close(graphs.run(bucket), x_T[: bucket.num_tokens] * 2)
    assert graphs.counters.eager_steps == 0
    assert gc.isenabled()


def test_a_capture_is_not_spoiled_by_what_other_threads_do_on_the_device(device: torch.device) -> None:
    """They allocate, copy and wait, as adapters are loaded."""
    graphs, x_T = _doubling(device)
    ended = threading.Event()
    rounds = []

    def load() -> None:
        stream = torch.cuda.Stream()
        host = torch.ones(1 << 20).pin_memory()
        while not ended.is_set():
            with torch.cuda.stream(stream):
                copied = torch.empty(1 << 20, device=device).copy_(host, non_blocking=True)
                mark = torch.cuda.Event(blocking=True)
                mark.record(stream)
            while not mark.query():
                pass
            mark.synchronize()
            del copied
            torch.cuda.empty_cache()  # so that the next allocation asks the driver
            rounds.append(1)

    loading = threading.Thread(target=load)
    loading.start()
    try:
        for _ in range(20):
            graphs.capture(graphs.buckets(False))
    finally:
        ended.set()
        loading.join()
    assert len(rounds) > 5
    for bucket in graphs.buckets(False):
        torch.testing.assert_close(graphs.run(bucket), x_T[: bucket.num_tokens] * 2)


def test_a_step_runs_in_a_larger_graph_until_its_own_is_captured(device: torch.device) -> None:
    graphs, x_T = _doubling(device)
    graphs.capture([Bucket(8, True, False), Bucket(8, False, False)])
    graphs.postpone([Bucket(1, True, False)])
    assert graphs.bucket(1, True, False, 1) == Bucket(8, True, False)
    torch.testing.assert_close(graphs.run(graphs.bucket(1, True, False, 1))[:1], x_T[:1] * 2)
    graphs.capture_next()
    assert graphs.bucket(1, True, False, 1) == Bucket(1, True, False)
    torch.testing.assert_close(graphs.run(graphs.bucket(1, True, False, 1)), x_T[:1] * 2)
    assert graphs.counters.eager_steps == 0
