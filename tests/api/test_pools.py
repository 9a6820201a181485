"""Two base models behind one API: names, adapters, uploads and readiness, over a real database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import httpx
import msgspec
import pytest
import redis.asyncio

from adapters.bases import Bases
from adapters.errors import AdapterNotFound
from adapters.resolver import ModelResolver
from adapters.service import AdapterService
from api.app import create_app
from api.pools import BasePool, Pools
from db.session import Database
from engine.protocol import AdapterRef
from tenants.service import TenantService
from tests.api.conftest import build
from tests.api.fakes import BASE_DIGEST, KEY, FakeEngine
from tests.support.documented import Documented
from tests.support.waiting import eventually
from tokenization.codec import TextCodec

OAK = AdapterRef("c" * 64, 16)
SAPLING = AdapterRef("d" * 64, 8)


@dataclass
class TwoBases:
    client: httpx.AsyncClient
    sapling: FakeEngine
    oak: FakeEngine
    tenant_id: str
    ids: dict[str, str]
    """Of adapters, by the model's name."""

    async def ask(self, model: str) -> httpx.Response:
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
        return await self.client.post("/v1/chat/completions", json=body)


@pytest.fixture
async def two(
    codec: TextCodec, database: Database, redis_client: redis.asyncio.Redis
) -> AsyncIterator[TwoBases]:
    tenant = await TenantService(database, redis_client).create_tenant("acme")
    bases = Bases("sapling", "oak")
    adapters = AdapterService(database, redis_client, bases)
    ids = {}
    for base, name, ref in (
        ("sapling", "pirate", SAPLING),
        ("oak", "pirate", OAK),
        ("oak", "haiku", AdapterRef("e" * 64, 4)),
    ):
        made = await adapters.register_version(tenant.id, name, ref, base=base, base_digest=BASE_DIGEST)
        ids[f"{base}:{name}"] = made.adapter_id
    sapling, oak = FakeEngine(codec), FakeEngine(codec)
    assert oak.info is not None
    oak.info = msgspec.structs.replace(oak.info, engine_id="engine-1", base="oak", context_length=128)
    models = ModelResolver(database, redis_client, bases)
    await models.start()
    await eventually(lambda: models.listening)
    pools = Pools(BasePool("sapling", sapling, codec), BasePool("oak", oak, codec))  # type: ignore[arg-type]
    world = build(codec)
    world.keys.callers[KEY] = replace(world.keys.callers[KEY], tenant_id=tenant.id)
    services = replace(world.services, pools=pools, models=models)  # type: ignore[arg-type]
    transport = httpx.ASGITransport(Documented(create_app(services)))
    headers = {"authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
        yield TwoBases(client, sapling, oak, tenant.id, ids)
    await models.close()


async def test_a_request_goes_to_the_engines_of_its_base(two: TwoBases) -> None:
    for model, named, engine, adapter in (
        ("sapling", "sapling", two.sapling, None),
        ("oak", "oak", two.oak, None),
        ("sapling:pirate", "sapling:pirate@1", two.sapling, SAPLING),
        ("oak:pirate@1", "oak:pirate@1", two.oak, OAK),
        (two.ids["oak:pirate"], "oak:pirate@1", two.oak, OAK),
    ):
        before = len(engine.submitted)
        answer = await two.ask(model)
        assert (answer.status_code, answer.json()["model"]) == (200, named)
        (submit,) = engine.submitted[before:]
        assert (submit.adapter, submit.labels["model"]) == (adapter, named)


async def test_an_adapter_is_not_found_under_another_base(two: TwoBases) -> None:
    assert (await two.ask("oak:haiku")).status_code == 200
    for model in ("sapling:haiku", "elm", "elm:haiku"):
        answer = await two.ask(model)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


async def test_every_base_is_listed_with_its_context_length(two: TwoBases) -> None:
    listed = (await two.client.get("/v1/models")).json()["data"]
    shown = [(model["id"], model["base"], model["max_model_len"]) for model in listed]
    context = two.sapling.info.context_length  # type: ignore[union-attr]
    assert shown == [
        ("sapling", "sapling", context),
        ("sapling:pirate", "sapling", context),
        ("oak", "oak", 128),
        ("oak:haiku", "oak", 128),
        ("oak:pirate", "oak", 128),
    ]
    long = "word " * 200
    answer = await two.client.post("/v1/completions", json={"model": "oak", "prompt": long})
    assert answer.json()["error"]["code"] == "context_length_exceeded"


async def test_a_base_without_engines_is_named_and_the_others_serve(two: TwoBases) -> None:
    two.oak.ready = False
    two.oak.left_out = ["the engine engine-1 serves 'elm', and engines of 'oak' are expected"]
    ready = await two.client.get("/readyz")
    assert (ready.status_code, ready.json()["not_ready"]) == (200, ["engine oak"])
    assert "serves 'elm'" in ready.json()["checks"]["engine oak"]
    assert (await two.ask("sapling")).status_code == 200
    assert (await two.ask("oak")).status_code == 503
    two.sapling.ready = False
    ready = await two.client.get("/readyz")
    assert (ready.status_code, ready.json()["not_ready"]) == (503, ["engine sapling", "engine oak"])


async def test_the_tokenizer_is_that_of_the_base(two: TwoBases) -> None:
    for model, most in (("sapling", two.sapling.info.context_length), ("oak", 128)):  # type: ignore[union-attr]
        answer = await two.client.post("/v1/tokenize", json={"model": model, "prompt": "hi"})
        assert answer.json()["max_model_len"] == most


def test_an_adapter_is_named_with_its_base_or_means_the_default_one() -> None:
    bases = Bases("sapling", "oak")
    assert str(bases.reference("pirate")) == "sapling:pirate"
    assert str(bases.reference("oak:pirate")) == "oak:pirate"
    assert bases.reference("adp_" + "0" * 26).adapter_id == "adp_" + "0" * 26
    assert str(bases.reference("oak")) == "sapling:oak", "a name alone is an adapter's"
    for name in ("elm:pirate", "oak:", "oak:pirate@1", "Not so", ""):
        with pytest.raises(AdapterNotFound):
            bases.reference(name)
