"""How many bytes a tenant may store: files, and what open uploads were announced with."""

from __future__ import annotations

import asyncio

import pytest
import redis.asyncio

from adapters.files.errors import StorageLimitReached
from adapters.files.models import StoredFile
from adapters.files.uploads import UploadState
from tenants.actors import OPERATOR
from tenants.limits.kinds import Limit, Metric
from tenants.plans import PlanChanges, PlanService
from tenants.quotas.service import LimitService
from tests.adapters.files.conftest import Place


@pytest.fixture
async def limited(place: Place, redis_client: redis.asyncio.Redis) -> Place:
    """One tenant may store 100 bytes, the other as much as its plan says: 1 000."""
    limit = Limit("tenant", "ten_one", "", Metric.STORAGE_BYTES, 100)
    await LimitService(place.database, redis_client).set("ten_one", OPERATOR, limit)
    changes = PlanChanges(limits={Metric.STORAGE_BYTES: 1000})
    await PlanService(place.database, redis_client).set("standard", changes)
    return place


async def store(place: Place, size: int, tenant: str = "ten_one") -> StoredFile:
    return await place.files.create(
        tenant, "key_1", "adapter", "a.safetensors", b"x" * size, max_bytes=10_000
    )


async def announce(place: Place, size: int, tenant: str = "ten_one") -> UploadState:
    kind = "application/octet-stream"
    return await place.uploads.create(
        tenant, "key_1", "adapter", "a.safetensors", kind, size, max_bytes=10_000
    )


async def test_files_beyond_the_limit_are_refused_and_leave_nothing(limited: Place) -> None:
    first = await store(limited, 60)
    with pytest.raises(StorageLimitReached) as refused:
        await store(limited, 41)
    assert refused.value.limit == 100
    assert await limited.keys() == {first.object_key}
    await store(limited, 40)
    await limited.files.delete("ten_one", first.id)
    await store(limited, 60)
    await store(limited, 1000, "ten_two")
    with pytest.raises(StorageLimitReached):
        await store(limited, 1, "ten_two")


async def test_an_open_upload_counts_with_what_it_was_announced_with(limited: Place) -> None:
    upload = (await announce(limited, 80)).upload
    with pytest.raises(StorageLimitReached):
        await announce(limited, 21)
    with pytest.raises(StorageLimitReached):
        await store(limited, 21)
    part = await limited.uploads.add_part("ten_one", upload.id, b"y" * 80)
    await limited.uploads.complete("ten_one", upload.id, [part.id], None)
    await store(limited, 20)
    with pytest.raises(StorageLimitReached):
        await store(limited, 1)


async def test_a_cancelled_upload_makes_room(limited: Place) -> None:
    upload = (await announce(limited, 100)).upload
    await limited.uploads.cancel("ten_one", upload.id)
    await store(limited, 100)


async def test_files_that_come_at_once_do_not_pass_together(limited: Place) -> None:
    came = await asyncio.gather(*(store(limited, 30) for _ in range(6)), return_exceptions=True)
    assert sum(isinstance(each, StoredFile) for each in came) == 3
    assert sum(isinstance(each, StorageLimitReached) for each in came) == 3
    assert len(await limited.keys()) == 3
