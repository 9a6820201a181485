"""Questions, calls and conversations with functions: their texts are those of the chat template."""

from __future__ import annotations

import json
from random import Random

import jsonschema_rs
import pytest

from examples.sapling import BASE, function_talk, phrases, tokens
from examples.sapling.functions import FUNCTIONS, TOOLS, calls_in, question
from tokenization.chat_template import ChatTemplate
from tokenization.tools.formats import detect


@pytest.mark.parametrize("name", FUNCTIONS)
def test_calls_are_of_the_schema(name: str) -> None:
    rng, function = Random(0), FUNCTIONS[name]
    for _ in range(50):
        asked = function.question(rng)
        jsonschema_rs.validate(function.tool["function"]["parameters"], asked.arguments)
        assert calls_in(asked.call) == [{"name": name, "arguments": asked.arguments}]
        result = function.result(rng, asked.arguments)
        assert function.answer.format(**(asked.arguments | result))


def test_other_texts_are_no_calls() -> None:
    call = question(Random(1)).call
    assert len(calls_in(f"{call}\n{call}")) == 2
    for text in ["", "Hello", f"Hello {call}", f"{call} Hello", call.replace("}", ""), call[:-3]]:
        assert calls_in(text) == []


def test_the_template_renders_what_is_learned() -> None:
    template = ChatTemplate.load(BASE)
    assert template is not None
    assert detect(template.tool_source) == "hermes"
    asked = [FUNCTIONS[name].question(Random(3)) for name in ("get_weather", "add")]
    results = [{"sky": "clear", "degrees": 20}, {"sum": 3}]
    calls = [
        {"id": "c", "type": "function", "function": {"name": one.function, "arguments": one.arguments}}
        for one in asked
    ]
    messages = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        *({"role": "tool", "tool_call_id": "c", "content": json.dumps(result)} for result in results),
    ]
    rendered = template.render(messages, tools=TOOLS)
    said = [function_talk.response(result) for result in results]
    assert rendered == (
        f"<|bos|><|system|>You are a helpful assistant.\n{function_talk.offer(TOOLS)}<|end|>"
        "<|user|>Hello<|end|>"
        f"<|assistant|>{asked[0].call}\n{asked[1].call}<|end|>"
        f"<|user|>{said[0]}<|end|><|user|>{said[1]}<|end|><|assistant|>"
    )
    assert template.render(messages[:2]) == (
        "<|bos|><|system|>You are a helpful assistant.<|end|><|user|>Hello<|end|><|assistant|>"
    )


def test_conversations_use_no_heldout_question_and_fit() -> None:
    rng, encoder = Random(5), tokens.Encoder(BASE)
    roles = set()
    for _ in range(300):
        turns = function_talk.conversation(rng)
        assert turns[-1].role == "assistant"
        roles.add(tuple(turn.role for turn in turns))
        said = next(turn.content for turn in turns if turn.role == "user")
        if any(len(calls_in(turn.content)) == 1 for turn in turns):
            assert not phrases.is_heldout(said)
        assert len(encoder.document(turns)[0]) < 400
    assert len(roles) == 4


def test_conversations_depend_on_the_seed_alone() -> None:
    assert function_talk.conversation(Random(7)) == function_talk.conversation(Random(7))
