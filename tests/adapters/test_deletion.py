"""Deleting: the name is free at once; objects, artifacts and rows go later, whatever happens between."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from adapters.bases import Bases
from adapters.deletion import GRACE, purge_deleted
from adapters.errors import AdapterNotFound, ModelNotFound
from adapters.published_artifacts.publishing import published_key
from adapters.resolver import ModelResolver
from adapters.storage import StorageUnavailable
from engine.lora.draft_adapters import DraftAdapter, write_note
from engine.protocol import AdapterRef
from retention.certifying import Certifier
from retention.service import RetentionService
from retention.signing import CertificateSigner
from tenants.actors import OPERATOR
from tenants.key_secrets import KeySecrets
from tenants.retention.classes import DEFAULT_BOUNDS
from tenants.retention.errors import OnLegalHold
from tests.support.onboarding import SECRET, Scene, artifact_file
from tests.support.programs import end_killed
from tests.support.waiting import eventually


@pytest.fixture
async def resolver(place: Scene) -> AsyncIterator[ModelResolver]:
    made = ModelResolver(place.database, place.redis, Bases("sapling"))
    await made.start()
    await eventually(lambda: made.listening)
    yield made
    await made.close()


def later() -> datetime:
    """When the grace period of what was deleted now, and of what was packed now, is over."""
    return datetime.now(UTC) + 2 * GRACE


async def purge(place: Scene, now: datetime | None = None) -> int:
    return await purge_deleted(place.database, place.store, place.artifacts, now or later())


async def objects_of(place: Scene, adapter_id: str) -> list[str]:
    return [key for key in await place.keys() if f"/adapters/{adapter_id}/" in key]


async def test_a_deleted_adapter_is_gone_at_once_and_its_name_is_free(
    place: Scene, resolver: ModelResolver
) -> None:
    ours = place.tenants[0]
    made = await place.create("pirate")
    ref = await place.make_ready(made, "1")
    names = ("sapling:pirate", "sapling:pirate@1", made.adapter.id)
    for name in names:
        assert (await resolver.resolve(ours, name)).adapter == ref
    await place.onboarding.deletion.delete(ours, made.adapter.id)

    async def is_gone() -> bool:
        for name in names:
            try:
                await resolver.resolve(ours, name)
            except ModelNotFound:
                continue
            return False
        return True

    assert await eventually(is_gone) < 1
    with pytest.raises(AdapterNotFound):
        await place.onboarding.deletion.delete(ours, made.adapter.id)
    again = await place.create("pirate", "sql")
    assert again.adapter.id != made.adapter.id
    new_ref = await place.make_ready(again, "2")

    async def serves() -> bool:
        return (await resolver.resolve(ours, "sapling:pirate")).adapter == new_ref

    assert await eventually(serves) < 1
    with pytest.raises(ModelNotFound):
        await resolver.resolve(ours, made.adapter.id)


async def test_it_is_certified_when_nothing_is_stored_and_refused_while_it_is_held(place: Scene) -> None:
    ours, retention = place.tenants[0], RetentionService(place.database)
    made = await place.create("pirate")
    hold = await retention.place_hold(ours, "case", OPERATOR, object_id=made.adapter.id)
    with pytest.raises(OnLegalHold):
        await place.onboarding.deletion.delete(ours, "pirate")
    await retention.lift_hold(ours, hold.id, OPERATOR)
    await place.onboarding.deletion.delete(ours, "pirate")
    num_objects = len(await objects_of(place, made.adapter.id))
    certifier = Certifier(place.database, CertificateSigner(KeySecrets.of(SECRET)), DEFAULT_BOUNDS)
    assert await certifier.run() == 0
    late = await retention.place_hold(ours, "case", OPERATOR, object_id=made.adapter.id)
    await purge(place)
    assert len(await objects_of(place, made.adapter.id)) == num_objects, "held before it was purged"
    await retention.lift_hold(ours, late.id, OPERATOR)
    await purge(place)
    assert (await certifier.run(), await objects_of(place, made.adapter.id)) == (1, [])
    [row] = await retention.certificates(ours, object_id=made.adapter.id)
    assert (row.cause, row.num_rows, row.num_objects) == ("request", 1, num_objects)


async def test_deleting_ends_its_jobs(place: Scene) -> None:
    made = await place.create("pirate")
    assert made.job_id is not None
    lease = await place.lease(made.job_id)
    await place.onboarding.deletion.delete(place.tenants[0], "pirate")
    job = await place.onboarding.jobs.get(place.tenants[0], made.job_id)
    assert (job.status, job.fence, job.lease_owner) == ("cancelled", lease.fence + 1, None)


async def test_what_is_left_goes_after_the_grace_period_and_the_tombstone_stays(place: Scene) -> None:
    ours = place.tenants[0]
    made = await place.create("pirate")
    await place.make_ready(made, "1")
    kept = await place.create("kept", "sql")
    await place.make_ready(kept, "2")
    await place.onboarding.deletion.delete(ours, "pirate")
    assert await purge(place, datetime.now(UTC)) == 0, "requests that were let in may still load it"
    assert len(await objects_of(place, made.adapter.id)) == 2
    assert await purge(place) == 1
    assert await objects_of(place, made.adapter.id) == []
    assert len(await objects_of(place, kept.adapter.id)) == 2
    for digest, there in (("1b", False), ("1f", False), ("2b", True), ("2f", True)):
        assert artifact_file(place.artifacts, digest * 32).exists() == there
    assert await place.column("SELECT adapter_id FROM adapter_versions") == [kept.adapter.id]
    assert await place.column("SELECT name FROM adapters ORDER BY id") == ["pirate", "kept"]
    events = await place.column(
        "SELECT type FROM adapter_events WHERE adapter_id = :id ORDER BY id", id=made.adapter.id
    )
    assert events[-1] == "adapter.deleted"
    assert await purge(place) == 0


async def test_artifacts_stay_while_any_tenant_needs_them(place: Scene) -> None:
    for tenant in (0, 1):
        await place.make_ready(await place.create("same", tenant=tenant), "1")
    waiting = await place.create("calibrating", "sql")
    lease = await place.lease(waiting.job_id or "")
    await place.pack(lease, "3")
    gone = await place.create("gone", "to-json", tenant=1)
    await place.make_ready(gone, "3")
    await place.onboarding.deletion.delete(place.tenants[0], "same")
    await place.onboarding.deletion.delete(place.tenants[1], "gone")
    assert await purge(place) == 2
    for digest in ("1b", "1f", "3b", "3f"):
        assert artifact_file(place.artifacts, digest * 32).exists(), "another version has these weights"
        assert await place.store.head(published_key(digest * 32)) is not None
    await place.onboarding.deletion.delete(place.tenants[1], "same")
    await place.onboarding.deletion.delete(place.tenants[0], "calibrating")
    assert await purge(place) == 2
    assert [path for path in place.artifacts.rglob("*") if path.is_file()] == []
    assert [stored async for stored in place.store.list("packed")] == []


async def test_an_artifact_packed_just_now_stays(place: Scene) -> None:
    await place.make_ready(await place.create("pirate"), "1")
    await place.onboarding.deletion.delete(place.tenants[0], "pirate")
    path = artifact_file(place.artifacts, "1b" * 32)
    fresh = later().timestamp()
    os.utime(path, (fresh, fresh))  # somebody packs the same weights and has not written it down
    assert await purge(place) == 1
    assert path.exists()


async def test_the_draft_adapter_of_a_deleted_one_goes_with_it(place: Scene) -> None:
    for digit in "12":
        await place.make_ready(await place.create(f"pirate-{digit}"), digit)
        draft = DraftAdapter(AdapterRef(digit * 64, 4), 2, 4)
        write_note(place.artifacts, f"{digit}b" * 32, draft)
        artifact_file(place.artifacts, draft.ref.digest).parent.mkdir(exist_ok=True)
        artifact_file(place.artifacts, draft.ref.digest).write_bytes(b"weights")
        await place.store.put(published_key(draft.ref.digest), b"weights")
    await place.onboarding.deletion.delete(place.tenants[0], "pirate-1")
    assert await purge(place) == 1
    published = [await place.store.head(published_key(digit * 64)) for digit in "12"]
    assert [one is not None for one in published] == [False, True]
    assert [path.name for path in place.artifacts.rglob("*.draft")] == [f"{'2b' * 32}.draft"]
    assert [artifact_file(place.artifacts, digit * 64).exists() for digit in "12"] == [False, True]


async def test_a_purge_that_fails_anywhere_is_gone_on_with(
    place: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await place.create("pirate")
    await place.make_ready(made, "1")
    await place.onboarding.deletion.delete(place.tenants[0], "pirate")
    delete, num_left = place.store.delete, [1]

    async def fail_later(key: str) -> None:
        if not num_left[0]:
            raise StorageUnavailable("away")
        num_left[0] -= 1
        await delete(key)

    with monkeypatch.context() as patched:
        patched.setattr(place.store, "delete", fail_later)
        with pytest.raises(StorageUnavailable):
            await purge(place)
    assert len(await objects_of(place, made.adapter.id)) == 1
    assert len(await place.column("SELECT version FROM adapter_versions")) == 1
    with monkeypatch.context() as patched:
        patched.setattr("adapters.deletion._unlink_older", _boom)
        with pytest.raises(ZeroDivisionError):
            await purge(place)
    assert len(await place.column("SELECT version FROM adapter_versions")) == 1
    assert await purge(place) == 1
    assert [path for path in place.artifacts.rglob("*") if path.is_file()] == []


def _boom(*_: object) -> None:
    raise ZeroDivisionError


KILLED = """
import asyncio, os, signal, sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from adapters import deletion
from adapters.storage import LocalStore
from db.session import Database

where = sys.argv[4]
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

class Store(LocalStore):
    async def delete(self, key):
        await super().delete(key)
        if where == "objects":
            die()

if where == "artifacts":
    real = deletion._unlink_older
    def unlink(path, before):
        real(path, before)
        die()
    deletion._unlink_older = unlink
elif where == "rows":
    deletion.AdapterRepository.forget_versions = die

async def main():
    database = Database(sys.argv[1])
    await deletion.purge_deleted(
        database, Store(Path(sys.argv[2])), Path(sys.argv[3]), datetime.now(UTC) + timedelta(hours=1)
    )

asyncio.run(main())
"""


@pytest.mark.parametrize("where", ["objects", "artifacts", "rows"])
async def test_a_purge_killed_anywhere_comes_to_the_same_end(
    place: Scene, database_url: str, tmp_path: Path, where: str
) -> None:
    made = await place.create("pirate")
    await place.make_ready(made, "1")
    await place.onboarding.deletion.delete(place.tenants[0], "pirate")
    told = (database_url, str(tmp_path / "objects"), str(place.artifacts), where)
    await end_killed(KILLED, *told)
    assert len(await place.column("SELECT version FROM adapter_versions")) == 1, "rows go last"
    assert await purge(place) == 1
    assert await objects_of(place, made.adapter.id) == []
    assert [path for path in place.artifacts.rglob("*") if path.is_file()] == []
    assert await place.column("SELECT version FROM adapter_versions") == []


async def test_two_purges_at_once_do_no_harm(place: Scene) -> None:
    for number, name in enumerate(("pirate", "sql", "to-json")):
        await place.make_ready(await place.create(name, name), str(number))
        await place.onboarding.deletion.delete(place.tenants[0], name)
    await asyncio.gather(purge(place), purge(place))
    assert await place.column("SELECT version FROM adapter_versions") == []
    assert timedelta(minutes=1) < GRACE
