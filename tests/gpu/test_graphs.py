"""Captures on a GPU, whatever else the process holds."""

from __future__ import annotations

import gc

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
