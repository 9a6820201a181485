# ruff: noqa: E501
"""Grammars of tool choices: which functions they allow, in the text of each format."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from api.openai.schemas import ChatCompletionRequest
from api.openai.tool_calls import OfferedTools, offered_tools
from api.openai.tool_grammar import grammar_of
from tests.support.text_base import SPECIAL, TOOL_TEMPLATE, write_base
from tokenization.codec import TextCodec
from tokenization.tools.formats import FORMATS, ToolFormat

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


def rules(text: TextCodec, format: str, choice: Any, **fields: Any) -> list[str] | None:
    request = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": TOOLS, **fields}
    body = msgspec.convert(request | {"tool_choice": choice}, ChatCompletionRequest)
    tools = offered_tools(body, text, ToolFormat.of(text, format))
    assert isinstance(tools, OfferedTools)
    found = grammar_of(body, tools)
    return None if found is None else found.splitlines()


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


NO_ARGUMENTS = '{"type": "object", "properties": {}, "additionalProperties": false}'


@pytest.mark.parametrize(
    ("format", "expected"),
    [
        (
            "hermes",
            r'call_0: "<tool_call>\n{\"name\": \"get_time\", \"arguments\": " call_0_arguments "}\n</tool_call>"',
        ),
        ("llama", r'call_0: "{\"name\": \"get_time\", \"parameters\": " call_0_arguments "}"'),
        ("mistral", r'call_0: "{\"name\": \"get_time\", \"arguments\": " call_0_arguments "}"'),
        ("mistral_args", f'call_0: <[{len(SPECIAL)}]> "get_time[ARGS]" call_0_arguments'),
    ],
)
def test_a_named_function_is_called_once(text: TextCodec, format: str, expected: str) -> None:
    found = rules(text, format, named("get_time"))
    assert found is not None
    assert found[1:] == ["call: call_0", expected.strip(), f"call_0_arguments: %json {NO_ARGUMENTS}"]
    assert "*" not in found[0]
    assert ("<[5]>" in found[0]) is (format == "mistral")


def test_required_calls_are_of_any_function(text: TextCodec) -> None:
    found = rules(text, "hermes", "required")
    assert found is not None
    assert found[0].split() == ["start:", "call", '("\\n"', "call)*"]
    assert found[1] == "call: call_0 | call_1"
    assert f"call_0_arguments: %json {json.dumps(CITY)}" in found
    single = rules(text, "hermes", "required", parallel_tool_calls=False)
    assert single is not None
    assert single[0].split() == ["start:", "call"]


def test_only_allowed_tools_are_called(text: TextCodec) -> None:
    allowed: dict[str, Any] = {"mode": "required", "tools": [named("get_time")]}
    found = rules(text, "llama", {"type": "allowed_tools", "allowed_tools": allowed})
    assert found is not None
    assert "get_weather" not in "".join(found)
    assert (
        rules(text, "llama", {"type": "allowed_tools", "allowed_tools": allowed | {"mode": "auto"}}) is None
    )
    assert rules(text, "llama", "auto") is None


def test_tagged_parameters_have_rules_of_their_own(text: TextCodec) -> None:
    found = rules(text, "qwen_coder", named("get_weather"))
    assert found is not None
    assert found[-1] == "call_0_arguments: call_0_arguments_0 call_0_arguments_1?"
    assert r'call_0_arguments_0: "<parameter=city>\n" call_0_arguments_0_text' in found
    assert 'call_0_arguments_1_json: %json {"type": "integer"}' in found


def test_every_format_has_a_grammar(text: TextCodec) -> None:
    for name in FORMATS:
        assert rules(text, name, "required")
