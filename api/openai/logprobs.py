"""Formats log probabilities for chat and completions, in step with the text that is shown.

A token's entry waits until its bytes are shown, and is dropped if a stop string cuts them off. Entries of an
echoed prompt come first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from api.detokenizer import ends_in_stop_token
from engine.protocol import TokenChunk, TokenLogprob
from engine.vocabulary import Vocabulary
from tokenization.codec import TextCodec


@dataclass(slots=True)
class _Entry:
    start: int
    """Offset of the token's first byte in the choice."""
    end: int
    character: int
    """Characters of the choice that start before the token."""
    logprob: TokenLogprob


class LogprobTrail:
    """Holds log probabilities of one choice until their text is shown."""

    __slots__ = ("_num_bytes", "_num_characters", "_shown", "_text", "_waiting")

    def __init__(self, text: TextCodec, first_character: int = 0, shown: Vocabulary | None = None) -> None:
        """`first_character`: length of an echoed prompt before the answer's text. `shown`: what the text is
        decoded with, if some special tokens have bytes there.
        """
        self._text = text
        self._shown = (text.vocabulary if shown is None else shown).token_bytes
        self._waiting: list[_Entry] = []
        self._num_bytes = 0
        self._num_characters = first_character

    def push(
        self, chunk: TokenChunk, num_shown: int, scored: Iterable[tuple[TokenLogprob, bytes]] | None = None
    ) -> list[_Entry]:
        """Take a chunk that the detokenizer has just read; the entries that belong to what is shown by now.

        Args:
            chunk: with log probabilities parallel to its tokens.
            num_shown: bytes of the choice given out so far, this chunk's included.
            scored: log probabilities with the bytes that belong to the text, where those are not the chunk's.
        """
        for logprob, data in self._scored(chunk) if scored is None else scored:
            end = self._num_bytes + len(data)
            self._waiting.append(_Entry(self._num_bytes, end, self._num_characters, logprob))
            self._num_bytes = end
            self._num_characters += _num_begun(data)
        if chunk.finish_reason is None:
            shown = [entry for entry in self._waiting if entry.end <= num_shown]
            self._waiting = self._waiting[len(shown) :]
            return shown
        cut = isinstance(chunk.stop, str)
        shown = [entry for entry in self._waiting if not cut or entry.start < num_shown]
        self._waiting = []
        return shown

    def _scored(self, chunk: TokenChunk) -> Iterator[tuple[TokenLogprob, bytes]]:
        table = self._shown
        entries = chunk.logprobs or []
        for logprob in entries[:-1] if ends_in_stop_token(chunk) else entries:
            yield logprob, table[logprob.token_id] if logprob.token_id < len(table) else b""

    def chat(self, entries: list[_Entry]) -> dict[str, Any]:
        """Returns entries in the chat format."""
        return {
            "content": [
                {
                    **self._chat_token(entry.logprob.token_id, entry.logprob.logprob),
                    "top_logprobs": [
                        self._chat_token(top.token_id, top.logprob) for top in entry.logprob.top
                    ],
                }
                for entry in entries
            ],
            "refusal": None,
        }

    def completion(self, entries: list[_Entry]) -> dict[str, Any]:
        """Returns entries in the completions format: parallel lists."""
        return {
            "tokens": [self._name(entry.logprob.token_id) for entry in entries],
            "token_logprobs": [entry.logprob.logprob for entry in entries],
            "top_logprobs": [self._tops(entry.logprob) for entry in entries],
            "text_offset": [entry.character for entry in entries],
        }

    def prompt(self, prompt_ids: Sequence[int], scores: Sequence[TokenLogprob], echo: str) -> dict[str, Any]:
        """The older endpoint's form, of a prompt repeated as `echo`: nothing precedes its first token, so
        that has no log probability.
        """
        table = self._text.vocabulary.token_bytes
        data = [table[token_id] if token_id < len(table) else b"" for token_id in prompt_ids]
        return {
            "tokens": [self._name(token_id) for token_id in prompt_ids],
            "token_logprobs": [None, *(score.logprob for score in scores)],
            "top_logprobs": [None, *(self._tops(score) for score in scores)],
            "text_offset": _offsets(data, echo),
        }

    def _tops(self, logprob: TokenLogprob) -> dict[str, float]:
        """Returns the top log probabilities by text; of tokens with the same text, such as parts of
        characters, the most likely.
        """
        tops: dict[str, float] = {}
        for top in logprob.top:
            tops.setdefault(self._name(top.token_id), top.logprob)
        return tops

    def _chat_token(self, token_id: int, logprob: float) -> dict[str, Any]:
        special = self._text.special_token(token_id)
        if special is not None:
            return {"token": special, "logprob": logprob, "bytes": None}
        data = self._text.vocabulary.decode((token_id,))
        return {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}

    def _name(self, token_id: int) -> str:
        special = self._text.special_token(token_id)
        return (
            self._text.vocabulary.decode((token_id,)).decode("utf-8", "replace")
            if special is None
            else special
        )


def no_tokens(chat: bool) -> dict[str, Any]:
    """Returns the log probabilities of an answer without tokens."""
    if chat:
        return {"content": [], "refusal": None}
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


def joined(before: dict[str, Any] | None, more: dict[str, Any] | None) -> dict[str, Any] | None:
    """Concatenates log probabilities: joins every list; all other fields are the same in both."""
    if before is None or more is None:
        return more if before is None else before
    return {name: value + more[name] if isinstance(value, list) else value for name, value in before.items()}


def _offsets(tokens: Sequence[bytes], text: str) -> list[int]:
    """Returns the offset of each token in `text`, which may lack a leading space that encoding added."""
    first = next((data for data in tokens if data), b"")
    num_characters = -1 if first.startswith(b" ") and not text.startswith(" ") else 0
    found = []
    for data in tokens:
        found.append(min(max(num_characters, 0), len(text)))
        num_characters += _num_begun(data)
    return found


def _num_begun(data: Iterable[int]) -> int:
    """Returns the number of characters that start in these bytes."""
    return sum((byte & 0xC0) != 0x80 for byte in data)
