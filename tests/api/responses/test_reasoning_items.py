"""Reasoning in responses: an item of its own, streamed, sent back, and refused where a model has none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.api.conftest import Served
from tests.api.fakes import KEY
from tests.api.responses.conftest import Site
from tests.api.responses.test_chat_request import call, chat, result, said
from tests.api.responses.test_responses import refused
from tests.api.test_reasoning import QWEN3, THOUGHT, says, started


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with started(tmp_path, QWEN3) as running:
        yield running


@pytest.fixture
def thinking(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key=KEY, max_retries=0) as opened:
        yield opened


def test_reasoning_is_an_item(thinking: openai.OpenAI, served: Served) -> None:
    says(served, THOUGHT, reasoning_tokens=9)
    made = thinking.responses.create(model="sapling", input="Hi", reasoning={"effort": "low"})
    thought, message = made.output
    assert (thought.type, thought.content[0].text) == ("reasoning", "What could\n they want?")
    assert (message.type, message.content[0].text) == ("message", "Hello 🙂")
    assert made.usage is not None
    assert made.usage.output_tokens_details.reasoning_tokens == 9
    assert made.reasoning is not None
    assert made.reasoning.effort == "low"
    events = list(thinking.responses.create(model="sapling", input="Hi", stream=True))
    for event in events:
        type(event).model_validate_json(event.to_json())
    deltas = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    assert "".join(deltas) == "What could\n they want?"
    assert [event.type for event in events if event.type.endswith(".done")] == [
        *("response.reasoning_text.done", "response.content_part.done", "response.output_item.done"),
        *("response.output_text.done", "response.content_part.done", "response.output_item.done"),
    ]


def test_it_is_sent_back(thinking: openai.OpenAI, served: Served) -> None:
    says(served, THOUGHT)
    made = thinking.responses.create(model="sapling", input="Hi")
    again: Any = [{"role": "user", "content": "Hi"}, *[item.to_dict() for item in made.output]]
    thinking.responses.create(model="sapling", input=[*again, {"role": "user", "content": "And?"}])
    assert len(served.world.engine.submitted) == 2


def test_it_belongs_to_the_message_or_call_that_follows() -> None:
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    summed = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]}
    made = chat([said("user", "q"), thought, call("c1"), result("c1"), summed, said("assistant", "a")])
    assert [message.reasoning for message in made.messages] == [None, "hm", None, "so"]
    assert [message.role for message in made.messages] == ["user", "assistant", "tool", "assistant"]


def test_a_limit_within_the_thinking(thinking: openai.OpenAI, served: Served) -> None:
    says(served, "<think>\nWell", finish="length")
    made = thinking.responses.create(model="sapling", input="Hi")
    assert (made.status, [item.type for item in made.output]) == ("incomplete", ["reasoning"])
    assert made.output[0].status == "incomplete"


def test_a_model_that_does_not_reason_refuses_it(site: Site) -> None:
    error = refused(site, reasoning={"effort": "high"})
    assert (error["param"], error["code"]) == ("reasoning.effort", "unsupported_parameter")
