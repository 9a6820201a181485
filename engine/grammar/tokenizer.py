"""Loads a base model's tokenizer for grammars: the bytes of every token, and which tokens end a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llguidance import LLTokenizer

PLAIN = r'[^"\\\x00-\x1F\x7F]'
"""A character that a JSON string holds as it is."""
SLICES = (
    r"[\x20\x0A\x0D\x09]+",
    *(f"{PLAIN}{{1,{length}}}" for length in (2, 3, 4, 5, 7, 10, 12, 15, 20, 30)),
    f"{PLAIN}+",
    "[A-Za-z0-9]{1,30}",
)
"""Classes of tokens. Where a grammar allows every text of a class, its tokens are allowed as one, and a mask
looks at the others only. Near the end of a string of bounded length the shorter classes still are; letters
and digits serve patterns and formats. With Llama 3's vocabulary these lengths walk the fewest tokens, as an
average over the characters that a string has left.
"""


def load_tokenizer(base_dir: Path, eos_ids: Sequence[int], vocab_size: int) -> LLTokenizer:
    """Reads `base_dir / "tokenizer.json"`. Raises ValueError when grammars cannot be followed with it.

    `vocab_size`: of the model; ids beyond the tokenizer's last one are never allowed.
    """
    if not eos_ids:
        raise ValueError(f"{base_dir}: the model's configuration names no end-of-sequence token")
    source = (base_dir / "tokenizer.json").read_text(encoding="utf-8")
    return LLTokenizer(source, n_vocab=vocab_size, eos_token=list(eos_ids), slices=list(SLICES))
