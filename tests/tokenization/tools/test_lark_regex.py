"""Grammars as one regular expression: a JSON string held to it is of the grammar, escapes and all."""

from __future__ import annotations

import json
from itertools import pairwise
from random import Random

import pytest
from llguidance import LLMatcher, LLTokenizer

from engine.grammar.exact_schemas import exact
from tokenization.tools.lark_regex import lark_regex
from tokenization.tools.unicode_regex import unicode_regex

BYTES = LLTokenizer("byte")
_DOUBLING = [f"{one}: {next} {next} {next} {next}" for one, next in pairwise("abcdefgh")]
LONG = "\n".join(["start: a", *_DOUBLING, 'h: "xyz"'])
_GROUPS = [f"a{n}: {'(' * 30} a{n + 1} {'){1,1}' * 30}" for n in range(29)]
GROUPS_IN_RULES = "\n".join(["start: a0", *_GROUPS, 'a29: "x"'])
PATCH = r"""
start: begin hunk+ end
begin: "*** Begin Patch" LF
end: "*** End Patch" LF?
hunk: add | move
add: "*** Add File: " filename LF ("+" /(.*)/ LF -> line)+
move: "*** Move \"" /[^"\n]+/ "\"" LF [note]  // a comment
filename: /(.+)/
note: "# " ("a".."c"){2,3} WORD~1..1 " END"i LF
  | "#\\" LF
%import common.LF
%import common (WORD)
"""
SPACED = 'start: "a"? b* ("c" | )\nb: "b" [""]\n%ignore " "'
LIST = 'start: NUMBER ("," NUMBER)* ";"\nNUMBER: DIGIT+ | "-" /\\d/\nDIGIT: "0".."9"\n%ignore / +/'


def matcher(grammar: str) -> LLMatcher:
    found = LLMatcher(BYTES, grammar, log_level=0)
    assert not found.is_error(), found.get_error()
    return found


def takes(grammar: str, text: str) -> bool:
    found = matcher(grammar)
    data = list(text.encode())
    return found.try_consume_tokens(data) == len(data) and found.is_accepting()


def in_json(regex: str) -> str:
    return LLMatcher.grammar_from_json_schema(exact({"type": "string", "pattern": f"^(?:{regex})$"}))


@pytest.mark.parametrize(
    ("source", "good", "bad"),
    [
        (
            PATCH,
            [
                '*** Begin Patch\n*** Add File: "a"\\b 🙂\n+x\t= "1"\n+\n*** End Patch\n',
                '*** Begin Patch\n*** Move "x"\n# abText eNd\n*** Move "y"\n#\\\n*** End Patch',
            ],
            [
                "*** Begin Patch\n*** End Patch",
                "*** Begin Patch\n*** Add File: \n+x\n*** End Patch",
                '*** Begin Patch\n*** Move "x"\n# adText END\n*** End Patch',
                "*** Begin Patch\\n*** Add File: a\n+x\n*** End Patch",
            ],
        ),
        (LIST, ["1,22 , -3 ;", "7;", "0  ;"], ["", " 1;", "1 2;", "-33;", "1,;", "0; "]),
        (SPACED, ["", "a", "a b  c", "b", "c", "bb c"], [" a", "c a", " "]),
        ('start: (A | "") "\\u0041"?\nA: /[^a]/i', ["", "A", "\n", "\x01A", "\\"], ["a", "xx"]),
    ],
    ids=["patch", "list", "spaced", "classes"],
)
def test_texts_of_a_grammar(source: str, good: list[str], bad: list[str]) -> None:
    held = in_json(lark_regex(source))
    written = LLMatcher.grammar_from_lark(source)
    for text in good:
        assert takes(written, text), text
        assert takes(held, json.dumps(text, ensure_ascii=False)), text
    for text in bad:
        assert not takes(written, text), text
        assert not takes(held, json.dumps(text, ensure_ascii=False)), text


@pytest.mark.parametrize("source", [PATCH, LIST, SPACED], ids=["patch", "list", "spaced"])
def test_whatever_is_written_is_of_the_grammar_once_it_is_decoded(source: str) -> None:
    """Random texts, by the masks that a model is held to."""
    held, written = in_json(lark_regex(source)), LLMatcher.grammar_from_lark(source)
    random, num_ended = Random(5), 0
    for _ in range(60):
        found, text = matcher(held), bytearray()
        while not found.is_stopped() and len(text) < 400:
            mask = found.compute_bitmask()
            allowed = [byte for byte in range(256) if mask[byte // 8] >> (byte % 8) & 1]
            if not allowed:
                break
            likely = [byte for byte in allowed if chr(byte) in '\\n"*+;0'] or allowed
            byte = random.choice(likely if random.random() < 0.6 else allowed)
            assert found.consume_token(byte)
            text.append(byte)
        if found.is_accepting():
            num_ended += 1
            assert takes(written, json.loads(text.decode())), text
    assert num_ended > 5


@pytest.mark.parametrize(
    ("regex", "good", "bad"),
    [
        (r"\w+\W\d[^\d\s]", "äb-٣x", "äbé٣x"),
        (r'a\n."\\', 'a\nx"\\', "a\n\n"),
        (r"[\w\n]+", "é\n_", "é-"),
    ],
)
def test_regular_expressions(regex: str, good: str, bad: str) -> None:
    written = LLMatcher.grammar_from_regex(regex)
    held = in_json(unicode_regex(regex))
    assert takes(written, good)
    assert takes(held, json.dumps(good, ensure_ascii=False))
    assert not takes(written, bad)
    assert not takes(held, json.dumps(bad, ensure_ascii=False))


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ('start: "(" start ")" | "x"', "'start' refers to itself"),
        ("start: a\na: b\nb: /x/ a?", "'a' refers to itself"),
        ("start: A\nA: /a/ & ~/b/", "'&'"),
        ('start: %json {"type": "object"}', "'%json'"),
        ("start: <|end|>", "'<'"),
        ("start[lazy]: /a/", r"'\['"),
        ("start: x", "'x' is not defined"),
        ("start: A\n%import common.PYTHON", "common.PYTHON"),
        ("start: /a #)/x", "flags 'x'"),
        ("start: /(?x)a #)/", "flag 'x'"),
        ('start: "a"{20000}', "10000 times"),
        (LONG, "characters"),
        (f"start: {'a ' * 16_000}\na: /{'x' * 30_000}/", "characters"),
        ("start: " + "(" * 20_000, "30 groups"),
        ("\n".join([f"a{n}: a{n + 1}" for n in range(5_000)] + ["start: a0"]), "30 rules"),
        (GROUPS_IN_RULES, "200 parts"),
        ("start: \"a\" 'b'", "\"'b'\""),
    ],
)
def test_what_cannot_be_rewritten_says_why(source: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        lark_regex(source)
