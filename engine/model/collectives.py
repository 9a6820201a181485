"""Connects the ranks of a tensor-parallel group: sums over them, and what rank 0 collects and hands out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch import distributed as dist

from engine.model.shards import Shard

if TYPE_CHECKING:
    from engine.model.peer_memory import PeerMemory


class ShardGroup:
    """One rank's connection to the others. Every rank calls the same methods in the same order.

    When a rank is gone, or later than the group's time limit, calls raise RuntimeError on the others.
    """

    def __init__(self, shard: Shard, group: Any, peers: PeerMemory | None = None) -> None:
        """`group` is a torch.distributed process group of `shard.size` processes.

        `peers`: memory of GPUs that read one another's. Sums, ids and logits then pass through it.
        """
        self.shard = shard
        self.peers = peers
        self._group = group

    def sum(self, partial: Tensor) -> None:
        """Replaces a contiguous tensor by its sum over the ranks, the same bits on all of them."""
        dist.all_reduce(partial, group=self._group)

    def shared_ids(self, count: int, device: torch.device) -> Tensor:
        """Returns int32 [count] of zeros that rank 0 writes and all ranks read, after `share`."""
        if self.peers is None:
            return torch.zeros(count, dtype=torch.int32, device=device)
        own = self.peers.take("ids", (count,), torch.int32)
        own.zero_()
        return self.peers.of_rank(own, 0)

    def share(self, ids: Tensor) -> None:
        """Replaces `shared_ids` by rank 0's, unless they are in its memory anyway."""
        if self.peers is None:
            dist.broadcast(ids, src=0, group=self._group)

    def gather(self, part: Tensor, parts: Tensor | None) -> None:
        """Fills `parts` [size, ...] on rank 0 with the ranks' parts; on the others it is None."""
        dist.gather(part, None if parts is None else [*parts.unbind()], dst=0, group=self._group)
