"""Describes the memory through which shrink sends expand what it computed: to all ranks of a tensor-parallel
group, or to an expand that waits for nothing else.

Each rank has a part of every A's inputs, and the sum of what their parts make of a row is the row's. A number
travels in one word with the number of the exchange, and a word is written at once: who reads the number
it waits for has the value that belongs to it. No rank waits before it sends, no kernel stands between
shrink and expand, and expand may run while kernels that were launched before shrink still do.

Source: the words of NCCL's LL protocol.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Mailbox:
    """One rank's side. Memory of an exchange may be used again once all ranks have met since its expand."""

    outboxes_R: Tensor
    """int64, by rank: the address where it reads what this rank sends, laid out as `inbox` of one sender."""
    inbox_RPW: Tensor
    """int64, by sender, place of a row and rank of A: number of the exchange in the upper half, fp32 in the
    lower."""
    number: Tensor
    """int32; the first is the number of the exchange: the same on all ranks, another one for every use of
    this memory, and never that of memory that has not been used."""
