"""Checks of grammars: which pass, and what the others are refused for, and where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLTokenizer

from engine.protocol import Grammar
from tokenization.grammars import checking, locating
from tokenization.grammars.checking import MAX_NESTING, check
from tokenization.grammars.fork_server import load
from tokenization.grammars.messages import Accepted, Check, Refused

BASE = Path(__file__).resolve().parents[3] / "examples" / "sapling" / "weights" / "base"
MB = 1 << 20
STRICT = {
    "type": "object",
    "properties": {
        "a": {"type": "string"},
        "b": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"c": {"type": ["integer", "null"]}},
                "required": ["c"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["a", "b"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer() -> LLTokenizer:
    return load(BASE)


def checked(tokenizer: LLTokenizer, schema: Any, strict: bool = False) -> Accepted | Refused:
    source = schema if isinstance(schema, str) else json.dumps(schema)
    return check(Check(Grammar("json_schema", source), strict), tokenizer)


def inside(schema: Any, **definitions: Any) -> dict[str, Any]:
    """Two levels down, beside parts that compile."""
    middle = {"type": "array", "items": schema}
    properties = {"fine": {"type": "string", "minLength": 1}, "list": middle, "last": {"$ref": "#"}}
    return {"type": "object", "properties": properties, "$defs": definitions}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine, a place is searched to the end."""
    monkeypatch.setattr(locating, "SECONDS", 300.0)


def test_a_search_that_takes_too_long_names_the_place_it_came_to(
    tokenizer: LLTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = inside({"type": "array", "uniqueItems": True})
    monkeypatch.setattr(locating, "SECONDS", -1.0)
    refused = checked(tokenizer, schema)
    assert isinstance(refused, Refused)
    assert refused.path == ()
    assert "uniqueItems" in refused.reason


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"type": "string", "format": "colour"}, "format"),
        ({"type": "string", "pattern": "(?=a)b"}, "pattern"),
        ({"type": "string", "pattern": "(a"}, "pattern"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"type": "object", "if": {}, "then": {}}, "then"),
        ({"not": {"type": "string"}}, "not"),
        ({"type": "text"}, "type"),
        ({"$ref": "#/$defs/nowhere"}, "$ref"),
        ({"$ref": "https://example.com/schema"}, "$ref"),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "oneOf"),
        ({"made_up": 1}, "made_up"),
        ({"type": "string", "nullable": True}, "nullable"),
        ({"type": "object", "dependencies": {"a": ["b"]}}, "dependencies"),
    ],
)
def test_what_does_not_compile_is_named(tokenizer: LLTokenizer, schema: Any, path: str) -> None:
    refused = checked(tokenizer, inside(schema))
    assert isinstance(refused, Refused)
    assert refused.path == ("properties", "list", "items", path)
    assert refused.reason
    assert "json-schema:" not in refused.reason
    refused = checked(tokenizer, schema)
    assert isinstance(refused, Refused)
    assert refused.path == (path,)


def test_problems_behind_a_reference_and_in_a_list_are_named(tokenizer: LLTokenizer) -> None:
    definition = {"anyOf": [{"type": "string"}, {"type": "array", "contains": {}}]}
    refused = checked(tokenizer, inside({"$ref": "#/$defs/a~1b"}, **{"a/b": definition}))
    assert isinstance(refused, Refused)
    assert refused.path == ("$defs", "a/b", "anyOf", 1, "contains")
    assert refused.reason == "the keyword 'contains' is not supported"


@pytest.mark.parametrize(
    ("schema", "path", "reason"),
    [
        ("{", (), "Expecting property name"),
        ("[]", (), "must be an object"),
        ("true", (), "must be an object"),
        ('{"type": "object", "type": "string"}', (), "the key 'type' appears more than once"),
        ('{"x-guidance": {"lenient": true}, "if": {}}', ("x-guidance",), "'x-guidance' is not supported"),
        ('{"items":' * MAX_NESTING + "{}" + "}" * MAX_NESTING, (), "levels of nesting"),
        ('{"items":' * 40_000 + "{}" + "}" * 40_000, (), "levels of nesting"),
        ({"enum": []}, (), ""),
        ('{"const": ' + "9" * 5000 + "}", (), "4300 digits"),
        ({"type": "object", "properties": {"a": False}, "required": ["a"]}, (), ""),
    ],
)
def test_forms_that_are_refused(
    tokenizer: LLTokenizer, schema: Any, path: tuple[str, ...], reason: str
) -> None:
    refused = checked(tokenizer, schema)
    assert isinstance(refused, Refused)
    assert refused.path[: len(path)] == path
    assert reason in refused.reason


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        STRICT,
        {"type": "string", "format": "date-time"},
        {"type": "array", "items": {"$ref": "#"}},
        {"anyOf": [{"const": 1}, {"type": "null"}], "title": "t", "description": "d", "default": 1},
        {"type": "object", "properties": {"x-guidance": {"type": "string"}}},
    ],
)
def test_schemas_that_pass(tokenizer: LLTokenizer, schema: Any) -> None:
    answer = checked(tokenizer, schema)
    assert isinstance(answer, Accepted)
    assert 20_000 < answer.compiled_bytes < 2_000_000


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {
            "type": "object",
            "properties": {"a": schema},
            "required": ["a"],
            "additionalProperties": False,
        }
    return schema


def test_strict_mode_takes_openais_subset(tokenizer: LLTokenizer) -> None:
    assert isinstance(checked(tokenizer, STRICT, strict=True), Accepted)
    assert isinstance(checked(tokenizer, nested(10), strict=True), Accepted)


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"type": "array", "items": {}}, ("type",)),
        ({"anyOf": [STRICT]}, ("type",)),
        (STRICT | {"additionalProperties": True}, ("additionalProperties",)),
        ({key: one for key, one in STRICT.items() if key != "required"}, ("required",)),
        (STRICT | {"required": ["a"]}, ("required",)),
        (
            STRICT | {"properties": {"a": {}, "b": {"type": "array", "items": {"type": "object"}}}},
            ("properties", "b", "items", "additionalProperties"),
        ),
        (STRICT | {"$defs": {"d": {"type": "object"}}}, ("$defs", "d", "additionalProperties")),
        (nested(11), ("properties", "a") * 10),
        (
            STRICT | {"properties": {"a": {"enum": list(range(1001))}, "b": {}}},
            ("properties", "a", "enum"),
        ),
    ],
)
def test_strict_mode_names_what_is_outside(
    tokenizer: LLTokenizer, schema: Any, path: tuple[str, ...]
) -> None:
    refused = checked(tokenizer, schema, strict=True)
    assert isinstance(refused, Refused)
    assert refused.path == path


@pytest.mark.parametrize(
    ("grammar", "is_accepted"),
    [
        (Grammar("regex", "[a-c]{4}-[0-9]{2}"), True),
        (Grammar("regex", "(a"), False),
        (Grammar("regex", "(?<=a)b"), False),
        (Grammar("choice", '["a \\"quoted\\" one", "größe"]'), True),
        (Grammar("lark", 'start: "SELECT " NAME\nNAME: /[a-z]{1,8}/'), True),
        (Grammar("lark", "begin: /a/"), False),
        (Grammar("lark", 'start: "a" other'), False),
    ],
)
def test_other_kinds(tokenizer: LLTokenizer, grammar: Grammar, is_accepted: bool) -> None:
    answer = check(Check(grammar, False), tokenizer)
    assert isinstance(answer, Accepted) is is_accepted
    if isinstance(answer, Refused):
        assert answer.path == ()
        assert answer.reason


def wide(num_properties: int) -> dict[str, Any]:
    """Optional strings, each with a bound of its own: every mask follows all that may still come."""
    properties = {f"p{n}": {"type": "string", "maxLength": 50 + n} for n in range(num_properties)}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def test_what_takes_much_memory_compiled_is_refused(
    tokenizer: LLTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = checked(tokenizer, wide(600))
    assert isinstance(answer, Accepted)
    assert answer.compiled_bytes > 2 * MB
    monkeypatch.setattr(checking, "MAX_COMPILED_BYTES", 2 * MB)
    refused = checked(tokenizer, wide(600))
    assert isinstance(refused, Refused)
    assert refused.is_final
    assert refused.reason.endswith("MB of memory; the limit is 2 MB")


def test_what_fills_the_lexer_is_refused(tokenizer: LLTokenizer) -> None:
    """It remembers which of the last 40 letters were vowels: each text has a state of its own."""
    answer = check(Check(Grammar("regex", "[a-z ]*[aeiou][a-z ]{40}x"), False), tokenizer)
    assert answer == Refused((), "the grammar is too complex to follow")


def test_slow_masks_are_refused_for_the_moment(
    tokenizer: LLTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(checked(tokenizer, wide(100)), Accepted)
    monkeypatch.setattr(checking, "MAX_USUAL_MASK_S", 1e-5)
    refused = checked(tokenizer, wide(1000))
    assert isinstance(refused, Refused)
    assert not refused.is_final, "the machine may be slow at the moment"
    assert "ms for most tokens" in refused.reason


@pytest.mark.parametrize(
    ("seconds", "reason"),
    [
        ([0.02] * 8, "following it takes 20 ms for most tokens; the limit is 10 ms"),
        ([0.02] * 7, ""),
        ([0.001] * 20 + [0.3], "following it takes 300 ms for a token; the limit is 250 ms"),
        ([0.3], "following it takes 300 ms for a token; the limit is 250 ms"),
        ([0.001] * 20 + [0.12] * 5, ""),
    ],
)
def test_which_masks_are_slow(seconds: list[float], reason: str) -> None:
    refused = checking.too_slow(seconds)
    assert ("" if refused is None else refused.reason) == reason
