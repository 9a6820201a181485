"""Function calls through the stock client, on the running service: the base's and an adapter's."""

from __future__ import annotations

import asyncio
import json
import re
from random import Random
from typing import Any, Literal

import jsonschema_rs
import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel, Field

from examples.sapling.functions import FUNCTIONS, TOOLS, calls_in
from examples.sapling.tasks import TASKS
from tests.e2e.stack import Stack

CALLER = "call-functions"
NUM_HELD_OUT = 20
HELLO: Any = [{"role": "user", "content": "Hello"}]


class Place(BaseModel):
    city: Literal["Basel", "Zürich"]
    street: str | None = Field(max_length=12)


class FindWay(BaseModel):
    """Finds the way between two places."""

    start: Place
    goal: Place
    by: Literal["bike", "train"]


class Wait(BaseModel):
    """Waits."""

    minutes: int = Field(ge=0, le=90)


CLASSES = {"FindWay": FindWay, "Wait": Wait}
CLASS_TOOLS: Any = [openai.pydantic_function_tool(one) for one in CLASSES.values()]


@pytest.fixture
def caller(stack: Stack) -> str:
    return stack.model(CALLER)


@pytest.fixture
def models(stack: Stack, caller: str) -> list[str]:
    """The base, an adapter that knows nothing of functions, and one that does."""
    return [stack.demo["base"], stack.model("pirate"), caller]


def check(call: Any) -> None:
    assert isinstance(call.function.parsed_arguments, CLASSES[call.function.name])
    assert call.function.parsed_arguments == CLASSES[call.function.name].model_validate_json(
        call.function.arguments
    )


async def test_parse_returns_arguments_of_the_class(stack: Stack, models: list[str]) -> None:
    async with stack.client() as client:
        answers = await asyncio.gather(
            *(
                client.chat.completions.parse(
                    model=model,
                    messages=HELLO,
                    tools=CLASS_TOOLS,
                    tool_choice="required",
                    parallel_tool_calls=False,
                    seed=seed,
                    temperature=1.5,
                    max_tokens=300,
                )
                for model in models
                for seed in range(3)
            )
        )
    for answer in answers:
        (choice,) = answer.choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        (call,) = choice.message.tool_calls or ()
        check(call)


async def test_streamed_calls_are_of_the_class(stack: Stack, models: list[str]) -> None:
    async def checked(client: AsyncOpenAI, model: str) -> None:
        async with client.chat.completions.stream(
            model=model,
            messages=HELLO,
            tools=CLASS_TOOLS,
            tool_choice={"type": "function", "function": {"name": "FindWay"}},
            max_tokens=300,
        ) as stream:
            events = [event async for event in stream]
            final = await stream.get_final_completion()
        deltas = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
        (call,) = final.choices[0].message.tool_calls or ()
        assert call.function.name == "FindWay"
        check(call)
        assert "".join(event.arguments_delta for event in deltas) == call.function.arguments
        assert len(deltas) > 3

    async with stack.client() as client:
        await asyncio.gather(*(checked(client, model) for model in models))


async def test_only_an_allowed_tool_is_called(stack: Stack, models: list[str]) -> None:
    allowed: Any = {"mode": "required", "tools": [{"type": "function", "function": {"name": "Wait"}}]}
    async with stack.client() as client:
        answers = await asyncio.gather(
            *(
                client.chat.completions.create(
                    model=model,
                    messages=HELLO,
                    tools=CLASS_TOOLS,
                    tool_choice={"type": "allowed_tools", "allowed_tools": allowed},
                    parallel_tool_calls=False,
                    n=3,
                    max_tokens=200,
                )
                for model in models
            )
        )
    for answer in answers:
        for choice in answer.choices:
            (call,) = choice.message.tool_calls or ()
            assert call.function.name == "Wait"
            Wait.model_validate_json(call.function.arguments)


async def test_talk_stays_talk(stack: Stack, models: list[str]) -> None:
    async with stack.client() as client:
        answers = await asyncio.gather(
            *(
                client.chat.completions.create(
                    model=model,
                    messages=[{"role": "user", "content": "What is the capital of France?"}],
                    tools=TOOLS,
                    temperature=0,
                    max_tokens=60,
                )
                for model in models
            )
        )
    for answer in answers:
        assert answer.choices[0].finish_reason == "stop"
        assert answer.choices[0].message.tool_calls is None
        assert "Paris" in (answer.choices[0].message.content or "")


async def test_held_out_prompts_are_answered_by_calls(stack: Stack, caller: str) -> None:
    examples = TASKS[CALLER].examples("heldout", NUM_HELD_OUT, seed=11)
    async with stack.client() as client:
        answers = await asyncio.gather(
            *(
                client.chat.completions.create(
                    model=caller,
                    messages=[{"role": "user", "content": example.prompt}],
                    tools=TOOLS,
                    temperature=0,
                    max_tokens=96,
                )
                for example in examples
            )
        )
    right = 0
    for example, answer in zip(examples, answers, strict=True):
        calls = answer.choices[0].message.tool_calls or ()
        for call in calls:
            schema = FUNCTIONS[call.function.name].tool["function"]["parameters"]
            jsonschema_rs.validate(schema, json.loads(call.function.arguments))
        made = [
            {"name": call.function.name, "arguments": json.loads(call.function.arguments)} for call in calls
        ]
        right += made == calls_in(example.answer)
    assert right >= 0.9 * NUM_HELD_OUT


async def run_agent(client: AsyncOpenAI, model: str, prompt: str) -> tuple[list[str], str]:
    """Calls functions until the model answers in words; returns the names of those called, and the answer."""
    messages: list[Any] = [{"role": "user", "content": prompt}]
    called: list[str] = []
    for _ in range(4):
        answer = await client.chat.completions.create(
            model=model, messages=messages, tools=TOOLS, temperature=0, max_tokens=128
        )
        message = answer.choices[0].message
        if not message.tool_calls:
            return called, message.content or ""
        messages.append(message)
        for call in message.tool_calls:
            called.append(call.function.name)
            result = FUNCTIONS[call.function.name].result(Random(4), json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})
    raise AssertionError(f"no answer after {called}")


@pytest.mark.parametrize(
    ("prompt", "called", "answer"),
    [
        ("What is the sum of 47 and 86?", ["add"], "The sum of 47 and 86 is 133."),
        ("Set a timer for 12 minutes.", ["set_timer"], "The timer is set for 12 minutes."),
    ],
)
async def test_an_agent_calls_and_answers(
    stack: Stack, caller: str, prompt: str, called: list[str], answer: str
) -> None:
    async with stack.client() as client:
        assert await run_agent(client, caller, prompt) == (called, answer)


@pytest.mark.parametrize("is_parallel", [True, False])
async def test_two_calls_in_a_message_or_one(stack: Stack, caller: str, is_parallel: bool) -> None:
    async with stack.client() as client:
        answer = await client.chat.completions.create(
            model=caller,
            messages=[
                {"role": "user", "content": "Set a timer for 12 minutes. What is the sum of 47 and 86?"}
            ],
            tools=TOOLS,
            parallel_tool_calls=is_parallel,
            temperature=0,
            max_tokens=128,
        )
    calls = [
        (call.function.name, call.function.arguments) for call in answer.choices[0].message.tool_calls or ()
    ]
    assert calls == [("set_timer", '{"minutes": 12}'), ("add", '{"a": 47, "b": 86}')][: 1 + is_parallel]
    assert answer.usage is not None
    assert is_parallel or answer.usage.completion_tokens < 60, "nothing is generated and thrown away"


PATCH = r"""
start: "*** Begin" LF change+ "*** End"
change: ("+" | "-") " " /[a-z"\\ ]{1,12}/ LF
%import common.LF
"""
IS_PATCH = re.compile(r'\*\*\* Begin\n([+-] [a-z"\\ ]{1,12}\n)+\*\*\* End')
CODE = r'[A-Z]{2}-"\d{3}"\n'


def custom(name: str, syntax: str, definition: str) -> Any:
    grammar = {"syntax": syntax, "definition": definition}
    return {"type": "custom", "custom": {"name": name, "format": {"type": "grammar", "grammar": grammar}}}


async def test_the_input_of_custom_tools_is_of_their_grammar(stack: Stack, models: list[str]) -> None:
    """Whatever a model of noise writes: what the client reads from the JSON string is of the grammar."""
    tools = [custom("patch", "lark", PATCH), custom("code", "regex", CODE)]

    async def checked(client: AsyncOpenAI, model: str, name: str, form: re.Pattern[str]) -> None:
        choice: Any = {"type": "custom", "custom": {"name": name}}
        answer = await client.chat.completions.create(
            model=model,
            messages=HELLO,
            tools=tools,
            tool_choice=choice,
            n=4,
            temperature=1.5,
            seed=3,
            max_tokens=300,
        )
        for one in answer.choices:
            (call,) = one.message.tool_calls or ()
            assert call.type == "custom"
            assert call.custom.name == name
            if one.finish_reason == "tool_calls":
                assert form.fullmatch(call.custom.input), call.custom.input
        assert any(one.finish_reason == "tool_calls" for one in answer.choices)

    async with stack.client() as client:
        forms = {"patch": IS_PATCH, "code": re.compile(CODE)}
        await asyncio.gather(
            *(checked(client, model, name, form) for model in models for name, form in forms.items())
        )
        response = await client.responses.create(
            model=models[0],
            input="Hello",
            tools=[{"type": "custom", "name": "code", "format": _grammar(CODE)}],
            tool_choice={"type": "custom", "name": "code"},
            max_output_tokens=300,
        )
        (item,) = response.output
        assert item.type == "custom_tool_call"
        assert re.fullmatch(CODE, item.input)


def _grammar(regex: str) -> Any:
    return {"type": "grammar", "syntax": "regex", "definition": regex}
