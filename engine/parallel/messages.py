"""Defines the messages between rank 0 and the other ranks. Both ends are of one release: nothing here is
kept compatible.
"""

from __future__ import annotations

from typing import Any

import msgspec

from engine.batch import Batch, Drafted, NewRow, Placeholders, Scheduled, Scored, Verified
from engine.protocol import SamplingParams


class RankTask(msgspec.Struct, frozen=True):
    """What a rank is started with."""

    rank: int
    size: int
    parent: int
    """Process id of rank 0."""
    store_port: int
    """Of the store on this host where the ranks find one another."""
    steps: str
    """ZMQ endpoint on which the rank receives messages."""
    reports: str
    """ZMQ endpoint to which it sends reports."""
    base: str
    quantization: str
    artifacts_dir: str
    threads: int
    device: str
    """Such as "cpu" or "cuda:1"."""
    backend: str
    """Of torch.distributed: gloo or nccl."""
    signing_keys: str = ""
    """Public keys of adapters' signatures, as the setting has them; empty: signatures are not verified."""
    requires_signature: bool = False


class DeviceSizes(msgspec.Struct, frozen=True):
    """What a GPU's ranks need besides."""

    max_batch_tokens: int
    has_fp8_cache: bool
    adapter_bytes: int
    adapter_cache_bytes: int
    cuda_graphs: bool
    max_graph_rows: int | None
    batch_invariant: bool


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """Sizes that rank 0 chose. A rank answers with Ready."""

    num_blocks: int
    block_size: int
    max_rows: int
    max_len: int
    num_slots: int
    device: DeviceSizes | None = None
    """None: on a CPU."""
    trusted: str = ""
    """Digest of an adapter that needs no signature; empty: none."""


class RankRow(msgspec.Struct, frozen=True, array_like=True):
    """What a rank needs to know of a new row: neither how it is sampled nor what it is held to."""

    row: int
    token_ids: list[int]
    prompt_len: int
    computed_len: int
    block_ids: list[int]
    slot: int


class Step(msgspec.Struct, frozen=True, tag="step"):
    """A batch, and what the step before it drew."""

    drawn: list[int]
    """The draws of the step before, those of rows with drafts among them."""
    freed_rows: list[int]
    new_rows: list[RankRow]
    grown: list[tuple[int, list[int]]]
    scheduled: list[Scheduled]
    scored: list[Scored]
    drafted: list[Drafted] = []
    verified: list[Verified] = []
    placeholders: list[Placeholders] = []


class LoadAdapter(msgspec.Struct, frozen=True, tag="load"):
    """Begins a load. The rank answers with AdapterDone."""

    slot: int
    digest: str
    rank: int


class UnloadAdapter(msgspec.Struct, frozen=True, tag="unload"):
    """Empties a slot."""

    slot: int


class IdleAdapter(msgspec.Struct, frozen=True, tag="idle"):
    """Steps from now on do not read the slot's adapter."""

    slot: int


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Ends the rank's process."""


ToRank = Begin | Step | LoadAdapter | UnloadAdapter | IdleAdapter | Stop


class Alive(msgspec.Struct, frozen=True, tag="alive"):
    """Sent twice a second."""

    rank: int


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The rank's model is loaded and its memory allocated: steps may come."""

    rank: int


class AdapterDone(msgspec.Struct, frozen=True, tag="adapter"):
    """A load has ended."""

    rank: int
    slot: int
    digest: str
    error: str | None


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The rank ends."""

    rank: int
    reason: str


FromRank = Alive | Ready | AdapterDone | Failed

_UNUSED_SAMPLING = SamplingParams(max_tokens=1)


def step_message(batch: Batch, drawn: list[int]) -> Step:
    """Returns the message of a batch."""
    return Step(
        drawn,
        batch.freed_rows,
        [
            RankRow(new.row, new.token_ids, new.prompt_len, new.computed_len, new.block_ids, new.slot)
            for new in batch.new_rows
        ],
        batch.grown,
        batch.scheduled,
        batch.scored,
        batch.drafted,
        batch.verified,
        batch.placeholders,
    )


def batch_of(step: Step) -> Batch:
    """Returns the batch of a message. Sampling parameters, names and constraints of its rows mean nothing."""
    return Batch(
        step=0,
        freed_rows=step.freed_rows,
        new_rows=[
            NewRow(
                row=new.row,
                request_id="",
                token_ids=new.token_ids,
                prompt_len=new.prompt_len,
                computed_len=new.computed_len,
                block_ids=new.block_ids,
                sampling=_UNUSED_SAMPLING,
                seed=0,
                slot=new.slot,
            )
            for new in step.new_rows
        ],
        grown=step.grown,
        scheduled=step.scheduled,
        scored=step.scored,
        drafted=step.drafted,
        verified=step.verified,
        placeholders=step.placeholders,
    )


encode = msgspec.msgpack.Encoder().encode


def decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """Returns a decoder of `ToRank` or `FromRank`."""
    return msgspec.msgpack.Decoder(kind)
