"""Structured outputs through the stock client, on the running service: what is asked for is what comes."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, Literal

import jsonschema_rs
import pytest
from openai import BadRequestError
from pydantic import BaseModel, Field

from tests.e2e.stack import Stack

MESSAGES: Any = [{"role": "user", "content": "Describe the animal."}]


class Owner(BaseModel):
    name: str = Field(max_length=12)
    city: Literal["Basel", "Zürich"]


class Animal(BaseModel):
    kind: Literal["cat", "dog"]
    age: int = Field(ge=0, le=30)
    owner: Owner | None


def models(stack: Stack) -> list[str]:
    """The base and an adapter."""
    return stack.models[:2]


async def test_parse_returns_objects_of_the_class(stack: Stack) -> None:
    async with stack.client() as client:
        answers = await asyncio.gather(
            *(
                client.chat.completions.parse(
                    model=model, messages=MESSAGES, response_format=Animal, seed=seed, max_tokens=200
                )
                for model in models(stack)
                for seed in range(3)
            )
        )
    assert all(isinstance(answer.choices[0].message.parsed, Animal) for answer in answers)
    assert {answer.choices[0].finish_reason for answer in answers} == {"stop"}


async def test_streamed_outputs_are_of_the_schema(stack: Stack) -> None:
    async with stack.client() as client:
        for model in models(stack):
            async with client.chat.completions.stream(
                model=model, messages=MESSAGES, response_format=Animal, max_tokens=200
            ) as stream:
                deltas = [event.delta async for event in stream if event.type == "content.delta"]
                final = await stream.get_final_completion()
            assert isinstance(final.choices[0].message.parsed, Animal)
            assert "".join(deltas) == final.choices[0].message.content


async def test_schemas_that_are_not_strict(stack: Stack) -> None:
    schema = {
        "type": "object",
        "properties": {"tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}},
        "required": ["tags"],
        "additionalProperties": False,
    }
    async with stack.client() as client:
        for model in models(stack):
            answer = await client.chat.completions.create(
                model=model,
                messages=MESSAGES,
                n=2,
                response_format={"type": "json_schema", "json_schema": {"name": "tags", "schema": schema}},
            )
            for choice in answer.choices:
                assert jsonschema_rs.is_valid(schema, json.loads(choice.message.content or ""))


async def test_any_object(stack: Stack) -> None:
    """Sampling may write on until its limit: then the answer says so, and is the start of an object."""
    async with stack.client() as client:
        answers = await asyncio.gather(
            *(
                client.chat.completions.create(
                    model=models(stack)[0],
                    messages=MESSAGES,
                    response_format={"type": "json_object"},
                    seed=seed,
                    max_tokens=100,
                )
                for seed in range(8)
            )
        )
    for answer in answers:
        text = answer.choices[0].message.content or ""
        assert text.startswith("{")
        if answer.choices[0].finish_reason == "stop":
            assert isinstance(json.loads(text), dict)
        else:
            assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("extra", "pattern"),
    [
        ({"regex": "[a-c]{4}-[0-9]{2}"}, r"[a-c]{4}-[0-9]{2}"),
        ({"choice": ["red", "green", 'the "blue"']}, 'red|green|the "blue"'),
        (
            {"grammar": 'start: "SELECT " NAME " FROM " NAME\nNAME: /[a-z]{1,8}/'},
            r"SELECT [a-z]{1,8} FROM [a-z]{1,8}",
        ),
    ],
    ids=["regex", "choice", "grammar"],
)
async def test_other_constraints(stack: Stack, extra: dict[str, Any], pattern: str) -> None:
    async with stack.client() as client:
        for model in models(stack):
            chat = await client.chat.completions.create(model=model, messages=MESSAGES, extra_body=extra)
            plain = await client.completions.create(
                model=model, prompt="Once", extra_body=extra, max_tokens=60
            )
            assert re.fullmatch(pattern, chat.choices[0].message.content or "")
            assert re.fullmatch(pattern, plain.choices[0].text)


async def test_a_limit_cuts_it_off(stack: Stack) -> None:
    async with stack.client() as client:
        answer = await client.chat.completions.create(
            model=models(stack)[0], messages=MESSAGES, extra_body={"regex": "[a-c]{40}"}, max_tokens=2
        )
    assert answer.choices[0].finish_reason == "length"


async def test_a_refusal_names_the_place(stack: Stack) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    async with stack.client() as client:
        with pytest.raises(BadRequestError) as refused:
            await client.chat.completions.create(
                model=models(stack)[0],
                messages=MESSAGES,
                response_format={"type": "json_schema", "json_schema": {"name": "tags", "schema": schema}},
            )
    assert refused.value.param == "response_format.json_schema.schema.properties.a.uniqueItems"
