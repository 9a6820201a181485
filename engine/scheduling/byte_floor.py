"""The least that steps have to read of the device's memory, of which bandwidth is what bounds them.

    of a step    every linear's weights, the output head where tokens are drawn or scored, the keys and values
                 of what each of its rows attends to, each distinct adapter of its rows once

Activations, embeddings and logits are left out, so it is a floor. Owns the sum. Refuses to know tensors, and
how long steps take. `benchmarks.floor` has the same by formula, for shapes that are not loaded.
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
    """A row's request, of a step that is planned."""

    @property
    def computed_len(self) -> int: ...
    @property
    def slot(self) -> int: ...


@dataclass(frozen=True, slots=True)
class ByteFloor:
    """Of one model, as it is held."""

    weight_bytes: int
    """Of all linears."""
    head_bytes: int
    token_bytes: int
    """Of one token's keys and values in all layers."""
    slot_bytes: Sequence[int] = ()
    """What adapters take, by slot; empty where the slot table knows."""

    def of(self, batch: Batch, requests: Sequence[DecodingRequest], slots: SlotTable) -> int:
        """Bytes that the step reads at least; `requests` are parallel to its shares."""
        total = self.weight_bytes + self.token_bytes * sum(map(_LEN, requests))
        if batch.scored or any(share.samples for share in batch.scheduled):
            total += self.head_bytes
        used = set(map(_SLOT, requests))
        used.discard(NO_SLOT)
        if self.slot_bytes:
            return total + sum(map(self.slot_bytes.__getitem__, used))
        return total + sum(slots.slots[slot].num_bytes for slot in used)
