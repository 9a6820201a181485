"""Describes how to build a GPU's runner: its KV cache, the limits of a batch, how steps are launched."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """The KV cache of a runner."""

    num_blocks: int
    """The null block included."""
    block_size: int
    """Tokens of a block."""
    dtype: torch.dtype | None = None
    """Of keys and values. None: the model's."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The largest batch of a runner."""

    max_rows: int
    """Sequences."""
    max_len: int
    """Tokens of one sequence, prompt and completion together."""
    max_batch_tokens: int
    """Tokens of one step."""


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """How a runner launches steps."""

    cuda_graphs: bool = True
    """False launches steps kernel by kernel."""
    max_graph_rows: int | None = None
    """Decode steps with more rows are launched kernel by kernel too. None: every size is captured."""
    batch_invariant: bool = False
    """Gives every product the same number of rows."""
    mask_threads: int = 1
    """Threads that fill the masks of constrained rows."""
