"""Loads a base model's tokenizer for grammars: the bytes of every token, and which tokens end a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llguidance import LLTokenizer


def load_tokenizer(base_dir: Path, eos_ids: Sequence[int], vocab_size: int) -> LLTokenizer:
    """Reads `base_dir / "tokenizer.json"`. Raises ValueError when grammars cannot be followed with it.

    `vocab_size`: of the model; ids beyond the tokenizer's last one are never allowed.
    """
    if not eos_ids:
        raise ValueError(f"{base_dir}: the model's configuration names no end-of-sequence token")
    source = (base_dir / "tokenizer.json").read_text(encoding="utf-8")
    return LLTokenizer(source, n_vocab=vocab_size, eos_token=list(eos_ids))
