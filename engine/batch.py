"""The contract between scheduler and runner: the plan of one step, and what came back.

A Batch is complete: the runner asks nobody anything. It names rows of the runner's persistent batch state,
and carries only what changed since the last step, so that work per step is proportional to change. Plain
data: no torch.

A runner of depth 1 is given step n+1 before anybody has seen what step n drew. Steps run in the order in
which they were launched, and what a batch says holds from its own step on: a row that batch n+1 frees, or a
block that it gives to another row, may still be in use by step n, whose result is read by position and not by
row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from engine.protocol import SamplingParams, TokenLogprob

NO_SLOT = -1
"""Adapter slot of a row that runs the base alone."""


@dataclass(frozen=True, slots=True)
class NewRow:
    """A request enters a row of the batch state, for the first time or again after preemption."""

    row: int
    request_id: str
    token_ids: list[int]
    """Prompt and everything generated so far."""
    prompt_len: int
    computed_len: int
    """Tokens whose keys and values already stand in `block_ids` (prefix cache)."""
    block_ids: list[int]
    sampling: SamplingParams
    seed: int
    slot: int = NO_SLOT


class Scheduled(NamedTuple):
    """One row's share of a step: its next `num_tokens` uncomputed tokens."""

    row: int
    num_tokens: int
    samples: bool
    """True when the share ends at the row's last token (known, or just being drawn): a next one is drawn."""


class Scored(NamedTuple):
    """Known tokens of a row that a step scores, each by what the step computes of the token before it."""

    row: int
    first: int
    """Position of the first; the step's share of the row begins before it."""
    num_tokens: int
    num_tops: int
    """How many of the likeliest are wanted beside each."""


@dataclass(slots=True)
class Batch:
    """The plan of one step. Apply in order: freed rows, new rows, grown tables; then run `scheduled`."""

    step: int
    freed_rows: list[int] = field(default_factory=list)
    new_rows: list[NewRow] = field(default_factory=list)
    grown: list[tuple[int, list[int]]] = field(default_factory=list)
    """(row, block ids appended to its table), for rows that are not new."""
    scheduled: list[Scheduled] = field(default_factory=list)
    """In token order of the flattened batch; decoding rows (one token) first."""
    scored: list[Scored] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return sum(share.num_tokens for share in self.scheduled)


@dataclass(slots=True)
class StepResult:
    """What one step drew: parallel to those entries of `Batch.scheduled` that sample, in their order."""

    token_ids: list[int]
    logprobs: dict[int, TokenLogprob] = field(default_factory=dict)
    """By position in `token_ids`; only for rows that asked."""
    failed: list[int] = field(default_factory=list)
    """Positions in `token_ids` whose logits were not finite: the request ends with "error", alone."""
    scores: list[list[TokenLogprob] | None] = field(default_factory=list)
    """Parallel to `Batch.scored`. None where logits were not finite: that request ends with "error" too."""


class Launched(Protocol):
    """A step that is on its way."""

    def result(self) -> StepResult:
        """What it drew. Waits for it; called once."""
        ...


@dataclass(frozen=True, slots=True)
class Done:
    """A step that was over when its launch returned."""

    drawn: StepResult

    def result(self) -> StepResult:
        return self.drawn
