"""Follows one choice through its grammar, token by token.

The scheduler notes the tokens that it commits; the mask filler advances the matcher by them, beside the
others of the step, and finds the tokens that may come next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from engine.grammar.mask_cache import StateKey
from engine.grammar.text_state import SchemaTexts, TextState

ALWAYS, NEVER = -1, 1 << 62
"""Fewer and more tokens than any choice has."""


class RowConstraint(Protocol):
    """What the tokens of a row are held to. The scheduler advances it at each commit."""

    @property
    def binds_from(self) -> int:
        """Tokens that the choice has at least when a mask first matters, as far as is known now: rises, until
        it is `NEVER`, unless it is `ALWAYS`.
        """
        ...

    @property
    def followed(self) -> Constraint | None:
        """The grammar's constraint, where it decides about the next token."""
        ...

    def accept(self, token_id: int) -> None:
        """Notes a committed token."""
        ...

    def after(self, drafts: Sequence[int]) -> tuple[RowConstraint, Sequence[int]]:
        """Returns (the constraint as it would be after drafts, those of them that its grammar would have to
        consume). Not before the first token is committed.
        """
        ...

    def restrict(self, mask_W: npt.NDArray[np.int32]) -> None:
        """Changes the mask, which `followed` has filled unless it is None, to what may come next."""
        ...


@dataclass(slots=True)
class Lane:
    """One compilation of a grammar. Its matchers share what their lexer learns, which only grows."""

    matcher: LLMatcher
    """At the grammar's start."""
    num_choices: int = 0
    """Choices that follow it now."""
    num_masks: int = 0
    """Masks that were filled in this lane."""
    last: LLMatcher | None = None
    """Of the choice that began last."""
    is_leaving: bool = False
    """Another one is being compiled in its place."""

    def is_worn(self, max_masks: int) -> bool:
        """Whether the lexer has grown too much: its next state may be one too many, and end a choice."""
        if self.num_masks >= max_masks:
            return True
        try:
            return self.last is not None and self.last.is_error()
        except RuntimeError:  # its mask is being filled
            return False


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """Bounds of a grammar's lanes."""

    max_lanes: int
    max_masks: int
    """After which choices begin in a new lane."""


class CompiledGrammar:
    """A grammar at its start, in one lane or several.

    llguidance's matchers of one compilation share what their lexer has learned, behind a lock. So a grammar
    is compiled once for each choice that follows it at the same time, within limits: matchers of different
    lanes fill their masks side by side.
    """

    def __init__(
        self,
        first: Lane,
        ending_ids: frozenset[int],
        limits: LaneLimits,
        add_lane: Callable[[CompiledGrammar], bool],
        replace_lane: Callable[[CompiledGrammar, int], None],
        tenant: str,
        texts: SchemaTexts | None,
    ) -> None:
        """`add_lane` compiles another lane, and calls `append`, or returns False; `replace_lane` compiles one
        in place of a lane, and calls `replace`. `texts`: of its schema; None: masks are not kept.
        """
        self.tenant = tenant
        self.texts = texts
        self.ending_ids = ending_ids
        """The model's end-of-sequence tokens, which a grammar allows exactly where it may end."""
        self._lanes = [first]
        self._limits = limits
        self._num_wanted = 1
        self._num_choices = 0
        self._add_lane = add_lane
        self._replace_lane = replace_lane

    def append(self, lane: Lane) -> None:
        """Adds a lane. From any thread."""
        self._lanes.append(lane)

    def replace(self, number: int, lane: Lane) -> None:
        """Has choices begin in a new lane; those that have begun stay in theirs. From any thread."""
        self._lanes[number] = lane

    def demand(self) -> Constraint:
        """Returns the constraint of one choice, and asks for a lane of its own."""
        self._num_choices += 1
        while self._num_wanted < min(self._limits.max_lanes, self._num_choices):
            if not self._add_lane(self):
                break
            self._num_wanted += 1
        return Constraint(self)

    def start(self) -> tuple[LLMatcher, Lane]:
        """Returns (a matcher in the lane that the fewest choices follow, the lane)."""
        number, lane = min(enumerate(self._lanes), key=lambda one: one[1].num_choices)
        if not lane.is_leaving and lane.is_worn(self._limits.max_masks):
            lane.is_leaving = True
            self._replace_lane(self, number)
        lane.num_choices += 1
        lane.last = lane.matcher.deep_copy()
        return lane.last, lane

    def end_choice(self, lane: Lane | None) -> None:
        """Counts a choice as ended, in its lane if it ever had a mask."""
        self._num_choices -= 1
        if lane is not None:
            lane.num_choices -= 1


class Constraint:
    """A choice's position in its grammar. Kept across preemptions."""

    __slots__ = ("_grammar", "_text", "foreseen_ids", "foresees", "is_over", "lane", "matcher", "pending")

    binds_from = ALWAYS

    def __init__(self, grammar: CompiledGrammar) -> None:
        self._grammar = grammar
        self.matcher: LLMatcher | None = None
        """None until the first mask."""
        self.lane: Lane | None = None
        self.pending: list[int] = []
        """Committed tokens that the matcher has not consumed."""
        self._text: TextState | None = None if grammar.texts is None else grammar.texts.start()
        """After the tokens that the matcher has consumed."""
        self.is_over = False
        """Whether an end of sequence was committed: no token follows."""
        self.foresees = False
        """Whether `foreseen_ids` is kept."""
        self.foreseen_ids: list[int] = []
        """`forced_ids` when the last mask was filled: the first is drawn under that mask."""

    @property
    def followed(self) -> Constraint:
        """Itself: it decides about every token."""
        return self

    @property
    def ending_ids(self) -> frozenset[int]:
        """The model's end-of-sequence tokens."""
        return self._grammar.ending_ids

    def restrict(self, mask_W: npt.NDArray[np.int32]) -> None:
        """Does nothing: the mask is the grammar's."""

    def accept(self, token_id: int) -> None:
        """Notes a committed token. It was drawn under the mask, so the grammar allows it."""
        assert not self.is_over, "a token after the end"
        if token_id in self._grammar.ending_ids:
            self.is_over = True
        else:
            self.pending.append(token_id)

    def after(self, drafts: Sequence[int]) -> tuple[Constraint, Sequence[int]]:
        """Returns itself, and the drafts: `look_ahead` consumes them."""
        return self, drafts

    def open(self) -> LLMatcher:
        """Returns the matcher to fill one mask with, set up at the first call."""
        if self.matcher is None:
            self.matcher, self.lane = self._grammar.start()
        assert self.lane is not None
        self.lane.num_masks += 1
        return self.matcher

    def forced_ids(self) -> list[int]:
        """Returns the next tokens as far as the grammar leaves one choice at each; none before the first
        mask. Not to be called while masks are filled.
        """
        matcher = self.matcher
        if matcher is None or self.is_over:
            return []
        if self.pending:
            matcher.consume_tokens(self.take_pending())
        return [] if matcher.is_error() else matcher.compute_ff_tokens()

    def take_pending(self) -> list[int]:
        """Returns the pending tokens, for the matcher to consume now."""
        taken, self.pending = self.pending, []
        if self._text is not None:
            for token_id in taken:
                self._text.advance(token_id)
        return taken

    def state(self, drafts: Sequence[int] = ()) -> StateKey | None:
        """Returns what the mask after the tokens consumed and some drafts depends on; None where it may be
        this choice's own.
        """
        text, texts = self._text, self._grammar.texts
        if text is None or texts is None:
            return None
        key = (text.after(drafts) if drafts else text).key
        return None if key is None else (self._grammar.tenant, texts.number, key)

    def look_ahead(self, drafts: Sequence[int]) -> LLMatcher | None:
        """Returns a matcher to fill the mask after some drafts with; None where the grammar does not allow
        them, or they end it.
        """
        assert not self.pending, "the mask without drafts comes first"
        if self.matcher is None:  # drafts end what the choice thinks, and begin its answer
            self.matcher, self.lane = self._grammar.start()
        is_over = not self.ending_ids.isdisjoint(drafts)
        if is_over or self.matcher.validate_tokens(list(drafts)) < len(drafts):
            return None
        matcher = self.matcher.deep_copy()
        matcher.consume_tokens(list(drafts))
        return matcher

    def __del__(self) -> None:
        # A choice ends in many ways; after all of them nothing refers to its constraint any more.
        self._grammar.end_choice(self.lane)
