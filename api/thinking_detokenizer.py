"""Decodes a choice that thinks before it answers: its thinking and its answer are two texts.

Stop strings, log probabilities and held characters concern the answer alone, as in the engine.
"""

from __future__ import annotations

import codecs

from api.detokenizer import Detokenizer, ends_in_stop_token
from engine.protocol import Reasoning, TokenChunk, TokenLogprob
from engine.reasoning.splitter import Markers, Phase, ThinkingSplitter
from engine.stops import StopMatcher
from engine.vocabulary import Vocabulary

_UTF8 = codecs.getincrementaldecoder("utf-8")
ScoredToken = tuple[TokenLogprob, bytes]
"""A token's log probability, and those of its bytes that belong to the answer."""


class ThinkingDetokenizer:
    """The texts of one choice. Feed it every chunk of the choice, in order.

    Args:
        vocabulary: the bytes of each token, markers included.
        reasoning: the parameters that the engine has.
        stops: a fresh matcher of the request's stop strings; None when it has none.
    """

    __slots__ = ("_answer", "_scored", "_splitter", "_table", "_thinking", "_undecided")

    def __init__(self, vocabulary: Vocabulary, reasoning: Reasoning, stops: StopMatcher | None) -> None:
        self._table = vocabulary.token_bytes
        self._answer = Detokenizer(vocabulary, stops, vocabulary.strips_leading_space)
        markers = Markers(reasoning.start.encode(), reasoning.end.encode())
        self._splitter = ThinkingSplitter(markers, reasoning.is_open, reasoning.keeps_space)
        self._thinking = _UTF8(errors="replace")
        self._undecided: list[ScoredToken] = []
        """Tokens that may turn out to be the start marker."""
        self._scored: list[ScoredToken] = []

    @property
    def num_shown(self) -> int:
        """Bytes of the answer returned so far, counted in the tokens' own bytes."""
        return self._answer.num_shown

    def push(self, chunk: TokenChunk) -> tuple[str, str]:
        """Returns (thinking, answer) that can be shown after `chunk`; all remaining text if the chunk ends
        the choice.
        """
        num_tokens = len(chunk.token_ids) - ends_in_stop_token(chunk)
        thinking: list[bytes] = []
        answer: list[bytes] = []
        for place, token_id in enumerate(chunk.token_ids[:num_tokens]):
            data = self._table[token_id] if token_id < len(self._table) else b""
            before = self._splitter.phase
            split = self._splitter.push(data)
            thinking.append(split.thinking)
            answer.append(split.answer)
            if chunk.logprobs is not None:
                self._keep(before, chunk.logprobs[place], data, split.answer)
        is_last = chunk.finish_reason is not None
        if is_last:
            split = self._splitter.finish()
            thinking.append(split.thinking)
            if split.answer:
                answer.append(split.answer)
            self._scored += self._undecided
        is_over = is_last or self._splitter.phase is Phase.ANSWERING
        return (
            self._thinking.decode(b"".join(thinking), final=is_over),
            self._answer.push_pieces(answer, chunk),
        )

    def take_scored(self) -> list[ScoredToken]:
        """Returns the answer's tokens with log probabilities since the last call."""
        scored, self._scored = self._scored, []
        return scored

    def _keep(self, before: Phase, logprob: TokenLogprob, data: bytes, answer: bytes) -> None:
        """Keeps a token's log probability if the token belongs to the answer."""
        phase = self._splitter.phase
        if phase is Phase.UNDECIDED:
            self._undecided.append((logprob, data))
        elif phase is Phase.THINKING:
            self._undecided = []
        elif before is Phase.UNDECIDED and not self._splitter.has_thought:
            self._scored += [*self._undecided, (logprob, data)]
            self._undecided = []
        elif answer or (before is Phase.ANSWERING and not data):
            self._scored.append((logprob, answer))
