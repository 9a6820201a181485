"""The application with real keys, prices and quotas over PostgreSQL and Redis, behind a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import redis.asyncio

from adapters.bases import Bases
from adapters.resolver import ModelResolver
from api.app import create_app
from api.pools import BasePool, Pools
from api.services import RequestLimits, Services
from billing.pricing import PriceBook, PriceService
from billing.window_usage import WindowUsage
from db.session import Database
from sla.recorder import SlaRecorder
from sla.service import SlaReports
from tenants.actors import OPERATOR
from tenants.key_service import KeyService
from tenants.plans import PlanChanges, PlanService
from tenants.quotas import LimitState, Quotas
from tenants.resolver import KeyResolver
from tenants.service import TenantService
from tests.support.documented import Documented
from tests.support.serving import served
from tests.support.waiting import eventually
from tokenization.codec import TextCodec

SECRET = "a secret of at least thirty-two characters"
INPUT, CACHED, OUTPUT = 3_000_000, 1_000_000, 7_000_000
"""Micro-USD per million tokens."""
AMPLE = {
    "requests_per_minute": 10_000,
    "tokens_per_minute": 10_000_000,
    "input_tokens_per_minute": 10_000_000,
    "output_tokens_per_minute": 10_000_000,
    "concurrent_requests": 100,
    "requests_per_day": 10_000,
    "tokens_per_day": 1_000_000,
    "spend_per_month": 1_000_000_000,
}


@dataclass
class Site:
    tenant_id: str
    key: str
    url: str
    database: Database
    keys: KeyResolver
    quotas: Quotas
    plans: PlanService
    redis: redis.asyncio.Redis
    client: httpx.AsyncClient

    async def books(self) -> dict[str, LimitState]:
        """What of each limit is used and held."""
        limits = (await self.keys.resolve(self.key, None)).limits
        return {state.limit.metric: state for state in await self.quotas.state(self.tenant_id, limits)}

    async def settled(self) -> tuple[int, int, int]:
        """(requests, tokens, micro-USD) charged, once nothing is open or held."""

        async def idle() -> bool:
            books = await self.books()
            return self.quotas.num_open == 0 and not any(state.held for state in books.values())

        await eventually(idle, seconds=10)
        books = await self.books()
        used = [books[metric].used for metric in ("requests_per_day", "tokens_per_day", "spend_per_month")]
        assert all(amount is not None for amount in used)
        return used[0], used[1], used[2]  # type: ignore[return-value]

    async def set_plan(self, limits: Mapping[str, int | None] | None = None, **terms: Any) -> None:
        """Change the tenant's plan, and wait until it is heard."""
        changes = PlanChanges(limits=limits or {}, terms=terms)
        wanted = await self.plans.set("standard", changes)

        async def heard() -> bool:
            plan = (await self.keys.resolve(self.key, None)).plan
            return (dict(plan.limits), plan.terms) == (dict(wanted.limits), wanted.terms)

        await eventually(heard, seconds=10)


@asynccontextmanager
async def quota_site(
    engine: Any,
    codec: TextCodec,
    database: Database,
    redis_url: str,
    limits: Mapping[str, int] | None = None,
) -> AsyncIterator[Site]:
    """`engine`: started, and closed by whoever made it."""
    async with AsyncExitStack() as opened:
        cache = await opened.enter_async_context(redis.asyncio.Redis.from_url(redis_url))
        plans = PlanService(database, cache)
        await plans.set("standard", PlanChanges(limits=AMPLE if limits is None else limits))
        await PriceService(database, cache).add(input=INPUT, cached_input=CACHED, output=OUTPUT)
        tenant = await TenantService(database, cache).create_tenant("acme")
        key = await KeyService(database, cache, SECRET).create(tenant.id, "main", OPERATOR)
        keys = KeyResolver(database, cache, SECRET)
        models = ModelResolver(database, cache, Bases("sapling"))
        prices = PriceBook(database, cache)
        quotas = Quotas(redis_url, "test", read_usage=WindowUsage(database))
        for part in (keys, models, prices, quotas):
            await part.start()
            opened.push_async_callback(part.close)
        await eventually(lambda: keys.listening and models.listening and not quotas.away, seconds=10)
        services = Services(
            pools=Pools(BasePool("sapling", engine, codec)),
            keys=keys,
            models=models,
            usage=None,  # type: ignore[arg-type]
            files=None,  # type: ignore[arg-type]
            uploads=None,  # type: ignore[arg-type]
            quotas=quotas,
            prices=prices,
            sla=SlaRecorder(cache),
            sla_reports=SlaReports(database),
            limits=RequestLimits(body_timeout=20),
        )
        url = await opened.enter_async_context(served(Documented(create_app(services))))
        headers = {"authorization": f"Bearer {key.plaintext}"}
        client = await opened.enter_async_context(
            httpx.AsyncClient(base_url=url, headers=headers, timeout=60)
        )
        yield Site(tenant.id, key.plaintext, url, database, keys, quotas, plans, cache, client)
