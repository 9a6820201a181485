"""Caches token ids of the pieces that a byte-level BPE cuts text into: most text is words seen before.

Before byte-pair encoding a tokenizer cuts text by a regular expression, and encodes each piece by itself: a
piece has the same ids wherever it stands. So the pieces of ASCII text are looked up, and only new ones go
through the tokenizer, which takes five times as long in all. In ASCII the expression's classes of characters
mean the same to every library; other text, and tokenizers that do more than cut and encode, are not
supported here. The text has no special tokens.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import Any

from tokenizers import Tokenizer

MOST_REMEMBERED = 32_768
"""Pieces of a generation. Two generations are kept: pieces that no text uses any more go with the older."""
MOSTLY_NEW = 4
"""Where more than one piece in this many is new, the tokenizer encodes the whole text."""
LONGEST_REMEMBERED = 64
"""Characters: longer pieces hardly recur."""

_BYTE_LEVEL = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What a ByteLevel pre-tokenizer with `use_regex` cuts by (GPT-2's)."""
_SAME_IN_ASCII = {"NFC", "NFD", "NFKC", "NFKD"}
_CLASSES = {"L": "A-Za-z", "N": "0-9"}
_UNDERSTOOD = re.compile(
    r"""
    \\(?P<negated>[pP])\{(?P<class>[LN])\}   # classes of characters
    | \\[sSrnt]                              # white space
    | \\(?![\w\s]).                          # signs
    | \(\?(?:i?:|[!=]) | \((?!\?)            # groups
    | [^\\(^$.&]                             # what stands for itself, quantifiers, brackets
    """,
    re.VERBOSE,
)
_GREEDY_OR_POSSESSIVE = re.compile(r"\{[0-9,]*\}\+")
"""Not the same to both libraries."""


class Pieces:
    """Encodes text that has no added token in it. Threads may share it: at worst a piece is encoded twice.

    Args:
        cut: finds the pieces of ASCII text, one after the other.
        tokenizer: encodes one.
    """

    def __init__(self, cut: re.Pattern[str], tokenizer: Tokenizer) -> None:
        self._cut = cut
        self._tokenizer = tokenizer
        self._known: dict[str, list[int]] = {}
        self._known_before: dict[str, list[int]] = {}

    @classmethod
    def of(cls, document: dict[str, Any], tokenizer: Tokenizer) -> Pieces | None:
        """Returns a cache for a tokenizer.json; None where pieces do not determine a text's ids."""
        pattern = _pattern_of(document)
        cut = None if pattern is None else in_ascii(pattern)
        return None if cut is None else cls(cut, tokenizer)

    def encode(self, text: str) -> list[int] | None:
        """Returns token ids, without any that mark its ends; None: not supported by this module."""
        if not text.isascii():
            return None
        pieces: list[str] = self._cut.findall(text)
        if sum(map(len, pieces)) != len(text):  # what the expression does not match is a piece, too
            return None
        try:
            return list(chain.from_iterable(map(self._known.__getitem__, pieces)))
        except KeyError:
            return self._encode_new(text, pieces)

    def _encode_new(self, text: str, pieces: list[str]) -> list[int] | None:
        """Encodes text with pieces that this generation does not have."""
        known = self._known
        new = [piece for piece in pieces if piece not in known]
        if len(new) * MOSTLY_NEW > len(pieces):
            return self._encode_whole(text, pieces)
        learned = self._learn(set(new))
        if learned is None:
            return None
        return [token_id for piece in pieces for token_id in learned.get(piece) or known[piece]]

    def _encode_whole(self, text: str, pieces: list[str]) -> list[int]:
        """Encodes with the tokenizer, and caches the result."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        token_ids: list[int] = encoding.ids
        words = [word for word in encoding.word_ids if word is not None]
        if words and words[-1] == len(pieces) - 1:
            by_piece: list[list[int]] = [[] for _ in pieces]
            for token_id, word in zip(token_ids, words, strict=True):
                by_piece[word].append(token_id)
            self._remember(dict(zip(pieces, by_piece, strict=True)))
        return token_ids

    def _learn(self, pieces: set[str]) -> dict[str, list[int]] | None:
        """Caches the ids of pieces that this generation does not have."""
        before = self._known_before
        learned = {piece: before[piece] for piece in pieces if piece in before}
        new = [piece for piece in pieces if piece not in learned]
        if any(self._cut.findall(piece) != [piece] for piece in new):  # by itself it would be cut again
            return None
        encodings = self._tokenizer.encode_batch_fast(new, add_special_tokens=False)
        learned |= {piece: encoding.ids for piece, encoding in zip(new, encodings, strict=True)}
        self._remember(learned)
        return learned

    def _remember(self, learned: dict[str, list[int]]) -> None:
        kept = {piece: ids for piece, ids in learned.items() if len(piece) <= LONGEST_REMEMBERED}
        if len(self._known) + len(kept) > MOST_REMEMBERED:
            self._known_before, self._known = self._known, {}
        if len(kept) <= MOST_REMEMBERED:
            self._known |= kept


def in_ascii(pattern: str) -> re.Pattern[str] | None:
    """The same expression for ASCII text; None where something in it may mean another thing to Python.

    Args:
        pattern: as Oniguruma reads it, such as `\\p{N}{1,3}| ?\\p{L}+|\\s+`.
    """
    translated = []
    end = 0
    in_brackets = False
    while end < len(pattern):
        if pattern.startswith("[^", end) and not in_brackets:
            translated.append("[^")
            end, in_brackets = end + 2, True
            continue
        found = _UNDERSTOOD.match(pattern, end)
        if found is None or (found[0] == "[" and in_brackets):
            return None
        in_brackets = found[0] == "[" or (in_brackets and found[0] != "]")
        if found["class"] is None:
            translated.append(found[0])
        elif in_brackets and found["negated"] == "P":
            return None
        else:
            characters = _CLASSES[found["class"]]
            sign = "^" if found["negated"] == "P" else ""
            translated.append(characters if in_brackets else f"[{sign}{characters}]")
        end = found.end()
    if _GREEDY_OR_POSSESSIVE.search(pattern):
        return None
    try:
        return re.compile("".join(translated), re.ASCII)
    except re.error:
        return None


def _pattern_of(document: dict[str, Any]) -> str | None:
    """Returns the expression that text is cut by, if the tokenizer only cuts and encodes."""
    normalizer, model = document.get("normalizer"), document.get("model") or {}
    if normalizer is not None and normalizer.get("type") not in _SAME_IN_ASCII:
        return None
    if model.get("type") != "BPE" or any(
        model.get(name) for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix")
    ):
        return None
    match document.get("pre_tokenizer"):
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}:
            return _BYTE_LEVEL
        case {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": str(pattern)},
                    "behavior": "Isolated",
                    "invert": False,
                },
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }:
            return pattern
        case _:
            return None
