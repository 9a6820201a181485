"""Computes the fewest bytes of device memory that a step must read, which bounds its time from below.

    per step     all linear weights, the output head if tokens are drawn or scored, the keys and values that
                 each of its rows attends to, each distinct adapter of its rows once

Activations, embeddings and logits are left out, so it is a lower bound. `benchmarks.floor` computes the same
from formulas, for shapes that are not loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Protocol

from engine.batch import NO_SLOT, Batch
from engine.lora.slots import SlotTable

_LEN, _SLOT = attrgetter("computed_len"), attrgetter("slot")


class DecodingRequest(Protocol):
    """The request of a row in a planned step."""

    @property
    def computed_len(self) -> int: ...
    @property
    def slot(self) -> int: ...


@dataclass(frozen=True, slots=True)
class ByteFloor:
    """Byte counts of one loaded model."""

    weight_bytes: int
    """Of all linear layers."""
    head_bytes: int
    token_bytes: int
    """Of one token's keys and values in all layers."""
    slot_bytes: Sequence[int] = ()
    """What each slot's adapter takes; empty where the slot table knows."""

    def of(self, batch: Batch, requests: Sequence[DecodingRequest], slots: SlotTable) -> int:
        """Returns the bytes that the step must read; `requests` are parallel to its shares."""
        total = self.weight_bytes + self.token_bytes * sum(map(_LEN, requests))
        if batch.scored or any(share.samples for share in batch.scheduled):
            total += self.head_bytes
        used = set(map(_SLOT, requests))
        used.update([share.slot for share in batch.placeholders])
        used.discard(NO_SLOT)
        if self.slot_bytes:
            return total + sum(map(self.slot_bytes.__getitem__, used))
        return total + sum(slots.slots[slot].num_bytes for slot in used)
