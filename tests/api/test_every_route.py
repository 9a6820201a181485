"""Rules that hold on every route, generated from the OpenAPI document."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import redis.asyncio

from db.session import Database
from tests.api.everything import Everything, everything
from tests.support.weights import CONFIG
from tokenization.codec import TextCodec


@pytest.fixture
async def world(
    codec: TextCodec, database: Database, redis_client: redis.asyncio.Redis, redis_url: str, tmp_path: Path
) -> AsyncIterator[Everything]:
    async with everything(codec, database, redis_client, redis_url, tmp_path) as made:
        yield made


CREATED = {
    "/v1/organization/projects": {"name": "twice"},
    "/v1/organization/admin_api_keys": {"name": "twice"},
    "/v1/organization/invites": {"email": "twice@x.example", "role": "reader"},
    "/v1/organization/spend_alerts": {"currency": "USD", "interval": "month", "threshold_amount": 100},
    "/v1/webhook_endpoints": {
        "name": "twice",
        "url": "https://x.example",
        "event_types": ["invoice.finalized"],
    },
}
"""Of the account, by path: something new at each request, with a secret in the answer of some."""


async def test_what_is_created_with_an_idempotency_key_is_created_once(world: Everything) -> None:
    ours = world.ours
    for path, body in CREATED.items():
        headers = {"idempotency-key": path}
        before = len((await ours.admin.get(path)).json()["data"])
        first, second = [await ours.admin.post(path, json=body, headers=headers) for _ in range(2)]
        assert first.status_code == 200, first.text
        assert second.content == first.content
        assert second.headers["idempotency-replayed"] == "true"
        assert len((await ours.admin.get(path)).json()["data"]) == before + 1


async def test_a_file_sent_twice_with_an_idempotency_key_is_one_file(world: Everything) -> None:
    """Clients draw a new boundary for the form of each attempt."""

    async def send(content: bytes) -> httpx.Response:
        files = {"file": ("adapter_config.json", content)}
        headers = {"idempotency-key": "a-file"}
        return await world.ours.inference.post(
            "/v1/files", data={"purpose": "adapter"}, files=files, headers=headers
        )

    first, second, other = await send(CONFIG), await send(CONFIG), await send(CONFIG + b" ")
    assert first.status_code == 200, first.text
    assert first.request.headers["content-type"] != second.request.headers["content-type"]
    assert second.json() == first.json()
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")
