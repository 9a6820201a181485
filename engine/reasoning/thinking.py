"""Follows one choice through its thinking and into its answer, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

from engine.protocol import Reasoning
from engine.reasoning.splitter import Markers, Phase, ThinkingSplitter


class Thinking:
    """A choice's position in its thinking. Kept across preemptions."""

    __slots__ = (
        "_num_undecided",
        "_special",
        "_splitter",
        "_token_bytes",
        "answer_bytes",
        "num_accepted",
        "num_gained",
        "num_thought",
        "token_was_thought",
    )

    def __init__(self, reasoning: Reasoning, token_bytes: Sequence[bytes]) -> None:
        """`token_bytes` is the vocabulary's."""
        markers = Markers(reasoning.start.encode(), reasoning.end.encode())
        self._splitter = ThinkingSplitter(markers, reasoning.is_open, reasoning.keeps_space)
        self._token_bytes = token_bytes
        self._special = reasoning.special
        self._num_undecided = 0
        """Tokens that may turn out to be the start marker."""
        self.num_accepted = 0
        """Tokens of the choice so far."""
        self.num_thought = 0
        """Tokens since thinking began."""
        self.num_gained = 0
        """How many more tokens were known to be thinking after the last one."""
        self.token_was_thought = False
        """Whether the last token belongs to the thinking."""
        self.answer_bytes = b""
        """What the answer gained by the last token."""

    @property
    def phase(self) -> Phase:
        return self._splitter.phase

    @property
    def held(self) -> bytes:
        """Bytes that may begin the end marker, while thinking."""
        return self._splitter.held

    def after(self, token_ids: Sequence[int]) -> Thinking:
        """Returns a copy that has accepted some tokens."""
        later = copy(self)
        later._splitter = copy(self._splitter)
        for token_id in token_ids:
            later.accept(token_id)
        return later

    def accept(self, token_id: int) -> None:
        """Notes a drawn token."""
        before = self._splitter.phase
        self.num_accepted += 1
        split = self._splitter.push(token_text(token_id, self._token_bytes, self._special))
        self.answer_bytes = split.answer
        self.num_gained = 0
        if before is Phase.THINKING:
            self.num_thought += 1
            self.num_gained = 1
        elif before is Phase.UNDECIDED:
            self._num_undecided += 1
            if self._splitter.has_thought:
                self.num_gained = self._num_undecided
        self.token_was_thought = self.num_gained > 0


def token_text(token_id: int, token_bytes: Sequence[bytes], special: dict[int, str]) -> bytes:
    """Returns the bytes of a token; of a special token, if it is part of a marker."""
    text = special.get(token_id)
    if text is not None:
        return text.encode()
    return token_bytes[token_id] if token_id < len(token_bytes) else b""
