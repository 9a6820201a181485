"""Trains a tokenizer as large as a real model's on the sources of this Python's standard library.

For benchmarks of grammars on random weights: what a mask costs depends on the tokens that there are.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

MAX_BYTES = 60_000_000
EOS_ID = 0
"""The special token that ends a text."""


def train(vocab_size: int) -> Tokenizer:
    """Returns a byte-level BPE tokenizer of at most `vocab_size` tokens: fewer where the sources end."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sources(), trainer)
    return tokenizer


def _sources() -> Iterator[str]:
    num_bytes = 0
    for root in dict.fromkeys(sysconfig.get_path(name) for name in ("stdlib", "platlib")):
        for path in sorted(Path(root).rglob("*.py")):
            text = path.read_text(encoding="utf-8", errors="ignore")
            num_bytes += len(text)
            if num_bytes > MAX_BYTES:
                return
            yield text
