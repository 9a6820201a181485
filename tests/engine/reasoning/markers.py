"""Markers of thinking that are several tokens each, in the vocabulary of sapling."""

from __future__ import annotations

from tokenizers import Tokenizer

from engine.protocol import Reasoning
from tests.engine.grammar.sapling import BASE

_TOKENIZER = Tokenizer.from_file(str(BASE / "tokenizer.json"))


def ids(text: str) -> tuple[int, ...]:
    return tuple(_TOKENIZER.encode(text, add_special_tokens=False).ids)


def reasoning(
    budget: int | None, is_open: bool = True, start: str = "<think>", end: str = "</think>"
) -> Reasoning:
    """Markers of several tokens each."""
    return Reasoning(start, end, ids(start), ids("\n" + end), is_open=is_open, budget=budget)
