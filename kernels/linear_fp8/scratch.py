"""Holds the memory in which blocks of one product leave partial sums for each other.

One buffer and one set of counters per device. Products on one stream take turns, so they share it; a second
stream must not run FP8 products at the same time.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

NUM_PARTIALS = 8 << 20
"""fp32 numbers. The largest cut needs 2 programs' worth of tiles on each of 132 multiprocessors, 2.2 million
numbers; the split-K kernel keeps its parts under this bound."""
NUM_COUNTERS = 1 << 14


@cache
def scratch(device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns (partial sums, counters); the counters are zero between products: the last block
    resets them.
    """
    if device.type == "cuda":
        # Zeros written during a capture are written at every replay, and not before the first.
        assert not torch.cuda.is_current_stream_capturing(), "run one FP8 product before capturing"
    partial = torch.empty(NUM_PARTIALS, dtype=torch.float32, device=device)
    return partial, torch.zeros(NUM_COUNTERS, dtype=torch.int32, device=device)
