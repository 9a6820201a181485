"""A small vocabulary whose tokens reach over the ends of strings, values and characters."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from llguidance import LLTokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from engine.grammar.tokenizer import load_tokenizer

END_ID = 0
_TEXTS = [
    "aa",
    "ab",
    "abc",
    "aaaa",
    "hello world",
    "é",
    "éé",
    "日本",
    "日本語",
    "🙂",
    "a🙂",
    " a",
    "  ",
    "    ",
    "one",
    "two",
    "ne",
    "null",
    "true",
    '"one',
    'one"',
    "abcdef",
    '","',
    '", "',
    '":"',
    '": "',
    '"a',
    'a"',
    '"}',
    '"},{"',
    '"], "',
    '""',
    '"a":',
    '","b":"',
    'b":[',
    '{"',
    '{"a":"',
    '["',
    '[["',
    '"]',
    '"]]',
    "}]",
    "]}",
    "},",
    ",{",
    "[]",
    "{}",
    '["a","',
    '","","a',
    '","","',
    '","","","',
    '"","","","',
    '"a","a","a',
    ',"a":"',
    '","b":',
    ": ",
    ', "',
    ":{",
    ' "',
    "\\n",
    "\\u",
    "\\u00",
    "\\u000a",
    "\\\\",
    '\\"',
    'a\\"',
    '\\""',
    "\\t\\t",
    "ab\\",
    "\\u001",
    "\\u0009a",
    "10",
    "12",
    "2024",
    "-0",
    "1.",
    ".5",
    "e1",
    "00:",
    "T0",
    "a@",
    "@a",
    ".a",
    "a.b",
    "a-",
    "[1",
    "\n",
    "\n ",
    "\n  ",
    '\n"',
]
_SPLIT = (
    b"\xe6\x97",
    b"\x97\xa5",
    b"\x97\xa5a",
    b"\xf0\x9f",
    b"\x9f\x99\x82",
    b'\xa9"',
    b"a\xc3",
    b"\xa5\xe6",
)
"""Parts of characters."""


@cache
def crossing_tokenizer() -> LLTokenizer:
    """Returns a tokenizer of all single bytes, these texts, and one token that ends a sequence."""
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    by_byte = {text.encode(): to_bytes.pre_tokenize_str(text)[0][0] for text in map(chr, range(128))}
    letters = _letters()
    pieces = ["".join(letters[byte] for byte in text) for text in (*map(str.encode, _TEXTS), *_SPLIT)]
    assert all(letters[text[0]] == piece for text, piece in by_byte.items())
    tokens = dict.fromkeys(["<end>", *letters, *pieces])
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = to_bytes, decoders.ByteLevel()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(str(Path(folder) / "tokenizer.json"))
        return load_tokenizer(Path(folder), [END_ID], len(vocabulary))


def _letters() -> list[str]:
    """Returns the letter that stands for each byte in a byte-level vocabulary."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {
        byte: chr(256 + number) for number, byte in enumerate(others)
    }
    return [letters[byte] for byte in range(256)]
