"""Texts of the grammars of tool calls are what the parsers read as valid calls, in every format."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
from llguidance import LLMatcher

from engine.grammar.formats import parser_limits
from engine.grammar.tokenizer import load_tokenizer
from engine.vocabulary import Vocabulary
from tests.support.text_base import TOOL_TEMPLATE, write_base
from tests.tokenization.tools.shapes import TEXTS
from tokenization.codec import TextCodec
from tokenization.tools.argument_rules import ANY_OBJECT, not_held_in_tags
from tokenization.tools.call_shapes import SHAPES
from tokenization.tools.deltas import ArgumentsDelta, CallStart, TextDelta, ToolFunction
from tokenization.tools.formats import FORMATS, ToolFormat
from tokenization.tools.grammar import call_grammar, message_grammar

END = 1
PLACES = ToolFunction(
    "find_places",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 8},
            "kind": {"enum": ["park", "café"]},
            "limit": {"type": "integer", "minimum": 1, "maximum": 9},
            "near": {"$ref": "#/$defs/Point"},
            "note": {"type": ["string", "null"]},
        },
        "required": ["city", "kind", "near"],
        "additionalProperties": False,
        "$defs": {
            "Point": {
                "type": "object",
                "properties": {
                    "x": {"type": "number", "minimum": -90, "maximum": 90},
                    "day": {"type": "string", "format": "date"},
                },
                "required": ["x"],
                "additionalProperties": False,
            }
        },
    },
)
TIME = ToolFunction("get_time", {})
FUNCTIONS = (PLACES, TIME)
SPECIAL = {
    "mistral": ["[TOOL_CALLS]"],
    "mistral_args": ["[TOOL_CALLS]", "[ARGS]"],
    "llama": ["<|python_tag|>"],
}
FORMS = [
    (name, is_special) for name in FORMATS for is_special in ([False, True] if name in SPECIAL else [False])
]
EMPTY = {"type": "object", "additionalProperties": False}


@pytest.fixture(
    scope="module", params=FORMS, ids=lambda form: f"{form[0]}-{'special' if form[1] else 'text'}"
)
def form(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Form:
    name, is_special = request.param
    return Form(tmp_path_factory.mktemp(name) / "base", name, SPECIAL[name] if is_special else [])


class Form:
    """A format of calls with a tokenizer; its marks are special tokens or text."""

    def __init__(self, folder: Path, name: str, special: list[str]) -> None:
        write_base(folder, TOOL_TEMPLATE, more_special=special)
        self.codec = TextCodec.load(folder)
        found = ToolFormat.of(self.codec, name)
        assert found is not None
        self.format = found
        self.tokenizer = load_tokenizer(folder, [END], len(Vocabulary.load(folder).token_bytes))

    def matcher(self, grammar: str) -> LLMatcher:
        matcher = LLMatcher(
            self.tokenizer, LLMatcher.grammar_from_lark(grammar), log_level=0, limits=parser_limits()
        )
        assert not matcher.is_error(), matcher.get_error()
        return matcher

    def ids(self, text: str) -> list[int]:
        """Token ids, with markers as the special tokens that they may be."""
        return self.codec.encode_completion("", text)[1]

    def follows(self, grammar: str, text: str) -> bool:
        """Whether the grammar allows a message with this text and nothing more."""
        matcher = self.matcher(grammar)
        return all(matcher.consume_token(token) for token in self.ids(text)) and matcher.is_accepting()

    def draw(self, grammar: str, seed: int, begin: str = "", tokens: int = 400) -> str | None:
        """A message of random tokens that the grammar allows; None if it has not ended after so many."""
        matcher, rng, found = self.matcher(grammar), random.Random(seed), self.ids(begin)
        assert all(matcher.consume_token(token) for token in found)
        for _ in range(tokens):
            mask = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
            allowed = np.flatnonzero(mask)
            token = int(allowed[rng.randrange(len(allowed))])
            if matcher.is_accepting() and rng.random() < 0.1:
                token = END
            if token == END:
                return self.format.vocabulary.decode(found).decode()
            assert matcher.consume_token(token)
            found.append(token)
        return None

    def read(self, message: str) -> tuple[str, list[tuple[str, Any]]]:
        """The text of a message, and its calls with their arguments."""
        parser = self.format.parser(FUNCTIONS)
        text, calls = "", []
        for delta in parser.push(message) + parser.finish():
            if isinstance(delta, TextDelta):
                text += delta.text
            elif isinstance(delta, CallStart):
                calls.append([delta.name, ""])
            elif isinstance(delta, ArgumentsDelta):
                calls[-1][1] += delta.text
        return text, [(name, json.loads(arguments)) for name, arguments in calls]

    @property
    def marker(self) -> str:
        return SHAPES[self.format.name].openings[0].marker

    @property
    def is_tagged(self) -> bool:
        return self.format.name == "qwen_coder"


def check_calls(form: Form, calls: list[tuple[str, Any]]) -> None:
    assert calls
    for name, arguments in calls:
        schema = json.loads(json.dumps(PLACES.parameters)) if name == "find_places" else EMPTY
        if form.is_tagged and name == "find_places":
            del schema["properties"]["city"]["maxLength"]  # refused in strict functions
        jsonschema_rs.validate(schema, arguments)


@pytest.mark.parametrize("is_parallel", [False, True])
def test_required_calls_are_read_as_valid_calls(form: Form, is_parallel: bool) -> None:
    grammar = call_grammar(form.format, FUNCTIONS, is_parallel=is_parallel)
    messages = [message for seed in range(20) if (message := form.draw(grammar, seed)) is not None]
    assert len(messages) >= 4
    found = [form.read(message) for message in messages]
    for text, calls in found:
        assert text == ""
        check_calls(form, calls)
    assert any(len(calls) > 1 for _, calls in found) is is_parallel


@pytest.mark.parametrize("said", ["", "Let me look.\n", "<tool_cal {"])
def test_a_call_that_begins_becomes_a_valid_call(form: Form, said: str) -> None:
    grammar = message_grammar(form.format, FUNCTIONS, is_parallel=True)
    drawn = [form.draw(grammar, seed, said + form.marker) for seed in range(16)]
    messages = [message for message in drawn if message is not None]
    assert len(messages) >= 3
    for message in messages:
        text, calls = form.read(message)
        assert text == said.rstrip()
        check_calls(form, calls)


def test_text_without_a_call_is_free(form: Form) -> None:
    grammar = message_grammar(form.format, FUNCTIONS, is_parallel=True)
    for text in [
        "",
        "Hello",
        '{"name": "Anna", "age": 3}',
        '{"a": [1]} x',
        "[TOOL",
        "<tool_call",
        "a < b | c",
    ]:
        assert form.follows(grammar, text)
        assert form.read(text) == (text, [])


@pytest.mark.parametrize("message", [message for name, message in TEXTS if name == "llama"])
def test_an_object_that_only_looks_like_a_call_is_text(tmp_path: Path, message: str) -> None:
    form = Form(tmp_path / "base", "llama", [])
    if "<|python_tag|>" not in message:
        assert form.follows(message_grammar(form.format, FUNCTIONS, is_parallel=True), message)


@pytest.mark.parametrize(
    "begin",
    [
        '{"name": "find_places", "parameters": {',
        '\n{ "type":"function","name" : "find_places" , "arguments":{',
    ],
)
def test_a_bare_call_is_held_from_its_arguments_on(tmp_path: Path, begin: str) -> None:
    form = Form(tmp_path / "base", "llama", [])
    grammar = message_grammar(form.format, FUNCTIONS, is_parallel=True)
    drawn = [form.draw(grammar, seed, begin) for seed in range(12)]
    messages = [message for message in drawn if message is not None]
    assert messages
    for message in messages:
        text, calls = form.read(message)
        assert text == ""
        check_calls(form, calls)
    assert not form.follows(grammar, f'{begin}"city": "Rome"}}}}')
    assert not form.follows(grammar, '{"parameters": {"city": "Rome"}, "name": "find_places"}')


def test_an_answer_of_a_schema_or_calls(form: Form) -> None:
    answer = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    if form.format.name == "llama":
        with pytest.raises(ValueError, match="JSON objects"):
            message_grammar(form.format, FUNCTIONS, is_parallel=True, answer=answer)
        return
    grammar = message_grammar(form.format, FUNCTIONS, is_parallel=False, answer=answer)
    assert form.follows(grammar, '{"n": 3}')
    assert not form.follows(grammar, '{"n": "x"}')
    assert not form.follows(grammar, "Hello")
    messages = [one for seed in range(12) if (one := form.draw(grammar, seed, form.marker)) is not None]
    assert messages
    for message in messages:
        text, calls = form.read(message)
        assert text == ""
        check_calls(form, calls)


def test_tags_say_which_parts_they_do_not_hold() -> None:
    assert not_held_in_tags(PLACES.parameters) == ("properties", "city", "maxLength")
    assert not_held_in_tags({"properties": {"a": {"anyOf": [{"type": "string", "pattern": "x"}]}}}) == (
        "properties",
        "a",
        "anyOf",
    )
    assert not_held_in_tags({"properties": {"a>b": {"type": "integer"}}}) == ("properties", "a>b")
    assert not_held_in_tags({"$ref": "#/$defs/a"}) == ("$ref",)
    held = {"a": {"type": "string"}, "b": {"type": "array", "items": {"type": "string", "maxLength": 3}}}
    assert not_held_in_tags({"properties": held}) is None


def test_any_object_is_written_as_tags(tmp_path: Path) -> None:
    form = Form(tmp_path / "base", "qwen_coder", [])
    grammar = call_grammar(form.format, [ToolFunction("get_time", ANY_OBJECT)], is_parallel=False)
    value = "<parameter=zone>\nCET\n\n+1\n</parameter>"
    call = f"<tool_call>\n<function=get_time>\n{value}\n</function>\n</tool_call>"
    assert form.follows(grammar, call)
    assert form.read(call) == ("", [("get_time", {"zone": "CET\n\n+1"})])
    assert not form.follows(grammar, call.replace("CET", "</parameter>"))
