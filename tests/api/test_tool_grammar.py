"""Grammars of tool choices: which functions they allow, in the text of each format."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from api.openai.schemas import ChatCompletionRequest
from api.openai.tool_calls import OfferedTools, offered_tools
from api.openai.tool_grammar import grammar_of
from engine.grammar.formats import WHITESPACE
from tests.support.text_base import SPECIAL, TOOL_TEMPLATE, write_base
from tokenization.codec import TextCodec
from tokenization.tools.deltas import ToolFunction
from tokenization.tools.formats import ToolFormat

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "get_time"}},
]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    folder = tmp_path_factory.mktemp("grammar")
    return TextCodec.load(write_base(folder, TOOL_TEMPLATE, more_special=["[TOOL_CALLS]"]))


def rules(text: TextCodec, format: str, choice: Any, **fields: Any) -> list[str]:
    request = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": TOOLS, **fields}
    body = msgspec.convert(request | {"tool_choice": choice}, ChatCompletionRequest)
    tools = offered_tools(body, text, ToolFormat.of(text, format))
    assert isinstance(tools, OfferedTools)
    return grammar_of(tools).source.splitlines()


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def json_rule(rule: str, schema: dict[str, Any]) -> str:
    return f"{rule}: %json {json.dumps(schema | {'x-guidance': {'whitespace_pattern': WHITESPACE}})}"


NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("format", "start", "expected"),
    [
        (
            "hermes",
            '"<tool_call>" call more',
            r'call_0: "\n{\"name\": \"get_time\", \"arguments\": " call_0_arguments "}\n</tool_call>"',
        ),
        (
            "llama",
            "call more",
            r'call_0: "{\"name\": \"get_time\", \"parameters\": " call_0_arguments "}"',
        ),
        (
            "mistral",
            f'<[{len(SPECIAL)}]> " [" call more "]"',
            r'call_0: "{\"name\": \"get_time\", \"arguments\": " call_0_arguments "}"',
        ),
        (
            "mistral_args",
            f"<[{len(SPECIAL)}]> call more",
            'call_0: "get_time[ARGS]" call_0_arguments',
        ),
    ],
)
def test_a_named_function_is_called_once(text: TextCodec, format: str, start: str, expected: str) -> None:
    assert rules(text, format, named("get_time"), parallel_tool_calls=True) == [
        f"start: {start}",
        "call: call_0",
        'more: ""',
        expected,
        json_rule("call_0_arguments", NO_ARGUMENTS),
    ]


def test_required_calls_are_of_any_function(text: TextCodec) -> None:
    found = rules(text, "hermes", "required")
    assert found[:3] == [
        'start: "<tool_call>" call more',
        "call: call_0 | call_1",
        r'more: ("\n<tool_call>" call)*',
    ]
    assert json_rule("call_0_arguments", CITY) in found
    assert 'more: ""' in rules(text, "hermes", "required", parallel_tool_calls=False)


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_only_allowed_tools_are_called(text: TextCodec, mode: str) -> None:
    allowed: dict[str, Any] = {"mode": mode, "tools": [named("get_time")]}
    found = rules(text, "llama", {"type": "allowed_tools", "allowed_tools": allowed})
    assert "get_weather" not in "".join(found)
    assert ("TEXT" in "".join(found)) is (mode == "auto")


def test_by_default_a_message_is_text_or_calls(text: TextCodec) -> None:
    for choice in ("auto", None):
        found = rules(text, "hermes", choice)
        assert r"start: TEXT? | open_0 call more" in [rule.replace("  ", " ") for rule in found]


def test_tagged_parameters_have_rules_of_their_own(text: TextCodec) -> None:
    found = rules(text, "qwen_coder", named("get_weather"))
    assert "call_0_arguments: call_0_arguments_0 call_0_arguments_1?" in found
    assert r'call_0_arguments_0: "<parameter=city>\n" call_0_arguments_0_text' in found
    assert json_rule("call_0_arguments_1_json", {"type": "integer"}) in found


def test_loose_functions_take_any_object(text: TextCodec) -> None:
    function = ToolFunction("get_weather", CITY)
    tools = OfferedTools(ToolFormat.of(text, "hermes"), (function,), True)  # type: ignore[arg-type]
    assert (
        json_rule("call_0_arguments", {"type": "object"})
        in grammar_of(tools, loose=["get_weather"]).source.splitlines()
    )
