"""Idempotency keys: one run, one bill and one response for however many attempts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
import redis.asyncio

from api import idempotency
from api.app import create_app
from tenants.errors import InvalidApiKey
from tenants.idempotency.records import Bounds, Claim, IdempotencyRecords
from tests.api.conftest import World, build, serving
from tests.api.fakes import KEY, OTHER_KEY, Script
from tests.api.test_routes import INVALID, USER, assert_error
from tests.support.waiting import eventually
from tokenization.codec import TextCodec

ASK = {"model": "sapling", "messages": [USER]}


@pytest.fixture
def world(codec: TextCodec, redis_client: redis.asyncio.Redis) -> World:
    return build(codec, idempotency=IdempotencyRecords(redis_client))


async def ask(
    client: httpx.AsyncClient,
    key: str = "one-key",
    api_key: str = KEY,
    path: str = "chat/completions",
    **fields: Any,
) -> httpx.Response:
    headers = {"idempotency-key": key, "authorization": f"Bearer {api_key}"}
    return await client.post(f"/v1/{path}", json=ASK | fields, headers=headers)


async def test_a_repeated_request_gets_the_first_response(client: httpx.AsyncClient, world: World) -> None:
    first, second = await ask(client), await ask(client)
    assert second.status_code == first.status_code == 200
    assert second.content == first.content
    assert "idempotency-replayed" not in first.headers
    assert second.headers["idempotency-replayed"] == "true"
    assert second.headers["content-type"] == "application/json"
    assert second.headers["x-request-id"] != first.headers["x-request-id"]
    assert len(world.engine.submitted) == 1
    await ask(client, "another-key")
    assert len(world.engine.submitted) == 2


async def test_ten_at_once_run_once(client: httpx.AsyncClient, world: World) -> None:
    world.engine.script = lambda submit: world.engine.says(submit, "one two three", delay=0.05)
    answers = await asyncio.gather(*(ask(client) for _ in range(10)))
    (ran,) = [answer for answer in answers if answer.status_code == 200]
    for answer in answers:
        if answer is not ran:
            assert_error(answer, 409, "conflict_error", "idempotency_in_progress", retry="true")
    assert len(world.engine.submitted) == len(world.quotas.reserved) == 1
    assert (await ask(client)).content == ran.content


async def test_another_body_or_path_is_refused(client: httpx.AsyncClient, world: World) -> None:
    await ask(client)
    changed = await ask(client, temperature=0.5)
    assert_error(changed, 422, INVALID, "idempotency_key_reused", "Idempotency-Key")
    elsewhere = await ask(client, path="completions")
    assert_error(elsewhere, 422, INVALID, "idempotency_key_reused", "Idempotency-Key")
    assert len(world.engine.submitted) == 1


async def test_keys_are_of_one_api_key(client: httpx.AsyncClient, world: World) -> None:
    first = await ask(client)
    other = await ask(client, api_key=OTHER_KEY)
    assert other.json()["id"] != first.json()["id"]


async def test_an_error_leaves_the_key_free(client: httpx.AsyncClient, world: World) -> None:
    world.engine.script = lambda submit: Script(reject=("overloaded", "full"))
    assert (await ask(client)).status_code == 503
    world.engine.script = lambda submit: world.engine.says(submit, "Hello")
    assert (await ask(client)).status_code == 200


async def test_a_wrong_api_key_is_a_401_whatever_the_idempotency_key(
    client: httpx.AsyncClient, world: World
) -> None:
    assert_error(await ask(client, "\\", api_key="wrong"), 401, INVALID, "invalid_api_key")
    await ask(client)
    world.keys.error = InvalidApiKey()
    assert_error(await ask(client), 401, INVALID, "invalid_api_key")


@pytest.mark.parametrize("key", ["", "x" * 256, "a b"])
async def test_a_malformed_key_is_refused(client: httpx.AsyncClient, key: str) -> None:
    assert_error(await ask(client, key), 400, INVALID, "invalid_value", "Idempotency-Key")


async def test_a_stream_is_replayed(client: httpx.AsyncClient, world: World) -> None:
    first, second = await ask(client, stream=True), await ask(client, stream=True)
    assert second.text == first.text
    assert second.text.endswith("data: [DONE]\n\n")
    assert second.headers["content-type"] == first.headers["content-type"]
    assert len(world.engine.submitted) == 1


async def test_a_stream_that_broke_off_leaves_the_key_free(client: httpx.AsyncClient, world: World) -> None:
    world.engine.script = lambda submit: replace(world.engine.says(submit, "one two three"), gone_after=1)
    assert "engine_unavailable" in (await ask(client, stream=True)).text
    world.engine.script = lambda submit: world.engine.says(submit, "one two three")
    assert (await ask(client, stream=True)).text.endswith("data: [DONE]\n\n")
    assert len(world.engine.submitted) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_long_response_is_not_kept_and_not_made_again(
    client: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setattr(idempotency, "MAX_KEPT", 100)
    assert (await ask(client, stream=stream)).status_code == 200
    again = await ask(client, stream=stream)
    assert_error(again, 409, "conflict_error", "idempotency_not_replayable", "Idempotency-Key")
    assert len(world.engine.submitted) == 1


async def test_a_client_that_hung_up_can_have_its_answer_later(codec: TextCodec, redis_url: str) -> None:
    """Over sockets: the request goes on, is billed once, and the retry gets what it came to."""
    kept_in = redis.asyncio.Redis.from_url(redis_url)
    world = build(codec, idempotency=IdempotencyRecords(kept_in))
    world.engine.script = lambda submit: world.engine.says(submit, "one two three", delay=0.1)
    with serving(world, close=kept_in.aclose) as served:
        async with httpx.AsyncClient(base_url=served.url) as client:
            headers = {"idempotency-key": "k", "authorization": f"Bearer {KEY}"}
            with pytest.raises(httpx.ReadTimeout):
                await client.post("/v1/chat/completions", json=ASK, headers=headers, timeout=0.15)
            found = []

            async def replayed() -> bool:
                found.append(await ask(client, "k"))
                return found[-1].status_code == 200

            await eventually(replayed)
        assert found[-1].headers["idempotency-replayed"] == "true"
        assert found[-1].json()["choices"][0]["message"]["content"] == "one two three"
        assert (len(world.engine.submitted), world.engine.aborted) == (1, [])


@asynccontextmanager
async def client_of(world: World) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(world.services), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as opened:
        yield opened


@pytest.mark.parametrize("has_redis", [False, True])
async def test_while_records_are_away_nothing_runs(codec: TextCodec, has_redis: bool) -> None:
    away = redis.asyncio.Redis.from_url("redis://127.0.0.1:1/0")  # never connects: nothing to close
    world = build(codec, idempotency=IdempotencyRecords(away) if has_redis else None)
    async with client_of(world) as client:
        refused = await ask(client)
        assert_error(refused, 503, "service_unavailable_error", "server_is_overloaded", retry="true")
        headers = {"authorization": f"Bearer {KEY}"}
        without = await client.post("/v1/chat/completions", json=ASK, headers=headers)
        assert without.status_code == 200
    assert len(world.engine.submitted) == 1


async def test_what_is_kept_shows_nothing_and_is_bounded(
    codec: TextCodec, redis_client: redis.asyncio.Redis
) -> None:
    world = build(codec, idempotency=IdempotencyRecords(redis_client, Bounds(max_records=3)))
    async with client_of(world) as client:
        ids = [(await ask(client, f"key-{number}")).json()["id"] for number in range(5)]
        keys = sorted(await redis_client.keys("rootstock:idempotency:*"))
        assert len(keys) == 3 + 2, "three records, their index and their sizes"
        for key in keys:
            assert 86_000 < await redis_client.ttl(key) <= 86_400
            if await redis_client.type(key) == b"string":
                assert b"Hello" not in (await redis_client.get(key) or b"")
        assert (await ask(client, "key-4")).json()["id"] == ids[4]
        assert (await ask(client, "key-0")).json()["id"] != ids[0], "the oldest are forgotten first"


async def test_a_tenant_keeps_so_many_bytes(redis_client: redis.asyncio.Redis) -> None:
    records = IdempotencyRecords(redis_client, Bounds(max_bytes=100))
    for name in ("a", "b", "c"):
        claim = await records.claim("ten_a", name)
        assert claim is not None
        await records.finish(claim, b"x" * 40)  # type: ignore[arg-type]
    assert sorted(await redis_client.hkeys("rootstock:idempotency:{ten_a}:sizes")) == [b"b", b"c", b"total"]
    assert await redis_client.hget("rootstock:idempotency:{ten_a}:sizes", "total") == b"80"


class LosesCancellations:
    """A Redis client that is cancelled in the middle of a command, and says that the connection broke."""

    async def eval(self, *_: object) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise redis.exceptions.ConnectionError("the connection was closed") from None


async def test_a_request_ends_though_its_lease_was_being_renewed() -> None:
    records = IdempotencyRecords(LosesCancellations(), Bounds(lease=0.04))  # type: ignore[arg-type]
    async with asyncio.timeout(30):
        async with records.held(Claim("ten_a", "a", "token")):
            await asyncio.sleep(0.1)


async def test_a_killed_process_holds_a_key_until_its_lease_ends(redis_client: redis.asyncio.Redis) -> None:
    records = IdempotencyRecords(redis_client, Bounds(lease=0.2))
    lost = await records.claim("ten_a", "a")
    assert await records.claim("ten_a", "a") is None
    found: list[Any] = []

    async def claimed() -> bool:
        found.append(await records.claim("ten_a", "a"))
        return found[-1] is not None

    await eventually(claimed)
    await records.finish(lost, b"late")  # type: ignore[arg-type]
    assert await records.claim("ten_a", "a") is None, "only the holder of the claim stores a response"
    async with records.held(found[-1]):
        await asyncio.sleep(0.5)
        assert await records.claim("ten_a", "a") is None, "a lease that is renewed does not end"
