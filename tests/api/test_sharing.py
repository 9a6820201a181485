"""Adapters shared between two organizations, over the application in process and a real database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
import redis.asyncio
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from adapters.bases import Bases
from adapters.resolver import ModelResolver
from adapters.sharing.handles import handles
from api.app import create_app
from billing.folding import measure
from billing.pricing import PriceBook, PriceService
from billing.rates import SHARE_LABEL, Rate
from db.session import EVERY_TENANT, Database
from engine.protocol import AdapterRef, Usage
from tenants.share_terms import ShareTerms
from tests.api.conftest import build
from tests.api.fakes import KEY, FakeEngine
from tests.support.documented import Documented
from tests.support.journal import usage_event
from tests.support.onboarding import Scene
from tests.support.waiting import eventually
from tokenization.codec import TextCodec

FIRST, SECOND = AdapterRef("c" * 64, 16), AdapterRef("d" * 64, 8)
MODEL = "sapling:birch/pirate"
CHAT = [{"role": "user", "content": "hi"}]


@dataclass
class Two:
    """The user's and the owner's clients."""

    place: Scene
    engine: FakeEngine
    models: ModelResolver
    user: httpx.AsyncClient
    owner: httpx.AsyncClient
    user_id: str
    owner_id: str

    async def offer(self, **changes: Any) -> httpx.Response:
        body = {"organization_id": self.user_id, "input_surcharge": 2_000_000, "output_surcharge": 3_000_000}
        return await self.owner.post("/v1/adapters/pirate/shares", json=body | changes)

    async def shared(self) -> str:
        """The id of an accepted share."""
        share_id: str = (await self.offer()).json()["id"]
        assert (await self.user.post(f"/v1/shares/{share_id}/accept")).status_code == 200
        await self.becomes(200)
        return share_id

    async def ask(self, model: str = MODEL, client: httpx.AsyncClient | None = None) -> httpx.Response:
        body = {"model": model, "messages": CHAT}
        return await (client or self.user).post("/v1/chat/completions", json=body)

    async def becomes(self, status: int, model: str = MODEL) -> None:
        async def is_so() -> bool:
            return (await self.ask(model)).status_code == status

        await eventually(is_so)

    async def register(self, ref: AdapterRef) -> None:
        await self.place.onboarding.adapters.register_version(
            self.owner_id, "pirate", ref, base_digest="b" * 64
        )

    async def names(self, client: httpx.AsyncClient) -> list[str]:
        return [one["id"] for one in (await client.get("/v1/models")).json()["data"]]


@pytest.fixture
async def two(
    codec: TextCodec, place: Scene, database: Database, redis_client: redis.asyncio.Redis
) -> AsyncIterator[Two]:
    async with AsyncExitStack() as opened:
        async with database.write(EVERY_TENANT) as session:
            for tenant, name in zip(place.tenants, ("Acme", "Birch & Sons"), strict=False):
                await session.execute(
                    text("UPDATE tenants SET name = :name WHERE id = :id"), {"id": tenant, "name": name}
                )
            await session.execute(text("UPDATE tenants SET name = 'Birch' WHERE name = 'Birch & Sons'"))
        await PriceService(database, redis_client).add(
            input=1_000_000, cached_input=500_000, output=2_000_000
        )
        models = ModelResolver(database, redis_client, Bases("sapling"))
        prices = PriceBook(database, redis_client)
        for part in (models, prices):
            await part.start()
            opened.push_async_callback(part.close)
        await eventually(lambda: models.listening)
        world = build(codec)
        known = world.keys.callers[KEY]
        user_id, owner_id = place.tenants[:2]
        clients = []
        services = replace(world.services, models=models, prices=prices, onboarding=place.onboarding)
        transport = httpx.ASGITransport(Documented(create_app(services)))
        for tenant in (user_id, owner_id):
            key = f"rs-{tenant}"
            world.keys.callers[key] = replace(known, tenant_id=tenant)
            headers = {"authorization": f"Bearer {key}"}
            client = httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers)
            clients.append(await opened.enter_async_context(client))
        engine = world.engine
        made = Two(place, engine, models, *clients, user_id, owner_id)
        await made.register(FIRST)
        yield made


async def test_an_accepted_adapter_is_used_under_its_owners_name(two: Two) -> None:
    made = await two.offer()
    assert made.status_code == 201
    share = made.json()
    assert (share["model"], share["state"], share["owner_percent"]) == (MODEL, "offered", 80)
    assert share["owner"] == {"id": two.owner_id, "name": "Birch"}
    assert (await two.ask()).status_code == 404, "an offer is not in use"
    (seen,) = (await two.user.get("/v1/shares")).json()["data"]
    assert seen == share | {"owner_percent": None}, "what the owner keeps is not the user's business"
    accepted = (await two.user.post(f"/v1/shares/{share['id']}/accept")).json()
    assert (accepted["state"], accepted["version"]) == ("active", 1)
    await two.becomes(200)
    assert await two.names(two.user) == ["sapling", MODEL]
    assert await two.names(two.owner) == ["sapling", "sapling:pirate"]

    before = len(two.engine.submitted)
    answer = await two.ask()
    assert answer.json()["model"] == f"{MODEL}@1"
    (submit,) = two.engine.submitted[before:]
    assert (submit.tenant, submit.adapter) == (two.user_id, FIRST)
    terms = ShareTerms(share["id"], two.owner_id, 2_000_000, 3_000_000, 80)
    assert submit.labels[SHARE_LABEL] == terms.label
    assert submit.labels["adapter_id"] == share["adapter_id"]
    row = measure(usage_event(tenant=submit.tenant, labels=submit.labels))
    assert (row.tenant_id, row.owner_id, row.model) == (two.user_id, two.owner_id, f"{MODEL}@1")
    rate = Rate.of_labels(submit.labels)
    assert rate.cost(Usage(1_000_000, 0, 1_000_000)) == 1_000_000 + 2_000_000 + 5_000_000


async def test_every_endpoint_takes_a_shared_model(two: Two) -> None:
    await two.shared()
    for path, body in (
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/responses", {"input": "hi", "store": False}),
        ("/v1/responses/input_tokens", {"input": "hi"}),
        ("/v1/tokenize", {"prompt": "hi"}),
    ):
        for model in (MODEL, f"{MODEL}@1"):
            answer = await two.user.post(path, json=body | {"model": model})
            assert answer.status_code == 200, (path, answer.text)
    shown = (await two.user.get(f"/v1/models/{MODEL}@1")).json()
    assert (shown["id"], shown["owned_by"], shown["digest"]) == (f"{MODEL}@1", two.owner_id, None)
    assert shown["pricing"]["surcharge"] == {"input": 2_000_000, "output": 3_000_000}
    assert shown["pricing"]["service_tiers"]["default"]["input"] == 1_000_000
    own = (await two.owner.get("/v1/models/sapling:pirate")).json()
    assert own["pricing"]["surcharge"] is own["share"] is None


async def test_the_name_can_be_used_and_nothing_else(two: Two) -> None:
    share_id = await two.shared()
    adapter_id = (await two.user.get(f"/v1/shares/{share_id}")).json()["adapter_id"]
    await two.place.onboarding.adapters.register_version(two.user_id, "pirate", SECOND, base_digest="b" * 64)
    own = (await two.user.get("/v1/adapters/pirate")).json()["id"]
    for named in (adapter_id, MODEL.replace("/", "%2F"), "birch%2Fpirate"):
        for verb, path in (
            ("GET", ""),
            ("POST", ""),
            ("DELETE", ""),
            ("GET", "/versions"),
            ("GET", "/versions/1"),
            ("POST", "/versions/1/disable"),
            ("POST", "/rollback"),
            ("GET", "/events"),
            ("GET", "/shares"),
            ("POST", "/shares"),
        ):
            body = {"organization_id": "tnt_1"} if path == "/shares" else {}
            kept = {"json": body} if verb == "POST" else {}
            answer = await two.user.request(verb, f"/v1/adapters/{named}{path}", **kept)
            assert answer.status_code == 404, (verb, named, path, answer.text)
    for model in (MODEL, f"{MODEL}@1", adapter_id):
        answer = await two.user.post("/v1/calibration/jobs", json={"model": model})
        assert answer.status_code == 404, (model, answer.text)
    assert (await two.ask(adapter_id)).status_code == 404
    assert [one["id"] for one in (await two.user.get("/v1/adapters")).json()["data"]] == [own]
    assert (await two.ask("sapling:pirate")).json()["model"] == "sapling:pirate@1"
    assert two.engine.submitted[-1].adapter == SECOND, "an own adapter of the same name is another model"
    assert SHARE_LABEL not in two.engine.submitted[-1].labels


async def test_a_new_version_reaches_users_as_it_reaches_the_owner(two: Two) -> None:
    await two.shared()
    await two.register(SECOND)

    async def serves(model: str) -> tuple[str, AdapterRef | None]:
        answer = await two.ask(model)
        return answer.json()["model"], two.engine.submitted[-1].adapter

    async def is_new() -> bool:
        return await serves(MODEL) == (f"{MODEL}@2", SECOND)

    await eventually(is_new)
    assert await serves(f"{MODEL}@1") == (f"{MODEL}@1", FIRST), "a pinned version stays"
    await two.owner.post("/v1/adapters/pirate", json={"disabled": True})
    await two.becomes(404)
    assert await two.names(two.user) == ["sapling"]
    await two.owner.post("/v1/adapters/pirate", json={"disabled": False, "name": "corsair"})
    await two.becomes(200)
    assert await serves(MODEL) == (f"{MODEL}@2", SECOND), "a shared name outlives the owner's renaming"


@pytest.mark.parametrize("end", ["owner", "user", "deletion", "disabled owner"])
async def test_either_side_ends_it_at_once(two: Two, end: str) -> None:
    share_id = await two.shared()
    if end == "owner":
        ended = await two.owner.delete(f"/v1/adapters/pirate/shares/{share_id}")
        assert (ended.json()["state"], ended.json()["ended_by"]) == ("ended", two.owner_id)
    elif end == "user":
        assert (await two.user.delete(f"/v1/shares/{share_id}")).json()["ended_by"] == two.user_id
    elif end == "deletion":
        await two.owner.delete("/v1/adapters/pirate")
        assert (await two.user.get(f"/v1/shares/{share_id}")).json()["state"] == "ended"
    else:
        async with two.place.database.write(EVERY_TENANT) as session:
            await session.execute(text("UPDATE tenants SET disabled_at = now()"))
        await two.place.redis.publish("rootstock:invalidate:models", two.user_id)
    await two.becomes(404)
    for model in (MODEL, f"{MODEL}@1"):
        assert (await two.ask(model)).status_code == 404
    assert await two.names(two.user) == ["sapling"]
    if end == "disabled owner":
        return
    again = await two.user.post(f"/v1/shares/{share_id}/accept")
    assert (again.status_code, again.json()["error"]["code"]) == (409, "share_answered")


async def test_a_declined_offer_can_be_made_again(two: Two) -> None:
    first = (await two.offer()).json()["id"]
    again = await two.offer()
    assert (again.status_code, again.json()["error"]["code"]) == (409, "already_shared")
    declined = await two.user.post(f"/v1/shares/{first}/decline")
    assert declined.json()["state"] == "declined"
    assert (await two.user.post(f"/v1/shares/{first}/accept")).status_code == 409
    second = (await two.offer(owner_percent=10)).json()
    assert second["owner_percent"] == 10
    listed = (await two.owner.get("/v1/adapters/pirate/shares")).json()["data"]
    assert [one["state"] for one in listed] == ["offered", "declined"]
    assert (await two.user.post(f"/v1/shares/{second['id']}/accept")).json()["state"] == "active"
    refused = await two.user.post(f"/v1/shares/{second['id']}/decline")
    assert refused.status_code == 409, "what is in use is ended, not declined"


async def test_an_offer_that_cannot_be_made_names_its_field(two: Two) -> None:
    for field, value, status in (
        ("organization_id", "tnt_01k00000000000000000000000", 404),
        ("organization_id", "operator", 404),
        ("organization_id", two.owner_id, 400),
        ("input_surcharge", -1, 400),
        ("output_surcharge", 10**9 + 1, 400),
        ("owner_percent", 81, 400),
        ("owner_percent", -1, 400),
    ):
        refused = await two.offer(**{field: value})
        assert (refused.status_code, refused.json()["error"]["param"]) == (status, field), refused.text


async def test_rows_are_seen_by_both_sides_and_made_by_the_owner(two: Two) -> None:
    await two.offer()
    database = two.place.database
    third = two.place.tenants[2] if len(two.place.tenants) > 2 else "tnt_third"
    for tenant, seen in ((two.owner_id, 1), (two.user_id, 1), (third, 0)):
        async with database.read(tenant) as session:
            found = (await session.execute(text("SELECT count(*) FROM adapter_shares"))).scalar_one()
        assert found == seen, tenant
    async with database.write(two.user_id) as session:
        removed = await session.execute(text("DELETE FROM adapter_shares"))
        assert removed.rowcount == 0  # type: ignore[attr-defined]
    forged = (
        "INSERT INTO adapter_shares (id, tenant_id, adapter_id, recipient_id, base, handle, name,"
        " input_surcharge, output_surcharge, owner_percent)"
        " SELECT 'shr_x', tenant_id, adapter_id, recipient_id, base, 'x', 'x', 0, 0, 0 FROM adapter_shares"
    )
    with pytest.raises(DBAPIError, match="row-level security"):
        async with database.write(two.user_id) as session:
            await session.execute(text(forged))


async def test_a_plan_pins_shared_adapters_after_the_users_own(two: Two) -> None:
    await two.shared()
    pinning = two.place.onboarding.adapters._announcer._pinning
    assert pinning is not None
    async with two.place.database.write(EVERY_TENANT) as session:
        plan = "INSERT INTO plans (id, name, pinned_adapters) VALUES ('plan_1', 'one', 1)"
        await session.execute(text(plan))
        await session.execute(
            text("UPDATE tenants SET plan_id = 'plan_1' WHERE id = :id"), {"id": two.user_id}
        )
    assert await pinning.announce() == 1
    assert list(pinning._pinned.values()) == [FIRST]
    await two.place.onboarding.adapters.register_version(two.user_id, "own", SECOND, base_digest="b" * 64)
    assert await pinning.announce() == 1
    assert list(pinning._pinned.values()) == [SECOND]


def test_handles_are_plain_and_go_on_until_one_is_free() -> None:
    for name, expected in (
        ("Acme", "acme"),
        ("Müller & Söhne GmbH", "muller-sohne-gmbh"),
        ("  --  ", "organization"),
        ("東京", "organization"),
        ("a" * 60, "a" * 40),
    ):
        found = handles(name)
        assert [next(found), next(found)] == [expected, f"{expected}-2"]
