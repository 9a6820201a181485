"""Computes sums of tensors over the ranks of a tensor-parallel group, and gathers them on rank 0."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch import distributed as dist

from engine.model.shards import Shard


class ShardGroup:
    """One rank's connection to the others. Every rank calls the same methods in the same order.

    When a rank is gone, or later than the group's time limit, calls raise RuntimeError on the others.
    """

    def __init__(self, shard: Shard, group: Any) -> None:
        """`group` is a torch.distributed process group of `shard.size` processes."""
        self.shard = shard
        self._group = group

    def sum(self, partial: Tensor) -> None:
        """Replaces a contiguous tensor by its sum over the ranks, the same bits on all of them."""
        dist.all_reduce(partial, group=self._group)

    def broadcast(self, tensor: Tensor) -> None:
        """Replaces a tensor by rank 0's."""
        dist.broadcast(tensor, src=0, group=self._group)

    def gather(self, part: Tensor, parts: Tensor | None) -> None:
        """Fills `parts` [size, ...] on rank 0 with the ranks' parts; on the others it is None."""
        dist.gather(part, None if parts is None else [*parts.unbind()], dst=0, group=self._group)
