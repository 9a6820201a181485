"""The fields of structured outputs: which combinations pass, what the engine gets, what is refused."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from api.app import create_app
from api.errors import ApiError
from api.grammars.checks import GrammarChecks
from api.openai.decoding import decode_chat, decode_completion
from api.openai.schemas import MAX_GRAMMAR_BYTES, MAX_OPTIONS
from engine.protocol import Grammar
from telemetry.metrics import ServingMetrics
from tests.api.conftest import World, build
from tests.api.fakes import KEY
from tests.support.documented import Documented
from tests.support.speed import times_as_long
from tests.support.text_base import write_base
from tokenization.codec import TextCodec

SCHEMA = '{"type": "object", "properties": {"b": {}, "a": {"const": 1.0}},  "required": ["b"]}'


def response_format(schema: Any = SCHEMA, **fields: Any) -> dict[str, Any]:
    document = json.loads(schema) if isinstance(schema, str) else schema
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": document, **fields}}


def chat(**fields: Any) -> bytes:
    return json.dumps({"model": "sapling", "messages": [{"role": "user", "content": "x"}], **fields}).encode()


def completion(**fields: Any) -> bytes:
    return json.dumps({"model": "sapling", "prompt": "x", **fields}).encode()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema"),
        ({"response_format": response_format(name="a b")}, "response_format.json_schema.name"),
        ({"response_format": response_format(name="a" * 65)}, "response_format.json_schema.name"),
        ({"response_format": response_format(strict="yes")}, "response_format.json_schema.strict"),
        ({"response_format": response_format(extra=1)}, "response_format.json_schema.extra"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "it"}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": response_format({"const": "x" * MAX_GRAMMAR_BYTES})},
            "response_format.json_schema",
        ),
        ({"regex": ""}, "regex"),
        ({"regex": "x" * (MAX_GRAMMAR_BYTES + 1)}, "regex"),
        ({"grammar": "ß" * (MAX_GRAMMAR_BYTES // 2 + 1)}, "grammar"),
        ({"choice": []}, "choice"),
        ({"choice": "red"}, "choice"),
        ({"choice": ["a"] * (MAX_OPTIONS + 1)}, "choice"),
        ({"choice": ["x" * 1000] * 300}, "choice"),
        ({"regex": "a", "choice": ["a"]}, "choice"),
        ({"regex": "a", "grammar": "start: /a/"}, "grammar"),
        ({"response_format": {"type": "json_object"}, "regex": "a"}, "regex"),
        ({"regex": "a", "min_tokens": 1}, "min_tokens"),
        ({"response_format": response_format(), "ignore_eos": True}, "ignore_eos"),
    ],
)
def test_fields_that_are_refused(fields: dict[str, Any], param: str) -> None:
    for decode, body in ((decode_chat, chat(**fields)), (decode_completion, completion(**fields))):
        with pytest.raises(ApiError) as refused:
            decode(body)
        assert refused.value.param == param


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "text"}, "regex": "a"},
        {"response_format": None, "choice": ["a"]},
        {"response_format": response_format(strict=None, description=None)},
        {"regex": "a", "min_tokens": 0, "ignore_eos": False},
    ],
)
def test_fields_that_pass(fields: dict[str, Any]) -> None:
    decode_chat(chat(**fields))
    decode_completion(completion(**fields))


def test_prompt_scores_have_no_grammar() -> None:
    with pytest.raises(ApiError) as refused:
        decode_completion(completion(max_tokens=0, echo=True, logprobs=1, regex="a"))
    assert refused.value.param == "regex"


def test_repeated_keys_beside_the_schema_are_found() -> None:
    start = chat(response_format=response_format())[:-1]
    with pytest.raises(ApiError, match="appears more than once"):
        decode_chat(start + b', "user": "a", "user": "b"}')


def test_a_schema_is_in_utf_8() -> None:
    body = chat(response_format=response_format({"const": "X"})).replace(b'"X"', b'"\xff"')
    with pytest.raises(ApiError, match="not valid JSON"):
        decode_chat(body)


def test_a_schema_of_many_objects_costs_the_event_loop_little() -> None:
    """It is read in a process of its own; here it is only found the end of."""
    many = "[" + ",".join(['{"a":{}}'] * 20_000) + "]"
    schema = chat(response_format=response_format({"enum": json.loads(many)}))
    assert times_as_long(lambda: decode_chat(schema), lambda: json.loads(schema), enough=0.3) < 0.5


BASE = Path(__file__).resolve().parents[2] / "examples" / "sapling" / "weights" / "base"


@pytest.fixture(scope="module")
def sapling() -> TextCodec:
    return TextCodec.load(BASE)


@pytest.fixture
async def checked(sapling: TextCodec) -> AsyncIterator[World]:
    checks = GrammarChecks(BASE, ServingMetrics())
    await checks.start()
    yield build(sapling, grammars=checks)
    await checks.close()


@asynccontextmanager
async def client_of(world: World) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(Documented(create_app(world.services)), raise_app_exceptions=False)
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
        yield client


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({"response_format": {"type": "json_object"}}, Grammar("json_schema", '{"type": "object"}')),
        ({"regex": "[ab]{2}"}, Grammar("regex", "[ab]{2}")),
        ({"choice": ["größe", '"x"']}, Grammar("choice", '["größe", "\\"x\\""]')),
        ({"grammar": 'start: "a"'}, Grammar("lark", 'start: "a"')),
        ({"response_format": {"type": "text"}}, None),
        ({}, None),
    ],
)
async def test_the_engine_gets_the_grammar(
    checked: World, fields: dict[str, Any], grammar: Grammar | None
) -> None:
    async with client_of(checked) as client:
        for path, body in (("chat/completions", chat(**fields)), ("completions", completion(**fields))):
            assert (await client.post(f"/v1/{path}", content=body)).status_code == 200
    sent = [submit.grammar for submit in checked.engine.submitted]
    assert [as_written(one) for one in sent] == [grammar] * 2
    assert all(one is None or one.compiled_bytes > 0 for one in sent), "the engine knows what it takes"


def as_written(grammar: Grammar | None) -> Grammar | None:
    """Without what the check measured."""
    return None if grammar is None else msgspec.structs.replace(grammar, compiled_bytes=0)


async def test_a_schema_reaches_the_engine_as_it_was_written(checked: World) -> None:
    body = chat(response_format=response_format()).replace(
        json.dumps(json.loads(SCHEMA)).encode(), SCHEMA.encode()
    )
    async with client_of(checked) as client:
        assert (await client.post("/v1/chat/completions", content=body)).status_code == 200
    assert as_written(checked.engine.submitted[0].grammar) == Grammar("json_schema", SCHEMA)


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        (
            {"response_format": response_format({"properties": {"a": {"anyOf": [{}, {"not": {}}]}}})},
            "response_format.json_schema.schema.properties.a.anyOf[1].not",
            "Invalid schema for response_format 'it': In context=('properties', 'a', 'anyOf', 1, 'not'), "
            "the keyword 'not' is not supported.",
        ),
        (
            {"response_format": response_format(strict=True)},
            "response_format.json_schema.schema.additionalProperties",
            "Invalid schema for response_format 'it': In context=('additionalProperties',), "
            "'additionalProperties' is required to be supplied and to be false.",
        ),
        ({"regex": "(a"}, "regex", "Invalid value for 'regex': "),
        ({"grammar": "begin: /a/"}, "grammar", "Invalid value for 'grammar': no start rule found."),
    ],
)
async def test_a_refusal_names_the_place(
    checked: World, fields: dict[str, Any], param: str, message: str
) -> None:
    async with client_of(checked) as client:
        answer = await client.post("/v1/chat/completions", content=chat(**fields))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "invalid_value", param)
    assert error["message"].startswith(message)
    assert checked.engine.submitted == []


async def test_a_refusal_of_a_long_name_is_short(checked: World) -> None:
    name = "x" * 100_000
    fields = response_format({"properties": {name: {"not": {}}}})
    async with client_of(checked) as client:
        answer = await client.post("/v1/chat/completions", content=chat(response_format=fields))
    assert answer.status_code == 400
    assert len(answer.content) < 2000


async def test_a_base_that_supports_no_grammars_says_so(codec: TextCodec, tmp_path: Path) -> None:
    checks = GrammarChecks(write_base(tmp_path / "base"), ServingMetrics())
    await checks.start()
    async with client_of(build(codec, grammars=checks)) as client:
        answer = await client.post("/v1/chat/completions", content=chat(regex="a"))
    await checks.close()
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "unsupported_parameter", "regex")


async def test_the_model_object_says_whether_there_are_structured_outputs(
    checked: World, world: World
) -> None:
    for one, expected in ((checked, True), (world, False)):
        async with client_of(one) as client:
            answer = await client.get("/v1/models/sapling")
        assert answer.json()["capabilities"]["structured_outputs"] is expected


async def test_a_seen_schema_is_not_checked_again(checked: World) -> None:
    async with client_of(checked) as client:
        for _ in range(2):
            body = chat(response_format=response_format())
            assert (await client.post("/v1/chat/completions", content=body)).status_code == 200
    assert checked.services.pools.default.grammars is not None
    registry = checked.services.pools.default.grammars._metrics.registry
    for result in ("accepted", "cached"):
        assert registry.get_sample_value("rootstock_grammar_checks_total", {"result": result}) == 1
