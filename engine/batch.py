"""Defines the contract between scheduler and runner: the plan of one step, and its result.

A `Batch` is complete: the runner needs nothing else. It names rows of the runner's persistent batch state and
carries only what changed since the last step, so that work per step is proportional to change. Plain data, no
torch.

A runner of depth 1 receives step n+1 before the result of step n is known. Steps run in launch order, and a
batch takes effect with its own step: a row that batch n+1 frees, or a block that it gives to another row, may
still be in use by step n, whose result is read by position and not by row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from engine.grammar.constraint import RowConstraint
from engine.protocol import SamplingParams, TokenLogprob

NO_SLOT = -1
"""Adapter slot of a row that runs the base model alone."""


@dataclass(frozen=True, slots=True)
class NewRow:
    """A request that enters a row of the batch state, for the first time or again after preemption."""

    row: int
    request_id: str
    token_ids: list[int]
    """Prompt and generated tokens."""
    prompt_len: int
    computed_len: int
    """Tokens whose keys and values are already in `block_ids` (prefix cache)."""
    block_ids: list[int]
    sampling: SamplingParams
    seed: int
    slot: int = NO_SLOT
    constraint: RowConstraint | None = None
    """What the row's tokens are held to. The scheduler advances it at each commit."""


class Scheduled(NamedTuple):
    """One row's share of a step: its next `num_tokens` uncomputed tokens."""

    row: int
    num_tokens: int
    samples: bool
    """Whether the share ends at the row's last token, known or pending, so that the next token is drawn."""


class Scored(NamedTuple):
    """Known tokens of a row that a step scores, each from the hidden state of the token before it."""

    row: int
    first: int
    """Position of the first token to score; the row's share of the step begins before it."""
    num_tokens: int
    num_tops: int
    """How many of the likeliest tokens are reported beside each."""


MAX_DRAFTS = 8
"""Of one row in one step."""


class Drafted(NamedTuple):
    """Tokens that are guessed to follow a row's last token, computed with it to see whether they do.

    The row's share has that many tokens more than the one, and draws after each of them. There may be none,
    where the row has placeholders.
    """

    row: int
    token_ids: list[int]


class Placeholders(NamedTuple):
    """Tokens behind a row's last one and its drafts, in whose places a draft adapter guesses what follows.

    The row's share has that many tokens more. They attend to everything before them, each guesses the token
    after its own place, and nothing is left of them when the step is over. The row is among the drafted.
    """

    row: int
    num_tokens: int
    token_id: int
    """What all of them are."""
    slot: int
    """The draft adapter's, on which they run in place of the row's."""


class Verified(NamedTuple):
    """What a step with drafts or placeholders left of a row. Its lengths stand still from that step until
    this is applied.
    """

    row: int
    token_ids: list[int]
    """The tokens drawn that count: drafts that were drawn too, and one more."""
    num_blocks: int
    """Blocks that the row keeps."""
    last_token_id: int
    """The row's last token now. Where none counts it is from before the step, and drawn in a step that
    overlapped, it may be known to the device alone, which has put what this step drew in its place.
    """


@dataclass(slots=True)
class Batch:
    """The plan of one step. Apply in order: verified rows, freed rows, new rows, grown tables; then run
    `scheduled`.
    """

    step: int
    verified: list[Verified] = field(default_factory=list)
    freed_rows: list[int] = field(default_factory=list)
    new_rows: list[NewRow] = field(default_factory=list)
    grown: list[tuple[int, list[int]]] = field(default_factory=list)
    """(row, block ids appended to its table), for rows that are not new."""
    scheduled: list[Scheduled] = field(default_factory=list)
    """In token order of the flattened batch; decoding rows (one token) first."""
    scored: list[Scored] = field(default_factory=list)
    drafted: list[Drafted] = field(default_factory=list)
    placeholders: list[Placeholders] = field(default_factory=list)
    """In the order of `scheduled`."""

    @property
    def num_tokens(self) -> int:
        return sum(share.num_tokens for share in self.scheduled)


@dataclass(slots=True)
class StepResult:
    """What one step drew, parallel to the entries of `Batch.scheduled` that sample, in their order.

    A row with drafts has a draw after its known token and after each draft, side by side. Those after a draft
    that was not drawn mean nothing.
    """

    token_ids: list[int]
    logprobs: dict[int, TokenLogprob] = field(default_factory=dict)
    """By position in `token_ids`, for rows that asked for them."""
    failed: list[int] = field(default_factory=list)
    """Positions in `token_ids` whose logits were not finite: those requests end with "error"."""
    scores: list[list[TokenLogprob] | None] = field(default_factory=list)
    """Parallel to `Batch.scored`. None where logits were not finite: those requests end with "error"."""
    guesses: list[list[int]] = field(default_factory=list)
    """Parallel to `Batch.placeholders`: the likeliest token after each, whatever the row's parameters are.
    Means nothing where the step did not draw the row's drafts."""


class LaunchedStep(Protocol):
    """A step that has been launched."""

    def fill_masks(self) -> None:
        """Begins to fill the masks of a step's constrained rows; does nothing for a step without any.

        Called once the constraints have accepted the tokens of the step before it. The step draws when its
        masks are filled: the runner sees to that before it launches another one.
        """
        ...

    def result(self) -> StepResult:
        """Waits for the step and returns what it drew. Called once."""
        ...


@dataclass(frozen=True, slots=True)
class CompletedStep:
    """A step that was over when its launch returned."""

    drawn: StepResult

    def fill_masks(self) -> None:
        """Does nothing: the step has drawn."""

    def result(self) -> StepResult:
        return self.drawn
