"""Holds a choice that thinks to its budget, and to its grammar once it answers.

When the budget is spent, the tokens that end thinking are the only ones allowed, one after the other. Rows
are masked only where that may happen, or where they have a grammar.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from enum import Enum

import numpy as np
import numpy.typing as npt

from engine.grammar.constraint import ALWAYS, NEVER, Constraint
from engine.protocol import Reasoning
from engine.reasoning.splitter import Phase, begun_len
from engine.reasoning.thinking import Thinking

Words = npt.NDArray[np.int32]


class EndMarker:
    """The tokens that may come while a choice thinks whose answer has a grammar.

    All but those that would end the sequence, and those that would end thinking and go on: what follows the
    marker in one token would be out of the grammar's reach.
    """

    def __init__(self, reasoning: Reasoning, token_bytes: Sequence[bytes]) -> None:
        self._marker = reasoning.end.encode()
        last = self._marker[-1:]
        self._candidates = {
            token_id: text
            for token_id, text in enumerate(token_bytes)
            if text.find(last, 0, len(text) - 1) >= 0
        }
        self._masks: dict[tuple[int, frozenset[int], int], Words] = {}

    def mask(self, held: bytes, ending_ids: frozenset[int], num_words: int) -> Words:
        """Returns the mask after `held`, bytes that may begin the marker. Not to be changed."""
        begun = begun_len(held, self._marker)
        key = (begun, ending_ids, num_words)
        if key not in self._masks:
            mask = np.full(num_words, -1, np.int32)
            for token_id in {*ending_ids, *self._overshooting(self._marker[:begun])}:
                set_bit(mask, token_id, False)
            self._masks[key] = mask
        return self._masks[key]

    def _overshooting(self, begun: bytes) -> list[int]:
        marker = self._marker
        return [
            token_id
            for token_id, text in self._candidates.items()
            if 0 <= (begun + text).find(marker) < len(begun) + len(text) - len(marker)
        ]


def set_bit(mask_W: Words, token_id: int, is_allowed: bool = True) -> None:
    """Allows or forbids one token. Tokens beyond the mask are forbidden already."""
    word, bit = token_id >> 5, np.uint32(1 << (token_id & 31))
    bits = mask_W.view(np.uint32)
    if word < len(bits):
        bits[word] = bits[word] | bit if is_allowed else bits[word] & ~bit


def has_bit(mask_W: Words, token_id: int) -> bool:
    """Returns whether the mask allows a token."""
    return bool(mask_W.view(np.uint32)[token_id >> 5] >> np.uint32(token_id & 31) & np.uint32(1))


def _forced_end(reasoning: Reasoning, thinking: Thinking) -> int | None:
    """Returns the token that must come next because the budget is spent, if it is."""
    if reasoning.budget is None or thinking.phase is not Phase.THINKING:
        return None
    num_forced = thinking.num_thought - reasoning.budget
    return reasoning.end_ids[min(num_forced, len(reasoning.end_ids) - 1)] if num_forced >= 0 else None


def _force(mask_W: Words, token_id: int) -> None:
    mask_W[:] = 0
    set_bit(mask_W, token_id)


class BudgetConstraint:
    """Ends the thinking of a choice whose answer is free."""

    __slots__ = ("_reasoning", "_thinking")

    followed = None

    def __init__(self, reasoning: Reasoning, thinking: Thinking) -> None:
        """`thinking` accepts each token before this object does."""
        self._reasoning = reasoning
        self._thinking = thinking

    @property
    def binds_from(self) -> int:
        """Tokens that the choice has at least when a mask first matters, as far as is known now."""
        thinking, budget = self._thinking, self._reasoning.budget
        if budget is None or thinking.phase is Phase.ANSWERING:
            return NEVER
        if thinking.phase is Phase.UNDECIDED:
            return thinking.num_accepted + 1 + budget
        return thinking.num_accepted + max(0, budget - thinking.num_thought)

    def accept(self, token_id: int) -> None:
        """Does nothing: `thinking` has noted the token."""

    def after(self, drafts: Sequence[int]) -> tuple[BudgetConstraint, Sequence[int]]:
        """Returns the constraint as it would be after drafts; no grammar has to consume them."""
        return BudgetConstraint(self._reasoning, self._thinking.after(drafts)), ()

    def restrict(self, mask_W: Words) -> None:
        """Sets the mask to the token that ends thinking, if it is due, or else to every token."""
        forced = _forced_end(self._reasoning, self._thinking)
        if forced is None:
            mask_W[:] = -1
        else:
            _force(mask_W, forced)


class _Stage(Enum):
    FIRST = "first"
    """No token yet: thinking may begin, or the grammar's text."""
    STARTING = "starting"
    """Some tokens of the start marker have come."""
    THINKING = "thinking"
    ANSWERING = "answering"


class DeferredGrammar:
    """Holds the answer of a choice to a grammar, and its thinking to the budget, if it has one."""

    __slots__ = (
        "_answer",
        "_end_marker",
        "_num_started",
        "_offers_start",
        "_reasoning",
        "_stage",
        "_thinking",
    )

    binds_from = ALWAYS

    def __init__(
        self, reasoning: Reasoning, thinking: Thinking, answer: Constraint, end_marker: EndMarker
    ) -> None:
        """`thinking` accepts each token before this object does. `answer` is the grammar's constraint."""
        self._reasoning = reasoning
        self._thinking = thinking
        self._answer = answer
        self._end_marker = end_marker
        self._stage = _Stage.THINKING if reasoning.is_open else _Stage.FIRST
        self._offers_start = False
        """Whether the first mask allows the start marker, and the grammar does not."""
        self._num_started = 0
        """Tokens of the start marker so far."""

    @property
    def followed(self) -> Constraint | None:
        """The grammar's constraint, where it decides about the next token."""
        return self._answer if self._stage in (_Stage.FIRST, _Stage.ANSWERING) else None

    def accept(self, token_id: int) -> None:
        """Notes a committed token, which `thinking` has accepted."""
        if self._advance(token_id):
            self._answer.accept(token_id)

    def after(self, drafts: Sequence[int]) -> tuple[DeferredGrammar, Sequence[int]]:
        """Returns the constraint as it would be after drafts, and those that belong to the answer."""
        assert self._stage is not _Stage.FIRST, "whether the start marker is offered is not known yet"
        later = copy(self)
        later._thinking = self._thinking.after(())
        answered = []
        for token_id in drafts:
            later._thinking.accept(token_id)
            if later._advance(token_id):
                answered.append(token_id)
        return later, answered

    def _advance(self, token_id: int) -> bool:
        """Follows a token that `thinking` has accepted. Returns whether it belongs to the answer."""
        if self._stage is _Stage.ANSWERING:
            return True
        if self._stage is _Stage.FIRST and not (
            self._offers_start and token_id == self._reasoning.start_ids[0]
        ):
            self._stage = _Stage.ANSWERING
            return True
        self._num_started += 1
        self._stage = _STAGES[self._thinking.phase]
        return False

    def restrict(self, mask_W: Words) -> None:
        """Changes the mask, which `followed` has filled unless it is None, to what may come next."""
        start_ids = self._reasoning.start_ids
        if self._stage is _Stage.FIRST:
            self._offers_start = not has_bit(mask_W, start_ids[0])
            set_bit(mask_W, start_ids[0])
        elif self._stage is _Stage.STARTING:
            _force(mask_W, start_ids[min(self._num_started, len(start_ids) - 1)])
        elif self._stage is _Stage.THINKING:
            forced = _forced_end(self._reasoning, self._thinking)
            if forced is None:
                mask_W[:] = self._end_marker.mask(self._thinking.held, self._answer.ending_ids, len(mask_W))
            else:
                _force(mask_W, forced)


_STAGES = {
    Phase.UNDECIDED: _Stage.STARTING,
    Phase.THINKING: _Stage.THINKING,
    Phase.ANSWERING: _Stage.ANSWERING,
}
