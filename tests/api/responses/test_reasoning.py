"""Responses of models that think: items and events of their own, given back in later turns, counted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import Response

from tests.api.responses.conftest import CALL, WEATHER, Site, client_of, open_site, write_response_base
from tests.support.reasoning_templates import QWEN3
from tokenization.codec import TextCodec

THOUGHT = "<think>\nWhat could\n they want?\n</think>\n\nHello 🙂"
TEMPLATE = "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}" + QWEN3


@pytest.fixture(scope="module")
def thinking_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_response_base(tmp_path_factory.mktemp("thinking"), TEMPLATE)


@pytest.fixture
def thinker(thinking_base: Path, database_url: str, owner_url: str) -> Iterator[Site]:
    with open_site(thinking_base, TextCodec.load(thinking_base), database_url, owner_url) as opened:
        yield opened


@pytest.fixture
def sdk(thinker: Site) -> Iterator[openai.OpenAI]:
    with client_of(thinker) as opened:
        yield opened


def test_thinking_is_an_item_before_the_message(sdk: openai.OpenAI, thinker: Site) -> None:
    thinker.says(THOUGHT, reasoning_tokens=9)
    made = sdk.responses.create(
        model="sapling", input="Hello", reasoning={"effort": "low", "summary": "auto"}
    )
    assert Response.model_validate(made.model_dump(warnings="error"), strict=True)
    thinking, message = made.output
    assert thinking.type == "reasoning"
    assert (thinking.id[:3], thinking.status, thinking.summary) == ("rs_", "completed", [])
    assert [(part.type, part.text) for part in thinking.content or ()] == [
        ("reasoning_text", "What could\n they want?")
    ]
    assert (message.type, made.output_text) == ("message", "Hello 🙂")
    assert made.usage is not None
    assert made.usage.output_tokens_details.reasoning_tokens == 9
    assert made.reasoning is not None
    assert made.reasoning.effort == "low"
    reasoning = thinker.served.world.engine.submitted[-1].reasoning
    assert reasoning is not None
    assert reasoning.budget == 100
    assert sdk.responses.retrieve(made.id) == made


@pytest.mark.parametrize("per_step", [1, 1000])
def test_thinking_is_streamed_before_the_text(sdk: openai.OpenAI, thinker: Site, per_step: int) -> None:
    thinker.says(f"<think>\nHm, well.\n</think>\n\nWait.\n\n{CALL}", per_step=per_step)
    events = list(
        sdk.responses.create(
            model="sapling",
            input="Hello",
            tools=[WEATHER],
            stream=True,
            include=["reasoning.encrypted_content"],
        )
    )
    for event in events:
        type(event).model_validate_json(event.to_json())
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    first = ["created", "in_progress", "output_item.added", "content_part.added", "reasoning_text.delta"]
    assert kinds[:5] == first
    assert [kind for kind in kinds if kind.endswith(".done")] == [
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("function_call_arguments.done", "output_item.done"),
    ]
    assert kinds.index("reasoning_text.done") < kinds.index("output_text.delta")
    texts = {
        kind: "".join(event.delta for event in events if event.type == f"response.{kind}.delta")
        for kind in ("reasoning_text", "output_text")
    }
    assert texts["reasoning_text"] == "Hm, well."
    assert texts["output_text"].strip() == "Wait."
    last = events[-1]
    assert last.type == "response.completed"
    thinking, message, call = last.response.output
    assert (thinking.type, message.type, call.type) == ("reasoning", "message", "function_call")
    places = {
        event.item_id: event.output_index for event in events if event.type == "response.reasoning_text.delta"
    }
    assert places == {thinking.id: 0}
    done = next(event for event in events if event.type == "response.output_item.done")
    assert done.item == thinking
    assert sdk.responses.retrieve(last.response.id) == last.response


def test_the_stream_helper_accumulates_thinking(sdk: openai.OpenAI, thinker: Site) -> None:
    thinker.says(THOUGHT)
    with sdk.responses.stream(model="sapling", input="Hello") as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert final.output_text == "Hello 🙂"
    assert [item.type for item in final.output] == ["reasoning", "message"]


def test_earlier_thinking_goes_to_the_chat_template(sdk: openai.OpenAI, thinker: Site) -> None:
    """This template shows the thinking of the last turn only."""
    thinker.says(f"<think>\nI look.\n</think>\n\n{CALL}")
    first = sdk.responses.create(model="sapling", input="Weather?", tools=[WEATHER])
    thinking, call = first.output
    assert (thinking.type, call.type) == ("reasoning", "function_call")
    thinker.says("Sunny")
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}
    sdk.responses.create(model="sapling", input=[*[item.to_dict() for item in first.output]], tools=[WEATHER])
    assert "<think>\nI look.\n</think>" in thinker.prompt
    second = sdk.responses.create(
        model="sapling", input=[result], previous_response_id=first.id, tools=[WEATHER]
    )
    assert second.output_text == "Sunny"
    assert "sun" in thinker.prompt
    assert "I look." not in thinker.prompt, "as the template wants it"


def test_thinking_that_was_sent_is_stored_and_listed(sdk: openai.OpenAI, thinker: Site) -> None:
    thinker.says(THOUGHT)
    first = sdk.responses.create(model="sapling", input="Hello", store=False)
    history: Any = [{"role": "user", "content": "Hello"}, *[item.to_dict() for item in first.output]]
    made = sdk.responses.create(model="sapling", input=[*history, {"role": "user", "content": "And?"}])
    page: Any = sdk.responses.input_items.list(made.id, order="asc")
    assert [item.type for item in page.data] == ["message", "reasoning", "message", "message"]
    kept = page.data[1]
    assert kept.id.startswith("rs_")
    assert (kept.content[0].text, kept.summary) == ("What could\n they want?", [])
    reference: Any = {"type": "item_reference", "id": made.output[0].id}
    sdk.responses.create(model="sapling", input=[{"role": "user", "content": "Q"}, reference])
    assert "<think>\nWhat could\n they want?\n</think>" in thinker.prompt


def test_a_conversation_keeps_thinking(sdk: openai.OpenAI, thinker: Site) -> None:
    thinker.says(THOUGHT)
    conversation = sdk.conversations.create()
    sdk.responses.create(model="sapling", input="Hello", conversation=conversation.id)
    items = list(sdk.conversations.items.list(conversation.id, order="asc"))
    assert [item.type for item in items] == ["message", "reasoning", "message"]
    sdk.responses.create(model="sapling", input="And?", conversation=conversation.id)
    assert "Hello 🙂" in thinker.prompt


def test_a_background_response_thinks(sdk: openai.OpenAI, thinker: Site) -> None:
    thinker.says(THOUGHT, reasoning_tokens=9)
    queued = sdk.responses.create(
        model="sapling", input="Hello", background=True, reasoning={"effort": "low"}
    )
    deadline = time.monotonic() + 120
    while (found := sdk.responses.retrieve(queued.id)).status in ("queued", "in_progress"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert [item.type for item in found.output] == ["reasoning", "message"]
    assert found.usage is not None
    assert found.usage.output_tokens_details.reasoning_tokens == 9


def test_nothing_of_its_thinking_is_stored_without_store(sdk: openai.OpenAI, thinker: Site) -> None:
    thinker.says(THOUGHT)
    made = sdk.responses.create(model="sapling", input="Hello", store=False)
    thinker.change_caller(stores_nothing=True)
    list(sdk.responses.create(model="sapling", input="Hello", stream=True))
    assert made.output[0].type == "reasoning"
    for table in ("stored_responses", "response_events", "conversation_items"):
        assert thinker.sql(f"SELECT count(*) FROM {table}") == [0]


def test_the_effort_none_turns_thinking_off(sdk: openai.OpenAI, thinker: Site) -> None:
    thinker.says("Hello")
    made = sdk.responses.create(model="sapling", input="Hello", reasoning={"effort": "none"})
    assert [item.type for item in made.output] == ["message"]
    assert thinker.served.world.engine.submitted[-1].reasoning is None
    without = sdk.responses.input_tokens.count(model="sapling", input="Hello", reasoning={"effort": "none"})
    default = sdk.responses.input_tokens.count(model="sapling", input="Hello")
    assert made.usage is not None
    assert without.input_tokens == made.usage.input_tokens > default.input_tokens


def test_a_response_that_ends_within_thinking(sdk: openai.OpenAI, thinker: Site) -> None:
    thinker.says("<think>\nWell", finish="length")
    cut = sdk.responses.create(model="sapling", input="Hello", max_output_tokens=16)
    assert cut.status == "incomplete"
    (item,) = cut.output
    assert item.type == "reasoning"
    assert (item.status, [part.text for part in item.content or ()]) == ("incomplete", ["Well"])
    thinker.says("<think>\nWell")
    over = sdk.responses.create(model="sapling", input="Hello")
    assert [item.type for item in over.output] == ["reasoning", "message"]
    assert (over.status, over.output_text) == ("completed", "")


def test_a_model_that_does_not_think_continues_without_thinking(sdk: openai.OpenAI, thinker: Site) -> None:
    """The base was exchanged for one that does not think."""
    thinker.says(THOUGHT)
    first = sdk.responses.create(model="sapling", input="Hello")
    object.__setattr__(thinker.served.world.services.pools.default, "reasoning", None)
    thinker.says("Fine")
    second = sdk.responses.create(model="sapling", input="And?", previous_response_id=first.id)
    assert second.output_text == "Fine"
    assert "What could" not in thinker.prompt
    sent: Any = [{"role": "user", "content": "Q"}, first.output[0].to_dict()]
    for field, body in (
        ("input[1]", {"input": sent}),
        ("reasoning.effort", {"reasoning": {"effort": "low"}}),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            sdk.responses.create(**{"model": "sapling", "input": "Q", **body})
        assert (caught.value.param, caught.value.code) == (field, "unsupported_parameter")
        assert field in caught.value.message


@pytest.mark.parametrize("per_step", [1, 1000])
def test_tools_leave_no_line_breaks_before_the_answer(
    sdk: openai.OpenAI, thinker: Site, per_step: int
) -> None:
    """The grammar that holds calls counts no white space; a format of the answer does."""
    thinker.says(THOUGHT, per_step=per_step)
    asked: Any = {"model": "sapling", "messages": [{"role": "user", "content": "Hello"}]}
    tool: Any = {"type": "function", "function": {"name": "get_weather"}}
    answered = sdk.chat.completions.create(**asked, tools=[tool])
    assert answered.choices[0].message.content == "Hello 🙂"
    submitted = thinker.served.world.engine.submitted[-1]
    assert submitted.grammar is not None
    assert submitted.reasoning is not None
    assert not submitted.reasoning.keeps_space
    exact = sdk.chat.completions.create(**asked, extra_body={"regex": r"\s*Hello .*"})
    assert exact.choices[0].message.content == "\n\nHello 🙂"
