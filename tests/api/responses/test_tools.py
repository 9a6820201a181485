"""Which functions a response calls, and how they are held to their schemas."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from tests.api.fakes import KEY
from tests.api.responses.conftest import CALL, WEATHER, Site

CLOCK: Any = {"type": "function", "name": "get_time", "parameters": {"type": "object", "properties": {}}}
STRICT: Any = {
    "type": "function",
    "name": "get_weather",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
RUN: Any = {"type": "custom", "name": "run"}


def grammar(site: Site) -> str:
    """What the last request is held to."""
    found = site.served.world.engine.submitted[-1].grammar
    assert found is not None
    return found.source


@pytest.mark.parametrize(
    ("choice", "allowed"),
    [
        ("required", {"get_weather", "get_time"}),
        ({"type": "function", "name": "get_weather"}, {"get_weather"}),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "get_weather"}],
            },
            {"get_weather"},
        ),
    ],
    ids=["required", "named", "allowed"],
)
def test_calls_are_required(sdk: openai.OpenAI, site: Site, choice: Any, allowed: set[str]) -> None:
    site.says(CALL)
    made = sdk.responses.create(
        model="sapling", input="Hi", tools=[WEATHER, CLOCK], tool_choice=choice, parallel_tool_calls=False
    )
    (call,) = made.output
    assert call.type == "function_call"
    assert json.loads(call.arguments) == {"city": "Paris"}
    assert made.parallel_tool_calls is False
    source = grammar(site)
    assert {name for name in ("get_weather", "get_time") if name in source} == allowed
    again = sdk.responses.create(model="sapling", input="Hi", tools=[WEATHER, CLOCK], tool_choice=choice)
    assert again.status == "completed"
    is_named = isinstance(choice, dict) and choice["type"] == "function"
    assert (grammar(site) == source) is is_named, "a named function is called once in any case"


def test_a_custom_tool_is_required(sdk: openai.OpenAI, site: Site) -> None:
    site.says('<tool_call>\n{"name": "run", "arguments": {"input": "ls"}}\n</tool_call>')
    choice: Any = {"type": "custom", "name": "run"}
    made = sdk.responses.create(model="sapling", input="Hi", tools=[RUN, CLOCK], tool_choice=choice)
    (call,) = made.output
    assert (call.type, call.input) == ("custom_tool_call", "ls")
    assert "get_time" not in grammar(site)


def test_no_tool_is_called(sdk: openai.OpenAI, site: Site) -> None:
    sdk.responses.create(model="sapling", input="Hi", tools=[WEATHER], tool_choice="none")
    assert site.served.world.engine.submitted[-1].grammar is None
    assert "get_weather" not in site.prompt


def test_a_strict_function(sdk: openai.OpenAI, site: Site) -> None:
    site.says(CALL)
    made = sdk.responses.create(model="sapling", input="Hi", tools=[STRICT])
    assert made.output[0].type == "function_call"
    assert made.tools[0].to_dict() == {**STRICT, "description": None}
    assert '"city"' in grammar(site).replace("\\", "")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (
            {"tools": [WEATHER, {**STRICT, "name": "x", "parameters": {"type": "object", "properties": {}}}]},
            "tools[1].parameters.additionalProperties",
        ),
        (
            {
                "tools": [
                    {
                        **STRICT,
                        "parameters": {
                            **STRICT["parameters"],
                            "properties": {"city": {"type": "string", "minLength": "many"}},
                        },
                    }
                ]
            },
            "tools[0].parameters.properties.city.minLength",
        ),
        ({"tools": [{**WEATHER, "parameters": {"type": "array"}}]}, "tools[0].parameters.type"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "absent"}}, "tool_choice.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {
                "tools": [WEATHER],
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "auto",
                    "tools": [
                        {"type": "function", "name": "get_weather"},
                        {"type": "function", "name": "absent"},
                    ],
                },
            },
            "tool_choice.tools[1].name",
        ),
    ],
    ids=str,
)
def test_what_is_refused_names_the_field_of_a_response(site: Site, body: dict[str, Any], param: str) -> None:
    answer = httpx.post(
        f"{site.served.url}/v1/responses",
        json={"model": "sapling", "input": "Hi", **body},
        headers={"authorization": f"Bearer {KEY}"},
        timeout=60,
    )
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    for name in (".function", "allowed_tools", "response_format"):
        assert name not in error["message"]
