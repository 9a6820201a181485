"""Allocates memory that the ranks' GPUs read and write directly, where all of them are linked.

torch's symmetric memory: every rank allocates the same buffers in the same order, and gets the others'
addresses.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch._C._distributed_c10d import _register_process_group, _SymmetricMemory
from torch.distributed import _symmetric_memory as symmetric_memory

from engine.model.shards import Shard
from kernels.lora.mailbox import Mailbox
from kernels.peer_sum import MAX_PROGRAMS, Addresses, Meeting, PeerSlots, meet
from kernels.workspace import Workspace

MAX_READ_ROWS = 8192
"""Rows that a rank reads of all others together in one sum. Beyond, and with more than two ranks, it is less
to read if each rank sums a part of the rows and hands it out, as NCCL does."""


def are_linked(group: Any, device: torch.device, size: int) -> bool:
    """Returns whether each rank's GPU can read all others': the same on all ranks. Rank r has GPU r."""
    own = device.index
    linked = all(torch.cuda.can_device_access_peer(own, other) for other in range(size) if other != own)
    everywhere = torch.tensor([int(linked)], device=device)
    dist.all_reduce(everywhere, dist.ReduceOp.MIN, group=group)
    return bool(everywhere.item())


class PeerMemory(Workspace):
    """Scratch tensors by name, as in a workspace. All ranks take the same ones in the same order."""

    def __init__(self, name: str, group: Any, shard: Shard, device: torch.device) -> None:
        """`name` is one that no other group of this process had: torch remembers groups by it."""
        super().__init__(device)
        # Multicast needs a fabric manager that hands out groups; nothing here uses it.
        os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
        _register_process_group(name, group)
        self._name, self._size, self._rank = name, shard.size, shard.rank
        self._handles: dict[int, Any] = {}
        self._addresses: dict[int, Addresses] = {}
        self.meeting = self._new_meeting("signals", shard)
        """Of kernels of the steps' own stream."""
        self.side_meeting = self._new_meeting("side signals", shard)
        """Of kernels that run beside them."""

    def _new_meeting(self, name: str, shard: Shard) -> Meeting:
        signals = self._zeros(name, (MAX_PROGRAMS, shard.size), torch.int32)
        counts = torch.zeros(MAX_PROGRAMS, dtype=torch.int32, device=self.device)
        return Meeting(shard.rank, self.addresses(signals), counts)

    def mailbox(self, name: str, shape: tuple[int, int]) -> Mailbox:
        """Allocates a mailbox for rows and ranks of A, numbered by the meetings: between two of its uses all
        ranks must meet, and before the first.
        """
        inbox_RPW = self._zeros(name, (self._size, *shape), torch.int64)
        own = self._rank * inbox_RPW[0].nbytes
        outboxes = [address + own for address in self.addresses(inbox_RPW)]
        return Mailbox(torch.tensor(outboxes, device=self.device), inbox_RPW, self.meeting.counts)

    def slots(self, name: str, numel: int) -> PeerSlots:
        """Allocates a slot of so many fp32 numbers for each rank, on all ranks."""
        taken = self.take(name, (self._size, numel), torch.float32)
        addresses, stride = self.addresses(taken), taken[0].nbytes
        return PeerSlots(
            taken[self._rank],
            tuple(at + self._rank * stride for rank, at in enumerate(addresses) if rank != self._rank),
            tuple(addresses[self._rank] + rank * stride for rank in range(self._size)),
            tuple(at + rank * stride for rank, at in enumerate(addresses)),
        )

    def _zeros(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Takes memory that is zero on all ranks before one of them writes to another's."""
        taken = self.take(name, shape, dtype).zero_()
        torch.cuda.synchronize(self.device)
        self._handles[taken.data_ptr()].barrier()
        torch.cuda.synchronize(self.device)
        return taken

    def meet(self) -> None:
        """Queues a wait until all ranks have come here: what they queued before is then done."""
        meet(self.meeting)

    def addresses(self, taken: Tensor) -> Addresses:
        """Returns where the ranks have what was taken under the same name."""
        return self._addresses[taken.data_ptr()]

    def of_rank(self, taken: Tensor, rank: int) -> Tensor:
        """Returns a rank's tensor of the same name, shape and type."""
        found: Tensor = self._handles[taken.data_ptr()].get_buffer(rank, taken.shape, taken.dtype)
        return found

    def reads(self, num_rows: int) -> bool:
        """Returns whether sums of so many rows are read from the other ranks, rather than sent around."""
        return self._size == 2 or num_rows * (self._size - 1) <= MAX_READ_ROWS

    def _allocate(self, numel: int, dtype: torch.dtype) -> Tensor:
        buffer = symmetric_memory.empty(numel, dtype=dtype, device=self.device)
        handle = _SymmetricMemory.rendezvous(buffer, self._name)
        self._handles[buffer.data_ptr()] = handle
        self._addresses[buffer.data_ptr()] = tuple(handle.buffer_ptrs)
        return buffer
