"""Knows the bytes of a vocabulary's tokens, as texts are followed with them."""

from __future__ import annotations

from llguidance import LLTokenizer


class TokenTexts:
    """The bytes of a vocabulary's tokens."""

    def __init__(self, tokenizer: LLTokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, tuple[bytes, int]] = {}
        self.longest = max(len(tokenizer.decode_bytes([one])) for one in range(tokenizer.vocab_size))
        """Bytes of the longest token."""

    def of(self, token_id: int) -> tuple[bytes, int]:
        """Returns (the token's bytes; its characters, if they are whole and stand for themselves in a JSON
        string, or 0).
        """
        found = self._known.get(token_id)
        if found is None:
            text = self._tokenizer.decode_bytes([token_id])
            found = self._known[token_id] = text, _num_plain(text)
        return found


def _num_plain(text: bytes) -> int:
    if b'"' in text or b"\\" in text:
        return 0
    try:
        return len(text.decode())
    except UnicodeDecodeError:
        return 0
