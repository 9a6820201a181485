"""Which calls are recorded as refused, and with what."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from api.app import create_app
from tenants.errors import AddressNotAllowed, RateLimited
from tenants.limits.kinds import Limit, Metric
from tenants.refusals.recorder import RefusalRecorder, RefusedRequest
from tests.api.conftest import LIMITS, World, build
from tests.api.fakes import BROWSER_KEY, KEY, RESTRICTED_KEY, Script
from tests.support.waiting import eventually
from tokenization.codec import TextCodec

CHAT: dict[str, Any] = {"model": "sapling", "messages": [{"role": "user", "content": "a secret"}]}
CHAT_PATH = "/v1/chat/completions"


class Recorder(RefusalRecorder):
    """Keeps what it is given."""

    def __init__(self) -> None:
        super().__init__(None)  # type: ignore[arg-type]
        self.calls: list[RefusedRequest] = []

    def record(self, call: RefusedRequest) -> None:
        self.calls.append(call)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def world(codec: TextCodec, recorder: Recorder) -> World:
    return build(codec, refusals=recorder)


@pytest.fixture
async def client(world: World) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(world.services), raise_app_exceptions=False)
    headers = {"authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as opened:
        yield opened


async def only(recorder: Recorder, answer: httpx.Response) -> RefusedRequest:
    """The one recorded call, which is the response's."""
    await eventually(lambda: bool(recorder.calls))
    (call,) = recorder.calls
    assert call.request_id == answer.headers["x-request-id"]
    assert call.status == answer.status_code
    error = answer.json()["error"]
    assert (call.code, call.message) == (error["code"], error["message"])
    assert abs(call.at / 1e6 - time.time()) < 60
    return call


async def test_a_request_that_succeeds_is_not_recorded(
    client: httpx.AsyncClient, recorder: Recorder, world: World
) -> None:
    assert (await client.post(CHAT_PATH, json=CHAT)).status_code == 200
    assert (await client.get("/v1/models")).status_code == 200
    assert recorder.calls == []


async def test_a_refused_request_is_recorded_without_its_content(
    client: httpx.AsyncClient, recorder: Recorder, world: World
) -> None:
    answer = await client.post(CHAT_PATH, json=CHAT | {"model": "sapling:absent", "service_tier": "flex"})
    assert answer.status_code == 404
    call = await only(recorder, answer)
    assert (call.tenant_id, call.key_id) == ("ten_one", "key_one")
    assert (call.method, call.route, call.path) == ("POST", CHAT_PATH, CHAT_PATH)
    assert (call.model, call.service_tier, call.code) == ("sapling:absent", "flex", "model_not_found")
    assert "secret" not in repr(call)


@pytest.mark.parametrize(
    ("body", "model"),
    [
        (CHAT | {"temperature": 9}, "sapling"),
        (CHAT | {"nonsense": 1}, "sapling"),
        (CHAT | {"model": 7}, ""),
        (CHAT | {"model": "m\x00" + "x" * 400, "temperature": 9}, "m\ufffd" + "x" * 198),
    ],
)
async def test_the_model_of_an_invalid_body_is_recorded(
    client: httpx.AsyncClient, recorder: Recorder, world: World, body: dict[str, Any], model: str
) -> None:
    answer = await client.post(CHAT_PATH, json=body)
    assert answer.status_code == 400
    assert (await only(recorder, answer)).model == model


async def test_a_body_that_is_no_json_is_recorded(
    client: httpx.AsyncClient, recorder: Recorder, world: World
) -> None:
    answer = await client.post(CHAT_PATH, content=b"{", headers={"content-type": "application/json"})
    assert (await only(recorder, answer)).model == ""


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        (CHAT_PATH, {}),  # the fast path
        (f"{CHAT_PATH}?", {}),  # the framework's
        (CHAT_PATH, {"idempotency-key": "k"}),
    ],
)
async def test_every_way_of_a_request_is_recorded_once(
    client: httpx.AsyncClient, recorder: Recorder, world: World, path: str, headers: dict[str, str]
) -> None:
    world.quotas.error = RateLimited(Limit("tenant", "t", "", Metric.REQUESTS_PER_MINUTE, 1), 1.0)
    answer = await client.post(path, json=CHAT, headers=headers)
    assert answer.status_code in (429, 503)
    assert (await only(recorder, answer)).path == CHAT_PATH


@pytest.mark.parametrize("key", ["", "sk-rs-0123456789abcdefABCDEFunknown-k"])
async def test_a_call_without_a_valid_key_belongs_to_no_tenant(
    client: httpx.AsyncClient, recorder: Recorder, world: World, key: str
) -> None:
    headers = {"authorization": f"Bearer {key}"} if key else {"authorization": ""}
    for path in (CHAT_PATH, "/v1/absent", "/v1/models"):
        assert (await client.post(path, json=CHAT, headers=headers)).status_code >= 400
    assert (await client.get("/absent")).status_code == 404
    world.keys.error = AddressNotAllowed("10.0.0.1")
    assert (await client.get("/v1/models")).status_code == 403
    assert recorder.calls == []


async def test_a_key_used_where_it_may_not_be_is_recorded(
    client: httpx.AsyncClient, recorder: Recorder, world: World
) -> None:
    world.keys.error = AddressNotAllowed("10.0.0.1", world.keys.callers[KEY])
    answer = await client.get("/v1/models")
    assert (await only(recorder, answer)).status == 403


async def test_a_page_of_another_origin_is_recorded(
    client: httpx.AsyncClient, recorder: Recorder, world: World
) -> None:
    headers = {"authorization": f"Bearer {BROWSER_KEY}", "origin": "https://evil.example"}
    answer = await client.get("/v1/models", headers=headers)
    assert (await only(recorder, answer)).key_id == "key_b"


@pytest.mark.parametrize(
    ("method", "path", "status", "headers"),
    [
        ("POST", CHAT_PATH, 403, {"authorization": f"Bearer {RESTRICTED_KEY}"}),
        ("GET", "/v1/models", 401, {"openai-organization": "another"}),
        ("GET", "/v1/absent", 404, {}),
        ("DELETE", CHAT_PATH, 405, {}),
        ("POST", CHAT_PATH, 413, {"content-length": str(LIMITS.max_body_bytes + 1)}),
        ("POST", CHAT_PATH, 415, {"content-encoding": "gzip"}),
    ],
)
async def test_a_refused_key_path_or_size_is_recorded(
    client: httpx.AsyncClient,
    recorder: Recorder,
    world: World,
    method: str,
    path: str,
    status: int,
    headers: dict[str, str],
) -> None:
    answer = await client.request(method, path, content=b"{}", headers=headers)
    assert answer.status_code == status
    call = await only(recorder, answer)
    assert (call.tenant_id, call.path) == ("ten_one", path)


async def test_a_request_that_the_engine_rejects_is_recorded_with_its_id(
    client: httpx.AsyncClient, recorder: Recorder, world: World
) -> None:
    world.engine.script = lambda _: Script(reject=("overloaded", "The server is overloaded.", 1.0))
    answer = await client.post(CHAT_PATH, json=CHAT)
    assert answer.status_code == 503
    assert (await only(recorder, answer)).generation_id.startswith("chatcmpl-")


async def test_an_error_of_ours_is_recorded_once(
    client: httpx.AsyncClient, recorder: Recorder, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr(world.models, "resolve", fail)
    for path in (CHAT_PATH, f"{CHAT_PATH}?"):
        recorder.calls.clear()
        answer = await client.post(path, json=CHAT)
        assert answer.status_code == 500
        assert "secret" not in (await only(recorder, answer)).message
