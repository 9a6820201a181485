"""Decodes a choice's token ids to text incrementally, and holds back text that may begin a stop string.

Bytes of an incomplete character wait too. The engine decides when a choice ends; the text is cut where the
engine's stop match began.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from engine.protocol import TokenChunk
from engine.stops import StopMatch, StopMatcher
from engine.vocabulary import Vocabulary

_UTF8 = codecs.getincrementaldecoder("utf-8")


def ends_in_stop_token(chunk: TokenChunk) -> bool:
    """Returns whether the chunk's last token is an end-of-sequence or stop token, which is not part of the
    text.
    """
    return chunk.finish_reason == "stop" and not isinstance(chunk.stop, str) and bool(chunk.token_ids)


class Detokenizer:
    """The text of one choice. Feed it every chunk of the choice, in order.

    Args:
        vocabulary: the bytes of each token.
        stops: a fresh matcher of the request's stop strings; None when it has none.
        strip_leading_space: drop one space at the beginning, as a sentencepiece decoder does.
    """

    __slots__ = ("_decoder", "_held", "_num_shown", "_stops", "_strip", "_table")

    def __init__(
        self, vocabulary: Vocabulary, stops: StopMatcher | None = None, strip_leading_space: bool = False
    ) -> None:
        self._table = vocabulary.token_bytes
        self._stops = stops
        self._strip = strip_leading_space
        self._decoder = _UTF8(errors="replace")
        self._held = b""
        self._num_shown = 0

    @property
    def num_shown(self) -> int:
        """Bytes of this choice returned so far, counted in the tokens' own bytes."""
        return self._num_shown

    def push(self, chunk: TokenChunk) -> str:
        """Returns the text that can be shown after `chunk`; all remaining text if the chunk ends the
        choice.
        """
        table = self._table
        size = len(table)
        token_ids: Sequence[int] = chunk.token_ids
        if ends_in_stop_token(chunk):
            token_ids = token_ids[:-1]
        return self.push_pieces([table[token_id] for token_id in token_ids if token_id < size], chunk)

    def push_pieces(self, pieces: Sequence[bytes], chunk: TokenChunk) -> str:
        """The same, where `pieces` are the bytes of the chunk's tokens that belong to the text, by token."""
        if self._stops is None:
            return self._show(b"".join(pieces), final=chunk.finish_reason is not None)
        match = self._read(pieces)
        if chunk.finish_reason is None:
            cut = len(self._held) - self._stops.held
        elif isinstance(chunk.stop, str) and match is not None:
            cut = match.start - self._num_shown
        else:
            cut = len(self._held)
        data, self._held = self._held[:cut], self._held[cut:]
        return self._show(data, final=chunk.finish_reason is not None)

    def _read(self, pieces: Iterable[bytes]) -> StopMatch | None:
        """Feeds tokens to the stop matcher one by one, as the engine did. Returns a match on the last
        token.
        """
        assert self._stops is not None
        match = None
        parts = [self._held]
        for data in pieces:
            match = self._stops.push(data)
            parts.append(data)
        self._held = b"".join(parts)
        return match

    def _show(self, data: bytes, final: bool) -> str:
        first = self._num_shown == 0
        self._num_shown += len(data)
        if self._strip and first and data.startswith(b" "):
            data = data[1:]
        return self._decoder.decode(data, final)
