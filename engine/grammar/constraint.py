"""Follows one choice through its grammar, token by token.

The scheduler notes the tokens that it commits; the mask filler advances the matcher by them, beside the
others of the step, and finds the tokens that may come next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

CHOICES_PER_LANE = 4
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

    def restrict(self, mask_W: npt.NDArray[np.int32]) -> None:
        """Changes the mask, which `followed` has filled unless it is None, to what may come next."""
        ...


class CompiledGrammar:
    """A grammar at its start, in one lane or several.

    llguidance's matchers of one compilation share what their lexer has learned, behind a lock. So a grammar
    with many rows is compiled more than once: matchers of different lanes fill their masks side by side.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        ending_ids: frozenset[int],
        max_lanes: int,
        add_lane: Callable[[CompiledGrammar], None],
    ) -> None:
        """`add_lane` compiles another lane, and calls `append`."""
        self.ending_ids = ending_ids
        """The model's end-of-sequence tokens, which a grammar allows exactly where it may end."""
        self._lanes = [matcher]
        self._max_lanes = max_lanes
        self._num_wanted = 1
        self._num_demanded = 0
        self._num_started = 0
        self._add_lane = add_lane

    def append(self, matcher: LLMatcher) -> None:
        """Adds a lane. From any thread."""
        self._lanes.append(matcher)

    def demand(self) -> Constraint:
        """Returns the constraint of one choice, and asks for more lanes where there are many choices."""
        self._num_demanded += 1
        while self._num_wanted < min(self._max_lanes, self._num_demanded // CHOICES_PER_LANE):
            self._num_wanted += 1
            self._add_lane(self)
        return Constraint(self)

    def start(self) -> tuple[LLMatcher, int]:
        """Returns a matcher in the next lane, and the lane."""
        lane = self._num_started % len(self._lanes)
        self._num_started += 1
        return self._lanes[lane].deep_copy(), lane


class Constraint:
    """A choice's position in its grammar. Kept across preemptions."""

    __slots__ = ("_grammar", "is_over", "lane", "matcher", "pending")

    binds_from = ALWAYS

    def __init__(self, grammar: CompiledGrammar) -> None:
        self._grammar = grammar
        self.matcher: LLMatcher | None = None
        """None until the first mask."""
        self.lane = 0
        self.pending: int | None = None
        """A committed token that the matcher has not consumed."""
        self.is_over = False
        """Whether an end of sequence was committed: no token follows."""

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
        assert self.pending is None, "a mask lies between two tokens"
        if token_id in self._grammar.ending_ids:
            self.is_over = True
        else:
            self.pending = token_id

    def open(self) -> LLMatcher:
        """Returns the matcher, set up at the first call."""
        if self.matcher is None:
            self.matcher, self.lane = self._grammar.start()
        return self.matcher
