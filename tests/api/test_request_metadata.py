"""What requests are named with is kept before the engine has them, unless nothing may be stored."""

from __future__ import annotations

import dataclasses
from typing import Any

import httpx
import pytest

from billing.request_metadata.content import RequestMetadata
from engine.protocol import Submit
from tests.api.conftest import World, build
from tests.api.fakes import KEY, Script
from tokenization.codec import TextCodec

NAMED: dict[str, Any] = {"user": "u-1", "safety_identifier": "s-1", "metadata": {"ticket": "17"}}
CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})
COMPLETION = ("/v1/completions", {"prompt": ["hi", "you"], "max_tokens": 4})
RESPONSE = ("/v1/responses", {"input": "hi"})


class Recorder:
    """Takes what a process would send to Redis."""

    num_dropped = 0

    def __init__(self) -> None:
        self.kept: list[tuple[str, str, RequestMetadata]] = []

    async def keep(self, content: RequestMetadata, tenant_id: str, request_id: str) -> None:
        self.kept.append((tenant_id, request_id, content))


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def world(codec: TextCodec, recorder: Recorder) -> World:
    return build(codec, request_metadata=recorder)


async def post(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> httpx.Response:
    return await client.post(path, json={"model": "sapling", **body})


@pytest.mark.parametrize(("path", "body"), [CHAT, COMPLETION, RESPONSE])
@pytest.mark.parametrize("stream", [False, True])
async def test_it_is_kept_before_the_engine_has_the_request(
    client: httpx.AsyncClient, world: World, recorder: Recorder, path: str, body: dict[str, Any], stream: bool
) -> None:
    kept_at_submit: list[int] = []

    def script(submit: Submit) -> Script:
        kept_at_submit.append(len(recorder.kept))
        return world.engine.says(submit, "one two")

    world.engine.script = script
    assert (await post(client, path, body | NAMED | {"stream": stream})).status_code == 200
    assert {*kept_at_submit} == {1}
    [(tenant_id, request_id, content)] = recorder.kept
    assert content == RequestMetadata(**NAMED)
    assert world.engine.submitted[0].request_id.startswith(request_id)
    assert tenant_id == world.engine.submitted[0].tenant


async def test_a_request_without_any_is_not_recorded(client: httpx.AsyncClient, recorder: Recorder) -> None:
    for path, body in (CHAT, COMPLETION, RESPONSE):
        assert (await post(client, path, body | {"metadata": {}, "user": ""})).status_code == 200
    assert recorder.kept == []


async def test_an_organization_that_stores_nothing(
    client: httpx.AsyncClient, world: World, recorder: Recorder
) -> None:
    caller = world.keys.callers[KEY]
    world.keys.callers[KEY] = dataclasses.replace(caller, stores_nothing=True)
    for path, body in (CHAT, RESPONSE):
        assert (await post(client, path, body | NAMED)).status_code == 200
    assert recorder.kept == []


@pytest.mark.parametrize(("path", "body"), [CHAT, COMPLETION, RESPONSE])
@pytest.mark.parametrize(
    ("named", "param"),
    [
        ({"metadata": {f"key-{number}": "" for number in range(17)}}, "metadata"),
        ({"metadata": {"k" * 65: "v"}}, "metadata"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
        ({"safety_identifier": "s" * 129}, "safety_identifier"),
        ({"user": "u" * 513}, "user"),
    ],
)
async def test_bounds(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], named: dict[str, Any], param: str
) -> None:
    refused = await post(client, path, body | named)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"].startswith(param)
