"""Patterns of JSON strings: what a class excludes, it excludes escaped, too."""

from __future__ import annotations

import json

import pytest
from llguidance import LLMatcher, LLTokenizer

from engine.grammar.exact_patterns import exact_classes
from engine.grammar.exact_schemas import exact

BYTES = LLTokenizer("byte")


def takes(pattern: str, text: str) -> bool:
    grammar = LLMatcher.grammar_from_json_schema(exact({"type": "string", "pattern": pattern}))
    matcher = LLMatcher(BYTES, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    data = list(json.dumps(text, ensure_ascii=False).encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ('^[^"]+$', "a\\\n\t\x01", 'a"'),
        (r"^[^\\]+$", 'a"\n', "a\\"),
        (r'^[^"\n]*$', "a\\", "\n"),
        (r'^[^]"]+$', "a\\[", '"'),
        (r"^[\x00-!#-\[\]-~]+$", "a\n", "\\"),
        (r"^\P{P}+$", "a\n1", '"'),
        (r'^([^"\\]|\\.)+$', "a\\nb", '"'),
        (r'^[a-z[^"a-z]&&[^x]]+$', "a\n", '"'),
        (r"^(\x41|\u0042)\[[]]\]$", "A[]]", "A[x]"),
    ],
)
def test_what_a_class_excludes(pattern: str, good: str, bad: str) -> None:
    assert takes(pattern, good)
    assert not takes(pattern, bad)


@pytest.mark.parametrize("pattern", ["", "a", "[", "[^", "\\", "\\x", "\\u{", "[\\", "[[a]", "(?:.*)"])
def test_no_pattern_is_too_short(pattern: str) -> None:
    assert exact_classes(pattern).replace(r"&&[^\x00]]", "").replace("[", "", 1).endswith(pattern[1:])
