"""Requests for responses as chat requests: items as messages, several system messages, names in errors."""

from __future__ import annotations

from typing import Any

import pytest

from api.errors import InvalidValue, UnsupportedParameter
from api.openai.custom_tools import read_input
from api.openai.prompts import encode_chat
from api.openai.schemas import ChatCompletionRequest
from api.responses.chat_request import chat_request
from api.responses.error_names import response_names
from api.responses.items import read_items, stored_form
from api.responses.schemas import ResponseRequest
from engine.protocol import EngineInfo
from tests.api.fakes import FakeEngine
from tests.support.text_base import TEMPLATE, write_base
from tokenization.codec import TextCodec

ONE_SYSTEM = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role == 'system' and not loop.first %}{{ raise_exception('system first') }}{% endif %}"
    "<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
DROPS_SYSTEMS = (
    "{% for message in messages %}{% if message.role != 'system' or loop.first %}"
    "<|{{ message.role }}|>{{ message.content }}<|end|>{% endif %}{% endfor %}"
)


def chat(items: list[dict[str, Any]], **fields: Any) -> ChatCompletionRequest:
    stored = [stored_form(item) for item in read_items(items, "input")]
    return chat_request(ResponseRequest(model="sapling", input=items, **fields), stored)


def said(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def call(call_id: str, name: str = "f") -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": "{}"}


def result(call_id: str, output: Any = "x") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def test_a_message_and_its_calls_are_one() -> None:
    made = chat(
        [
            said("user", "q"),
            said("assistant", [{"type": "output_text", "text": "wait"}]),
            call("c1"),
            call("c2"),
            result("c1"),
            result("c2", [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]),
            call("c3"),
            result("c3"),
        ],
        instructions="brief",
    )
    assert [message.role for message in made.messages] == [
        *("system", "user", "assistant", "tool", "tool", "assistant", "tool")
    ]
    _, _, answer, first, second, third, _ = made.messages
    assert answer.content == "wait"
    assert [one.id for one in answer.tool_calls or ()] == ["c1", "c2"]
    assert (first.tool_call_id, second.content, third.content) == ("c1", "a\nb", None)


def thought(text: str, **fields: Any) -> dict[str, Any]:
    return {
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": text}],
        **fields,
    }


def test_thinking_belongs_to_what_follows_it() -> None:
    made = chat(
        [
            said("user", "q"),
            thought("one"),
            thought("two", id="rs_1", status="completed", encrypted_content=None),
            said("assistant", "wait"),
            thought("three"),
            call("c1"),
            call("c2"),
            result("c1"),
            result("c2"),
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "in short"}]},
            said("assistant", "done"),
            said("user", "more"),
            thought("cut off"),
            said("user", "go on"),
            {"type": "reasoning", "summary": []},
            said("assistant", "yes"),
        ]
    )
    found = [
        (one.content, one.reasoning, [each.id for each in one.tool_calls or ()])
        for one in made.messages
        if one.role == "assistant"
    ]
    assert found == [
        ("wait", "one\n\ntwo", []),
        ("", "three", ["c1", "c2"]),
        ("done", "in short", []),
        ("", "cut off", []),
        ("yes", None, []),
    ]
    assert [message.role for message in made.messages[-3:]] == ["assistant", "user", "assistant"]


def test_a_result_needs_a_call_of_its_kind() -> None:
    for items in (
        [result("c1")],
        [result("c1"), call("c1")],
        [call("c1"), {"type": "custom_tool_call_output", "call_id": "c1", "output": "x"}],
    ):
        with pytest.raises(InvalidValue, match="call_id") as caught:
            chat(items)
        assert caught.value.param == "input"


def test_a_custom_tools_input() -> None:
    assert read_input('{"input": "a\\nb"}') == "a\nb"
    for broken in ("", "{", '{"input": 1}', '"x"'):
        assert read_input(broken) == broken
    for cut in ("a\\nb", "a\\nb\\", "a\\nb\\u00e"):
        assert read_input('{"input": "' + cut) == "a\nb", "what is complete of an answer that was cut off"


async def systems(codec: TextCodec, template: str, tmp_path: Any) -> str:
    """The text of a conversation with three system messages."""
    text = TextCodec.load(write_base(tmp_path / "base", template))
    info = FakeEngine(codec).info
    assert isinstance(info, EngineInfo)
    body = chat(
        [said("developer", "one"), said("system", "two"), said("user", "q"), said("system", "three")],
        instructions="zero",
    )
    ids = await encode_chat(body, info, text)
    return b"".join(
        (text.special_token(token_id) or "").encode() or text.vocabulary.decode([token_id])
        for token_id in ids
    ).decode()


async def test_system_messages_stay_where_the_template_takes_them(codec: TextCodec, tmp_path: Any) -> None:
    assert await systems(codec, TEMPLATE, tmp_path) == (
        "<|bos|><|system|>zero<|end|><|system|>one<|end|><|system|>two<|end|><|user|>q<|end|>"
        "<|system|>three<|end|><|assistant|>"
    )


@pytest.mark.parametrize("template", [ONE_SYSTEM, DROPS_SYSTEMS])
async def test_system_messages_are_merged_where_it_takes_one(
    codec: TextCodec, template: str, tmp_path: Any
) -> None:
    found = await systems(codec, template, tmp_path)
    assert "<|system|>zero\n\none\n\ntwo\n\nthree<|end|><|user|>q<|end|>" in found


@pytest.mark.parametrize(
    ("param", "renamed"),
    [
        ("messages", "input"),
        ("messages[3].tool_calls", "input"),
        ("response_format.json_schema.schema.properties.a", "text.format.schema.properties.a"),
        ("tools[2].function.parameters.type", "tools[2].parameters.type"),
        ("tools[0].function.parameters.properties.messages", "tools[0].parameters.properties.messages"),
        ("messages[3].content[0].text", "input"),
        ("reasoning_effort", "reasoning.effort"),
        ("tool_choice.function.name", "tool_choice.name"),
        ("tool_choice.allowed_tools.tools[1].function.name", "tool_choice.tools[1].name"),
        ("max_completion_tokens", "max_output_tokens"),
        ("temperature", "temperature"),
    ],
)
def test_errors_name_the_fields_of_a_response(param: str, renamed: str) -> None:
    with pytest.raises(UnsupportedParameter) as caught, response_names():
        raise UnsupportedParameter(f"'{param}' is not 'supported' by the messages.", param)
    assert caught.value.param == renamed
    assert caught.value.message == f"'{renamed}' is not 'supported' by the messages."
