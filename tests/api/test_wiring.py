"""The real resolvers over a real database: what a request holds while it runs, and how soon a key is dead."""

from __future__ import annotations

import asyncio

import httpx
import redis.asyncio

from adapters.bases import Bases
from adapters.resolver import ModelResolver
from api.app import create_app
from api.pools import BasePool, Pools
from api.services import Services
from billing.service import UsageReports
from db.session import Database
from engine.protocol import Submit
from sla.recorder import SlaRecorder
from sla.service import SlaReports
from tenants.actors import OPERATOR
from tenants.key_service import KeyService
from tenants.resolver import KeyResolver
from tenants.service import TenantService
from tests.api.fakes import FakeEngine, FakePrices, FakeQuotas, Script
from tests.support.waiting import eventually
from tokenization.codec import TextCodec

SECRET = "a secret of at least thirty-two characters"
BODY = {"model": "sapling", "messages": [{"role": "user", "content": "hi"}], "stream": True}


async def test_no_connection_is_held_while_the_engine_works_and_a_revoked_key_is_dead(
    codec: TextCodec, database: Database, redis_client: redis.asyncio.Redis
) -> None:
    tenants = TenantService(database, redis_client)
    tenant = await tenants.create_tenant("acme")
    key_service = KeyService(database, redis_client, SECRET)
    key = await key_service.create(tenant.id, "main", OPERATOR)
    keys = KeyResolver(database, redis_client, SECRET)
    models = ModelResolver(database, redis_client, Bases("sapling"))
    engine = FakeEngine(codec)
    held: list[int] = []

    def script(submit: Submit) -> Script:
        held.append(database.checked_out)
        return engine.says(submit, "one two", delay=0.01)

    engine.script = script
    services = Services(
        pools=Pools(BasePool("sapling", engine, codec)),  # type: ignore[arg-type]
        keys=keys,
        models=models,
        usage=UsageReports(database),
        files=None,  # type: ignore[arg-type]
        uploads=None,  # type: ignore[arg-type]
        quotas=FakeQuotas(),  # type: ignore[arg-type]
        prices=FakePrices(),  # type: ignore[arg-type]
        sla=SlaRecorder(None),  # type: ignore[arg-type]
        sla_reports=SlaReports(database),
    )
    await keys.start()
    await models.start()
    transport = httpx.ASGITransport(create_app(services))
    headers = {"authorization": f"Bearer {key.plaintext}"}
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
            await eventually(lambda: keys.listening)
            answers = await asyncio.gather(
                *(client.post("/v1/chat/completions", json=BODY) for _ in range(20))
            )
            assert {answer.status_code for answer in answers} == {200}
            # A first look-up notes when the key was used, on the side; later requests ask nothing.
            await client.post("/v1/chat/completions", json=BODY)
            assert held[-1] == 0
            assert database.checked_out == 0
            await key_service.revoke(tenant.id, key.id, OPERATOR)

            async def refused() -> bool:
                return (await client.get("/v1/models")).status_code == 401

            await eventually(refused, seconds=1)
    finally:
        await keys.close()
        await models.close()
