"""Where a JSON text is known to be in a state, and where it is not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.grammar.schema_nodes import read_schema
from engine.grammar.text_state import MAX_PLACES, MaskKey, SchemaTexts
from engine.grammar.token_texts import TokenTexts
from tests.engine.grammar.crossing_tokens import crossing_tokenizer

TOKENS = TokenTexts(crossing_tokenizer())
IDS = {TOKENS.of(number)[0]: number for number in range(crossing_tokenizer().vocab_size)}
TEXT = {"type": "string", "maxLength": 9}


def key_after(schema: Any, text: str | bytes) -> MaskKey | None:
    """Token by token, each of one byte."""
    return key_of(SchemaTexts(read_schema(json.dumps(schema)), TOKENS), text)


def key_of(texts: SchemaTexts, text: str | bytes) -> MaskKey | None:
    state = texts.start()
    for byte in text.encode() if isinstance(text, str) else text:
        state.advance(IDS[bytes((byte,))])
    return state.key


def record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (TEXT, '"'),
        (TEXT, '"\\n\\u000aé🙂'),
        (record(a=TEXT), '{"a": "x'),
        (record(a={"type": "integer"}, b=TEXT), '{"a": 12, "b": "x'),
        (record(a={}, b=TEXT), '{"a": {"b": ["}\\"", {}]}, "b": "x'),
        (record(a={"type": ["string", "null"]}), '{"a":"x'),
        (record(a={"anyOf": [{"type": "null"}, record(b=TEXT)]}), '{"a":{"b":"x'),
        ({"type": "array", "items": TEXT}, '["a", "'),
        (
            {"$ref": "#/$defs/it", "$defs": {"it": record(a={"$ref": "#/$defs/it"}, b=TEXT)}},
            '{"a":{"a":{"b":"',
        ),
        ({"type": "string", "pattern": "^[a-z]{3,9}$"}, '"abc'),
    ],
)
def test_inside_a_string_there_is_a_key(schema: Any, text: str) -> None:
    assert key_after(schema, text) is not None


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (TEXT, '"123456789'),  # the quotation mark is forced
        (TEXT, '"\\'),
        (TEXT, '"\\u00'),
        (TEXT, '"\\ud83d'),
        (TEXT, b'"\xc3'),
        (TEXT, '"a"'),
        (record(a=TEXT), '{"a'),
        (record(a=TEXT), '{"b":"x'),
        (record(a=TEXT, b=TEXT), '{"b":"x","a":"x'),  # not the schema's order
        ({"enum": ["one", "two"]}, '"o'),
        ({"anyOf": [TEXT, {"const": "one"}]}, '"o'),
        ({"type": "string", "not": {"const": "a"}}, '"o'),
        ({"type": "string", "minLength": 1, "pattern": "^a*$"}, '"a'),
        ({"type": "string", "pattern": "a"}, '"a'),
        ({"type": "string", "pattern": r"^\d{3}-a$"}, '"123'),
        ({"type": "string", "format": "email", "maxLength": 4}, '"ab'),  # an @ is forced
        ({"type": "string", "format": "ipv4"}, '"1'),
        (record(a={"allOf": [TEXT]}), '{"a":"'),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, '"'),
        ({"$ref": "other.json"}, '"'),
        (True, '"'),
    ],
)
def test_elsewhere_there_is_none(schema: Any, text: str | bytes) -> None:
    assert key_after(schema, text) is None


def test_what_was_written_does_not_matter() -> None:
    schema = {"type": "array", "items": record(a=TEXT, b={"type": "string", "pattern": "^[a-z]*$"})}
    texts = SchemaTexts(read_schema(json.dumps(schema)), TOKENS)
    assert key_of(texts, '[{"a":"x","b":"ab') == key_of(texts, '[\n {"a": "🙂\\"yz", "b": "zzz')
    assert key_of(texts, '[{"a":"xy') == key_of(texts, '[{"a":"x","b":""},{"a":"é\\n')
    assert key_of(texts, '[{"a":"xy') != key_of(texts, '[{"a":"x')
    assert key_of(texts, '[{"a":"') != key_of(texts, '[{"b":"')


def test_items_near_the_bounds_are_told_apart() -> None:
    schema = {"type": "array", "items": TEXT, "minItems": 40, "maxItems": 80}
    texts = SchemaTexts(read_schema(json.dumps(schema)), TOKENS)
    keys = [key_of(texts, "[" + '"",' * number + '"') for number in range(80)]
    assert len({*keys[:20]}) == 1, "far from both"
    assert len({*keys[:40]}) > 4
    assert len({*keys[70:]}) > 4


def test_drafts_leave_the_state_as_it_is() -> None:
    texts = SchemaTexts(read_schema(json.dumps(record(a=TEXT))), TOKENS)
    state = texts.start()
    for token_id in (IDS[b'{"a":"'], IDS[b"ab"]):
        state.advance(token_id)
    before = state.key
    later = state.after([IDS[b"ab"], IDS[b"a"]])
    assert state.key == before != later.key


def test_places_are_bounded() -> None:
    schema = {"$ref": "#/$defs/it", "$defs": {"it": {"type": "array", "items": {"$ref": "#/$defs/it"}}}}
    texts = SchemaTexts(read_schema(json.dumps(schema)), TOKENS)
    state = texts.start()
    for _ in range(MAX_PLACES + 10):
        state.advance(IDS[b"["])
    assert len(texts._places) == 10
