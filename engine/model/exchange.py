"""Exchanges what the ranks of a group compute in a forward pass: parts of products, what adapters make of
rows, and logits.

Where their GPUs read one another's memory, a product stays where it was computed and the next norm reads all
ranks' parts of it; what adapters make of rows is sent to all ranks' mailboxes, in steps of few rows; tokens
and logits are read and written where rank 0 has them. Elsewhere torch.distributed
sums and gathers. Every rank makes the same calls in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import Tensor

from engine.model.collectives import ShardGroup
from engine.model.product_parts import ProductParts
from engine.model.quantization import Linear
from engine.model.shards import vocabulary_part
from kernels.activation import Activation, Projection
from kernels.lora.mailbox import Mailbox
from kernels.peer_sum import PeerSlots, sum_norm, sum_parts
from kernels.workspace import Workspace

MAX_PART_ROWS = 8
"""Of a product that ranks write to one another in parts: four times as many bytes as the sum of two."""

Product = Callable[[Tensor, Tensor], None]
"""(hidden states [S, H], out [S, part of V]): computes a rank's part of the logits."""


class Exchange:
    """One rank's side."""

    def __init__(self, group: ShardGroup, vocab_size: int, workspace: Workspace) -> None:
        self.group = group
        self._workspace = workspace
        self._peers = group.peers
        self._vocab_size = vocab_size
        self._adapter_sums = 0
        self._slots: dict[int, PeerSlots] = {}
        self._mailboxes: list[Mailbox] = []
        self.first_id, self.end_id = vocabulary_part(vocab_size, group.shard)
        """This rank's part of the vocabulary."""

    @property
    def parts(self) -> Workspace:
        """Where products are taken from that the ranks sum, and their scales."""
        return self._workspace if self._peers is None else self._peers

    def product_parts(self, group: str, linears: Iterable[Linear], width: int) -> ProductParts:
        """Allocates memory for a product's parts: all ranks' on each, where GPUs write one another's."""
        peers = self._peers

        def take(numel: int) -> tuple[Tensor, tuple[int, ...]]:
            assert peers is not None
            slots = peers.slots(f"{group}.parts", numel)
            self._slots[slots.memory.data_ptr()] = slots
            return slots.memory, slots.copies

        return ProductParts(linears, width, take, 0 if peers is None else MAX_PART_ROWS)

    def begin(self) -> None:
        """Queues a wait until rank 0 has drawn the ids of this step and read the last one's logits."""
        if self._peers is not None:
            self._peers.meet()

    def embedded(self, residual_TH: Tensor) -> tuple[Tensor, Projection | None]:
        """Returns where the embedding is written, and what the first norm adds to the residual.

        Without the latter the embedding is in the residual, and `sum` is due.
        """
        if not self._reads(len(residual_TH)):
            return residual_TH, None
        residual_TH.zero_()
        part_TH = self.parts.take("embedded", tuple(residual_TH.shape), residual_TH.dtype)
        return part_TH, Projection(part_TH, is_part=True)

    def sum(self, partial: Tensor) -> None:
        """Replaces a tensor by its sum over the ranks."""
        self.group.sum(partial)

    def summed(self, partial: Projection) -> Projection:
        """Returns the sum of a row-parallel product over the ranks, or its parts for the norm to sum."""
        if self._reads(len(partial.y_TN)):
            return replace(partial, is_part=True)
        if partial.scale_T is not None:
            partial.y_TN.mul_(partial.scale_T[:, None])  # each rank's rows have scales of their own
        self.group.sum(partial.y_TN)
        return Projection(partial.y_TN)

    def norm(self, delta: Projection, weight_H: Tensor, eps: float, residual: Tensor, x: Activation) -> None:
        """Semantics: residual += the sum of the ranks' deltas; x = norm(residual)."""
        assert self._peers is not None
        scale_T = delta.scale_T
        if delta.parts is None:
            parts, num_parts = self._peers.addresses(delta.y_TN), None
        else:
            slots, num_parts = self._slots[delta.parts.y_PTN.data_ptr()], len(delta.parts.y_PTN)
            parts = slots.received if delta.parts.copies else slots.own
        sum_norm(
            parts,
            None if scale_T is None else self._peers.addresses(scale_T),
            self._peers.meeting,
            residual,
            weight_H,
            eps,
            x.x_TK,
            quantized=x.quantized_TK,
            quantized_scale_T=x.scale_T,
            num_parts=num_parts,
        )

    def adapter_parts(self, x_TK: Tensor, out_TN: Tensor, *, is_summed: bool) -> tuple[Tensor, Tensor]:
        """Returns the columns of a linear's input that this rank's adapters read, and of its output to which
        they add. `is_summed`: the linear is row-parallel, its input this rank's and its output all ranks'.
        """
        shard = self.group.shard
        if is_summed:
            return x_TK, out_TN[:, shard.part(out_TN.shape[1])]
        return x_TK[:, shard.part(x_TK.shape[1])], out_TN

    def part(self, shape: tuple[int, int]) -> Tensor:
        """Returns fp32 memory for this rank's part of a sum: other memory than the last one's, which other
        ranks may still read.
        """
        self._adapter_sums += 1
        return self.parts.take(f"shrunk-{self._adapter_sums % 2}", shape, torch.float32)

    def sum_parts(self, part: Tensor, out: Tensor) -> None:
        """Queues out = the sum of all ranks' parts; may run beside a product."""
        if self._reads(len(part)):
            assert self._peers is not None
            sum_parts(self._peers.addresses(part), self._peers.side_meeting, out)
        else:
            self.group.sum(out.copy_(part))

    def open_mailboxes(self, num_places: int, width: int) -> None:
        """Allocates two mailboxes, used in turn: between two uses of one there is a sum of a layer's product,
        where all ranks meet. All ranks call it.
        """
        if self._peers is not None:
            shape = (num_places, width)
            self._mailboxes = [self._peers.mailbox(f"mailbox-{turn}", shape) for turn in range(2)]

    def mailbox(self) -> Mailbox | None:
        """Returns the mailbox of the next sum over what adapters make of rows; None without peers."""
        if not self._mailboxes:
            return None
        self._adapter_sums += 1
        return self._mailboxes[self._adapter_sums % 2]

    def logits(self, hidden_SH: Tensor, product: Product) -> Tensor:
        """Returns [S, V] fp32 on rank 0, [S, 0] on the others. `product` is called once."""
        shape = len(hidden_SH), self._vocab_size
        if self._peers is not None:
            whole_SV = self._peers.take("logits", shape, torch.float32)
            at_rank_0_SV = self._peers.of_rank(whole_SV, 0)
            self._peers.meet()  # rank 0 has read those before
            product(hidden_SH, at_rank_0_SV[:, self.first_id : self.end_id])
            self._peers.meet()
            return whole_SV if self.group.shard.rank == 0 else whole_SV[:, :0]
        width = vocabulary_part(self._vocab_size, replace(self.group.shard, rank=0))[1]
        part_SV = self._workspace.take("logits.part", (len(hidden_SH), width), torch.float32)
        product(hidden_SH, part_SV[:, : self.end_id - self.first_id])
        return self._gathered(part_SV)

    def _gathered(self, part_SV: Tensor) -> Tensor:
        shard = self.group.shard
        if shard.rank:
            self.group.gather(part_SV, None)
            return part_SV[:, :0]
        take = self._workspace.take
        parts_RSV = take("logits.parts", (shard.size, *part_SV.shape), torch.float32)
        self.group.gather(part_SV, parts_RSV)
        whole_SV = take("logits.whole", (len(part_SV), self._vocab_size), torch.float32)
        for rank, gathered_SV in enumerate(parts_RSV):
            first, end = vocabulary_part(self._vocab_size, replace(shard, rank=rank))
            whole_SV[:, first:end].copy_(gathered_SV[:, : end - first])
        return whole_SV

    def _reads(self, num_rows: int) -> bool:
        return self._peers is not None and self._peers.reads(num_rows)
