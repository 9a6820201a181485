"""The rules of the endpoints, in process: errors of every kind, the context's arithmetic, answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import msgspec
import pytest
import structlog

from db.errors import DatabaseUnavailable
from engine.protocol import Submit
from tests.api.conftest import World
from tests.api.fakes import ADMIN_KEY, CONTEXT, KEY, RESTRICTED_KEY, Script
from tests.support.speed import awaited_times_as_long, calls_of_nothing
from tests.support.waiting import eventually

USER = {"role": "user", "content": "Hello there"}
TOOL = {"type": "function", "function": {"name": "f"}}


async def chat(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await client.post("/v1/chat/completions", json={"model": "sapling", "messages": [USER], **fields})


def assert_error(
    response: httpx.Response,
    status: int,
    kind: str,
    code: str,
    param: str | None = None,
    retry: str = "false",
) -> None:
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error"}
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"], error["param"]) == (kind, code, param)
    assert response.headers["x-should-retry"] == retry
    assert response.headers["x-request-id"]
    assert response.headers["content-type"] == "application/json"


INVALID = "invalid_request_error"
AT_ONCE = 12
"""Times 100 000 calls of nothing: 50 ms on the machine of the benchmarks."""
BIG = {
    "n": ({"n": 10**6}, "n"),
    "stops": ({"stop": ["x"] * 100_000}, "stop"),
    "bias": ({"logit_bias": {str(number): 1 for number in range(50_000)}}, "logit_bias"),
    "context": ({"messages": [{"role": "user", "content": "word " * 100_000}]}, "messages"),
    "messages": ({"messages": [USER] * 20_000}, "messages"),
}


@pytest.mark.parametrize("kind", sorted(BIG))
async def test_oversized_requests_are_refused_at_once(
    client: httpx.AsyncClient, world: World, kind: str
) -> None:
    fields, param = BIG[kind]
    body = json.dumps({"model": "sapling", "messages": [USER], **fields})
    headers = {"content-type": "application/json"}
    code = "context_length_exceeded" if kind == "context" else "invalid_value"

    async def ask() -> None:
        response = await client.post("/v1/chat/completions", content=body, headers=headers)
        assert_error(response, 400, INVALID, code, param)

    took = await awaited_times_as_long(ask, than=calls_of_nothing(100_000), rounds=20, enough=AT_ONCE)
    assert took <= AT_ONCE
    assert world.engine.submitted == []


def is_context_overflow(response: httpx.Response) -> bool:
    """Clients such as LiteLLM recognise a context overflow by these words, not by the error's code."""
    return f"This model's maximum context length is {CONTEXT} tokens" in response.json()["error"]["message"]


async def test_context_arithmetic(client: httpx.AsyncClient, world: World) -> None:
    prompt = [7] * (CONTEXT - 10)

    async def ask(**fields: Any) -> httpx.Response:
        return await client.post("/v1/completions", json={"model": "sapling", "prompt": prompt, **fields})

    assert (await ask()).status_code == 200
    assert world.engine.submitted[-1].sampling.max_tokens == 10
    assert (await ask(max_tokens=10)).status_code == 200
    response = await ask(max_tokens=11)
    assert_error(response, 400, INVALID, "context_length_exceeded", "prompt")
    for number in (CONTEXT, CONTEXT + 1, CONTEXT - 10, 11):
        assert str(number) in response.json()["error"]["message"]
    assert is_context_overflow(response)
    prompt = [7] * CONTEXT
    response = await ask()
    assert_error(response, 400, INVALID, "context_length_exceeded", "prompt")
    assert is_context_overflow(response)
    prompt = [7] * (CONTEXT - 1)
    assert (await ask(max_tokens=1)).status_code == 200


async def test_a_context_bounded_by_a_sliding_window_says_so(
    client: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert world.engine.info is not None
    monkeypatch.setattr(
        world.engine, "info", msgspec.structs.replace(world.engine.info, sliding_window=CONTEXT)
    )
    for fields in ({"prompt": [7] * CONTEXT}, {"prompt": [7], "max_tokens": CONTEXT}):
        response = await client.post("/v1/completions", json={"model": "sapling", **fields})
        assert_error(response, 400, INVALID, "context_length_exceeded", "prompt")
        assert f"{CONTEXT} tokens (its sliding window)" in response.json()["error"]["message"]


async def test_a_prompt_counted_token_by_token_gives_the_exact_number(
    client: httpx.AsyncClient, world: World
) -> None:
    content = "qz" * (CONTEXT // 2)  # under the bytes' bound, over the context
    response = await chat(client, messages=[{"role": "user", "content": content}])
    assert_error(response, 400, INVALID, "context_length_exceeded", "messages")
    chat_ids = await world.services.pools.default.text.encode_chat(
        world.services.pools.default.text.render_chat([{"role": "user", "content": content}])
    )
    assert f"have {len(chat_ids)} tokens" in response.json()["error"]["message"]
    assert world.engine.submitted == []


@pytest.mark.parametrize(
    ("path", "fields", "code", "param"),
    [
        ("chat/completions", {"logit_bias": {"480": 1}}, "invalid_value", "logit_bias"),
        ("chat/completions", {"stop_token_ids": [480]}, "invalid_value", "stop_token_ids"),
        ("chat/completions", {"max_tokens": 2, "min_tokens": 3}, "invalid_value", "min_tokens"),
        ("chat/completions", {"tools": [TOOL]}, "unsupported_parameter", "tools"),
        ("completions", {"prompt": [480]}, "invalid_value", "prompt"),
        ("completions", {"prompt": ["a", 3]}, "invalid_value", "prompt"),
        ("completions", {"prompt": ["a"] * 129}, "invalid_value", "prompt"),
        ("completions", {"prompt": ["a"] * 65, "n": 2}, "invalid_value", "prompt"),
    ],
)
async def test_values_judged_by_the_model(
    client: httpx.AsyncClient, world: World, path: str, fields: dict[str, Any], code: str, param: str
) -> None:
    basis = {"messages": [USER]} if path.startswith("chat") else {"prompt": "x"}
    response = await client.post(f"/v1/{path}", json={"model": "sapling", **basis, **fields})
    assert_error(response, 400, INVALID, code, param)
    assert world.engine.submitted == []


async def test_a_template_that_refuses_names_the_messages(world: World, client: httpx.AsyncClient) -> None:
    from tokenization.chat_template import ChatTemplate

    world.services.pools.default.text.template, before = (
        ChatTemplate("{{ raise_exception('roles must alternate') }}", {}),
        world.services.pools.default.text.template,
    )
    try:
        response = await chat(client)
    finally:
        world.services.pools.default.text.template = before
    assert_error(response, 400, INVALID, "invalid_value", "messages")
    assert "roles must alternate" in response.json()["error"]["message"]


async def test_developer_messages_and_parts_are_rendered(client: httpx.AsyncClient, world: World) -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": "three", "refusal": None, "tool_calls": None, "annotations": []},
        {"role": "user", "content": "four"},
    ]
    assert (await chat(client, messages=messages)).status_code == 200
    expected = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one\ntwo"},
        {"role": "assistant", "content": "three"},
        {"role": "user", "content": "four"},
    ]
    text = world.services.pools.default.text
    assert world.engine.submitted[0].prompt_ids == await text.encode_chat(text.render_chat(expected))


async def test_401_has_one_body(client: httpx.AsyncClient) -> None:
    bodies = set()
    for authorization in (
        "",
        "Bearer",
        "Bearer ",
        "Basic eDp5",
        "Bearer sk-unknown",
        f"Token {KEY}",
        "Bearer \x7f",
    ):
        response = await client.get("/v1/models", headers={"authorization": authorization})
        assert_error(response, 401, INVALID, "invalid_api_key")
        bodies.add(response.text)
    assert len(bodies) == 1
    # Who calls is asked before what: a stranger learns nothing about bodies and models.
    response = await client.post("/v1/chat/completions", content=b"{", headers={"authorization": "Bearer no"})
    assert_error(response, 401, INVALID, "invalid_api_key")


async def test_403_for_a_key_of_the_wrong_kind_or_scope(client: httpx.AsyncClient, world: World) -> None:
    for key in (RESTRICTED_KEY, ADMIN_KEY):
        response = await client.post(
            "/v1/chat/completions",
            json={"model": "sapling", "messages": [USER]},
            headers={"authorization": f"Bearer {key}"},
        )
        assert_error(response, 403, "permission_error", "insufficient_permissions")
    response = await client.get("/v1/organization/usage/completions?start_time=1")
    assert_error(response, 403, "permission_error", "insufficient_permissions")
    response = await client.get("/v1/models", headers={"authorization": f"Bearer {RESTRICTED_KEY}"})
    assert response.status_code == 200
    assert world.engine.submitted == []


async def test_404_405_and_415(client: httpx.AsyncClient, world: World) -> None:
    assert_error(await client.get("/v1/nothing"), 404, INVALID, "not_found")
    assert_error(await client.get("/nothing"), 404, INVALID, "not_found")
    response = await client.get("/v1/chat/completions")
    assert_error(response, 405, INVALID, "method_not_allowed")
    assert "POST" in response.headers["allow"]
    assert_error(await chat(client, model="nobody"), 404, INVALID, "model_not_found", "model")
    assert_error(await client.get("/v1/models/nobody"), 404, INVALID, "model_not_found", "model")
    assert_error(await client.get("/v1/models/"), 404, INVALID, "model_not_found", "model")
    response = await client.post("/v1/chat/completions", data={"model": "sapling"})
    assert_error(response, 415, INVALID, "unsupported_media_type")
    # Another tenant's and nobody's are told in the same words.
    mine, nobodys = "sapling:other-tenants", "sapling:never-existed"
    bodies = [(await chat(client, model=name)).text.replace(name, "") for name in (mine, nobodys)]
    assert bodies[0] == bodies[1]
    assert world.engine.submitted == []


async def test_malformed_json_is_a_400(client: httpx.AsyncClient) -> None:
    for path in ("/v1/chat/completions", "/v1/completions"):
        response = await client.post(path, content=b"{nope", headers={"content-type": "application/json"})
        assert_error(response, 400, INVALID, "invalid_value")


@pytest.mark.parametrize(
    ("body", "key"),
    [
        ('{"model":"sapling","messages":[{"role":"user","content":"x"}],"model":"sapling"}', "model"),
        (' \n{"model":"sapling","messages":[{"role":"user","content":"x"}],"model":"sapling"}', "model"),
        ('{"model":"sapling","messages":[{"role":"user","content":"x"}],"mod\\u0065l":"sapling"}', "model"),
        ('{"model":"sapling","messages":[{"role":"user","content":"x","role":"system"}]}', "role"),
        ('{"model":"sapling","messages":[{"role":"user","content":"x"}],"metadata":{"a":"1","a":"2"}}', "a"),
    ],
)
async def test_a_key_that_comes_twice_is_refused(
    client: httpx.AsyncClient, world: World, body: str, key: str
) -> None:
    response = await client.post(
        "/v1/chat/completions", content=body, headers={"content-type": "application/json"}
    )
    assert_error(response, 400, INVALID, "invalid_value", key)
    assert f"'{key}'" in response.json()["error"]["message"]
    assert world.engine.submitted == []


async def test_numbers_of_any_length_and_repeated_texts_are_no_repeated_keys(
    client: httpx.AsyncClient, world: World
) -> None:
    messages = [{"role": "user", "content": '"model": {"model": 1, "model": 2}'}, USER]
    response = await chat(client, messages=messages)
    assert response.status_code == 200
    text = '{"model":"sapling","messages":[{"role":"user","content":"x"}],"temperature":0.5%s}' % ("0" * 5000)
    response = await client.post(
        "/v1/chat/completions", content=text, headers={"content-type": "application/json"}
    )
    assert response.status_code == 200
    text = text.replace("0.5", "1")
    response = await client.post(
        "/v1/chat/completions", content=text, headers={"content-type": "application/json"}
    )
    assert_error(response, 400, INVALID, "invalid_value", "temperature")


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json; charset=utf-8", 200),
        ('application/json;charset="UTF-8"', 200),
        ("application/json; charset=latin-1", 415),
        ("application/json; Charset=UTF-16", 415),
        ("application/json; version=1; charset=iso-8859-15", 415),
    ],
)
async def test_json_comes_in_utf_8(
    client: httpx.AsyncClient, world: World, content_type: str, status: int
) -> None:
    body = json.dumps({"model": "sapling", "messages": [USER]})
    headers = {"content-type": content_type}
    response = await client.post("/v1/chat/completions", content=body, headers=headers)
    assert response.status_code == status
    if status == 415:
        assert_error(response, 415, INVALID, "unsupported_media_type")
        assert "UTF-8" in response.json()["error"]["message"]


async def test_409_for_an_adapter_that_is_not_ready(client: httpx.AsyncClient) -> None:
    response = await chat(client, model="sapling:baking")
    assert_error(response, 409, "conflict_error", "not_ready", "model")


@pytest.mark.parametrize(
    ("code", "status", "kind", "shown", "retry"),
    [
        ("overloaded", 503, "service_unavailable_error", "server_is_overloaded", "true"),
        ("draining", 503, "service_unavailable_error", "engine_unavailable", "true"),
        ("adapter_loading", 503, "service_unavailable_error", "adapter_loading", "true"),
        ("context_length_exceeded", 400, INVALID, "context_length_exceeded", "false"),
        ("invalid", 400, INVALID, "invalid_value", "false"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_the_engines_verdict_comes_before_any_200(
    client: httpx.AsyncClient,
    world: World,
    code: Any,
    status: int,
    kind: str,
    shown: str,
    retry: str,
    stream: bool,
) -> None:
    world.engine.script = lambda submit: Script(reject=(code, "because"))
    response = await chat(client, stream=stream)
    assert_error(response, status, kind, shown, None, retry)
    assert ("retry-after" in response.headers) is (status == 503)


async def test_one_rejected_prompt_of_a_list_takes_the_others_with_it(
    client: httpx.AsyncClient, world: World
) -> None:
    engine = world.engine

    def script(submit: Submit) -> Script:
        if submit.request_id.endswith("-2"):
            return Script(reject=("overloaded", "full"))
        return engine.says(submit, "one two three", hang_after=1)

    engine.script = script
    response = await client.post("/v1/completions", json={"model": "sapling", "prompt": ["a", "b", "c", "d"]})
    assert_error(response, 503, "service_unavailable_error", "server_is_overloaded", None, "true")
    assert {request_id[-2:] for request_id in engine.aborted} >= {"-0", "-1", "-3"}


async def test_no_engine_is_a_503(client: httpx.AsyncClient, world: World) -> None:
    world.engine.ready = False
    world.engine.ready_in = 12.3
    response = await chat(client)
    assert_error(response, 503, "service_unavailable_error", "engine_unavailable", None, "true")
    assert (response.headers["retry-after"], response.headers["retry-after-ms"]) == ("13", "12300")
    world.engine.ready, world.engine.info = True, None
    assert (await chat(client)).status_code == 503


async def test_an_engine_lost_before_the_first_token_is_a_503(
    client: httpx.AsyncClient, world: World
) -> None:
    world.engine.script = lambda submit: world.engine.says(submit, "one", gone_after=0)
    for stream in (False, True):
        response = await chat(client, stream=stream)
        assert_error(response, 503, "service_unavailable_error", "engine_unavailable", None, "true")


async def test_a_database_that_is_away_is_a_503(client: httpx.AsyncClient, world: World) -> None:
    world.keys.error = DatabaseUnavailable("database unavailable: OperationalError")
    response = await chat(client)
    assert_error(response, 503, "service_unavailable_error", "server_is_overloaded", None, "true")
    assert "Operational" not in response.text


@pytest.mark.parametrize(
    ("finish", "status", "code"),
    [("error", 500, "generation_failed"), ("abort", 503, "server_is_overloaded")],
)
async def test_a_choice_without_an_answer_fails_the_request(
    client: httpx.AsyncClient, world: World, finish: Any, status: int, code: str
) -> None:
    world.engine.script = lambda submit: world.engine.says(submit, "one two", finish)
    response = await chat(client, n=2)
    assert response.status_code == status
    assert response.json()["error"]["code"] == code
    streamed = await chat(client, n=2, stream=True)
    assert streamed.status_code == 200
    last = streamed.text.strip().split("\n\n")[-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == code
    assert "[DONE]" not in streamed.text


async def test_the_access_log_names_the_tenant_as_every_other_line_does(client: httpx.AsyncClient) -> None:
    with structlog.testing.capture_logs([structlog.contextvars.merge_contextvars]) as lines:
        response = await chat(client)
        await eventually(lambda: any(line["event"] == "request" for line in lines))
    (line,) = (line for line in lines if line["event"] == "request")
    assert line["request_id"] == response.headers["x-request-id"]
    assert line["tenant_id"] == "ten_one"
    assert "tenant" not in line


async def test_an_unhandled_error_shows_nothing_and_is_logged_once(
    client: httpx.AsyncClient, world: World
) -> None:
    world.keys.error = RuntimeError("secret detail of ours")
    with structlog.testing.capture_logs([structlog.contextvars.merge_contextvars]) as lines:
        response = await chat(client)
    assert_error(response, 500, "server_error", "internal_error", None, "true")
    assert "secret" not in response.text
    failures = [line for line in lines if line["event"] == "request failed"]
    assert [line["error"] for line in failures] == ["RuntimeError"]
    assert failures[0]["exc_info"] is world.keys.error
    assert {line["request_id"] for line in lines} == {response.headers["x-request-id"]}


async def test_the_stream_as_bytes(client: httpx.AsyncClient, world: World) -> None:
    response = await chat(client, stream=True, stream_options={"include_usage": True})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert "content-length" not in response.headers
    events = response.text.split("\n\n")
    assert events[-1] == ""
    assert events[-2] == "data: [DONE]"
    first = json.loads(events[0].removeprefix("data: "))
    assert list(first) == [
        "id", "object", "created", "model", "service_tier", "system_fingerprint", "choices", "usage",
    ]  # fmt: skip
    assert list(first["choices"][0]) == ["index", "delta", "logprobs", "finish_reason"]
    assert first["choices"][0]["delta"]["role"] == "assistant"


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
async def test_usage_so_far_stands_on_each_chunk(client: httpx.AsyncClient, world: World, path: str) -> None:
    world.engine.script = lambda submit: world.engine.says(submit, "one two three", per_step=1)
    asked = {"messages": [USER]} if path.startswith("chat") else {"prompt": "Say"}
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"model": "sapling", "n": 2, "stream": True, "stream_options": options, **asked}
    response = await client.post(f"/v1/{path}", json=body)
    events = [json.loads(event[6:]) for event in response.text.split("\n\n")[:-2]]
    *chunks, last = [event["usage"] for event in events]
    assert events[-1]["choices"] == []
    counts = [usage["completion_tokens"] for usage in chunks]
    assert len(set(counts)) > 2
    assert counts == sorted(counts)
    assert counts[-1] == last["completion_tokens"] == world.engine.billed[events[0]["id"]].completion_tokens
    for usage in chunks:
        assert usage["prompt_tokens"] == last["prompt_tokens"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


async def test_usage_so_far_needs_include_usage(client: httpx.AsyncClient) -> None:
    response = await chat(client, stream=True, stream_options={"continuous_usage_stats": True})
    assert response.status_code == 200
    assert '"usage"' not in response.text


async def test_models_tell_context_capabilities_and_prices(client: httpx.AsyncClient) -> None:
    listed = (await client.get("/v1/models")).json()["data"]
    base, adapter = listed
    assert adapter["pricing"] == (await client.get(f"/v1/models/{adapter['id']}")).json()["pricing"]
    for model in listed:
        assert model["max_model_len"] == model["context_window"] == CONTEXT
        assert model["max_prompt_tokens"] == CONTEXT - 1
        assert model["capabilities"]["chat_completions"] is True
        assert model["capabilities"]["tools"] is False
    assert base["pricing"] == {
        "currency": "USD",
        "unit": "micro_usd_per_million_tokens",
        "default_service_tier": "default",
        "surcharge": None,
        "service_tiers": {
            "default": {"input": 1_000_000, "cached_input": 500_000, "output": 2_000_000},
            "flex": {"input": 500_000, "cached_input": 250_000, "output": 1_000_000},
        },
    }


async def test_models_are_listed_while_no_engine_serves(client: httpx.AsyncClient, world: World) -> None:
    world.engine.info = None
    (base, _) = (await client.get("/v1/models")).json()["data"]
    assert base["max_model_len"] is None


async def test_tokens_of_one_wakeup_make_one_event_per_choice(
    client: httpx.AsyncClient, world: World
) -> None:
    world.engine.script = lambda submit: world.engine.says(submit, "one two three", per_step=100)
    response = await chat(client, stream=True, n=2)
    events = [json.loads(event[6:]) for event in response.text.split("\n\n")[:-2]]
    assert len(events) == 2
    assert {event["choices"][0]["index"] for event in events} == {0, 1}
    assert all(
        event["choices"][0]["delta"] == {"role": "assistant", "content": "one two three"} for event in events
    )


async def test_a_silent_stream_is_pinged(client: httpx.AsyncClient, world: World) -> None:
    script = lambda submit: world.engine.says(submit, "one two", delay=0.25)  # noqa: E731
    world.engine.script = script
    response = await chat(client, stream=True)
    assert 1 <= response.text.count(": ping\n\n") <= 8
    assert response.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
async def test_logprobs_of_an_answer_that_a_stop_swallows_are_empty(
    client: httpx.AsyncClient, world: World, path: str
) -> None:
    world.engine.script = lambda submit: world.engine.says(submit, "Hello", stop="Hello", per_step=9)
    fields = {"messages": [USER], "logprobs": True} if path[1] == "h" else {"prompt": "x", "logprobs": 1}
    body = {"model": "sapling", "stop": "Hello", **fields}
    (choice,) = (await client.post(f"/v1/{path}", json=body)).json()["choices"]
    assert choice.get("text", "") == ""
    empty = {"content": [], "refusal": None}
    lists = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    assert choice["logprobs"] == (empty if path[1] == "h" else lists)


async def test_an_answer_in_one_piece_has_a_length(client: httpx.AsyncClient) -> None:
    response = await chat(client)
    assert int(response.headers["content-length"]) == len(response.content)
    assert response.json()["choices"][0]["message"] == {
        "role": "assistant",
        "content": "Hello world",
        "refusal": None,
        "annotations": [],
    }


@pytest.mark.parametrize(("asked", "told"), [(None, "default"), ("auto", "default"), ("flex", "flex")])
async def test_service_tiers(client: httpx.AsyncClient, world: World, asked: str | None, told: str) -> None:
    assert (await chat(client, service_tier=asked)).json()["service_tier"] == told
    assert world.engine.submitted[0].priority == told


async def test_ids_are_never_the_same(client: httpx.AsyncClient, world: World) -> None:
    await asyncio.gather(*(chat(client) for _ in range(50)))
    assert len({submit.request_id for submit in world.engine.submitted}) == 50


async def test_usage_route(client: httpx.AsyncClient, world: World) -> None:
    admin = {"authorization": f"Bearer {ADMIN_KEY}"}
    path = "/v1/organization/usage/completions"
    response = await client.get(f"{path}?start_time=5&group_by=model&group_by[]=api_key_id", headers=admin)
    assert response.status_code == 200
    assert world.usage.asked[0][1]["group_by"] == ["api_key_id", "model"]
    assert_error(await client.get(path, headers=admin), 400, INVALID, "invalid_value", "start_time")
    response = await client.get(f"{path}?start_time=soon", headers=admin)
    assert_error(response, 400, INVALID, "invalid_value", "start_time")
    response = await client.get(f"{path}?start_time=5&colour=red", headers=admin)
    assert_error(response, 400, INVALID, "unsupported_parameter", "colour")


async def test_the_openapi_document_describes_the_routes(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"][
        "schema"
    ]
    chat_schema = document["components"]["schemas"][body["$ref"].rsplit("/", 1)[1]]
    assert chat_schema["additionalProperties"] is False
    assert {"messages", "model", "top_k", "logit_bias"} <= set(chat_schema["properties"])
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    assert "ValidationError" not in json.dumps(document)  # the framework's own form of errors is never sent
    assert document["paths"]["/v1/models"]["get"]["security"] == [{"key": []}]
    text = json.dumps(document)
    for name in {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}:
        assert name in document["components"]["schemas"]
