"""Names of what an engine knows by digest and by a tenant's id."""

from __future__ import annotations

from pathlib import Path

import redis.asyncio

from adapters.name_cache import KEPT_SECONDS, AdapterName, AdapterNameCache
from db.session import Database
from tests.support.onboarding import scene


async def test_digests_and_tenants_have_names_that_are_a_minute_old_at_most(
    database: Database, redis_client: redis.asyncio.Redis, redis_url: str, tmp_path: Path
) -> None:
    async with scene(database, redis_client, redis_url, tmp_path) as place:
        ours, theirs = place.tenants
        made = await place.create("pirate")
        ref = await place.make_ready(made, "1")
        now = 0.0
        names = AdapterNameCache(database, lambda: now)
        adapters, tenants = await names.of([ref.digest, "f" * 64], [theirs, ours, "nobody", "\x00"])
        assert adapters == {ref.digest: AdapterName(ours, "ours", made.adapter.id, "pirate", 1)}
        assert tenants == {ours: "ours", theirs: "theirs"}

        later = await place.make_ready(await place.create("sql", tenant=1), "2")
        assert later.digest in (await names.of([later.digest], []))[0], "what is new is looked up at once"
        await place.onboarding.deletion.delete(ours, "pirate")
        assert ref.digest in (await names.of([ref.digest], []))[0]
        now = KEPT_SECONDS + 1
        assert await names.of([ref.digest], []) == ({}, {})
