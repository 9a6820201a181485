"""Versions announced before their files: what they wait for, and every end of the waiting."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import text

from adapters.deletion import sweep_copies
from adapters.errors import InvalidAdapter
from adapters.inspection import InspectionRefused
from adapters.jobs.requeue import requeue_overdue
from adapters.models import VersionState
from adapters.object_keys import CONFIG_FILE, SOURCE_FILES, WEIGHTS_FILE
from adapters.storage import StorageUnavailable
from adapters.submission import Calibration, Submission, SubmittedVersion
from db.session import EVERY_TENANT
from db.tasks import SETTLE_UPLOADS
from engine.signing.bundle import sign
from engine.signing.keys import SigningKey
from engine.signing.statement import SIGNATURE_FILE, encode_statement
from tenants.actors import OPERATOR
from tenants.signing_keys.service import SigningKeys
from tests.support.onboarding import BASE_DIGEST, SAPLING, Scene, samples
from tests.support.programs import end_killed
from worker.app import create_app
from worker.settings import WorkerSettings
from worker.tasks import storage

PIRATE = SAPLING / "adapters" / "pirate"


@dataclass
class Arriving:
    """Uploads of an adapter's two files: every part is there, none is completed."""

    place: Scene
    ids: dict[str, str] = field(default_factory=dict)
    parts: dict[str, str] = field(default_factory=dict)

    async def complete(self, name: str) -> None:
        await self.place.uploads.complete(self.place.tenants[0], self.ids[name], [self.parts[name]])

    async def cancel(self, name: str) -> None:
        await self.place.uploads.cancel(self.place.tenants[0], self.ids[name])

    def submission(self, **options: Any) -> Submission:
        return Submission(upload_ids=list(self.ids.values()), **options)

    async def announce(self, name: str = "pirate", **options: Any) -> SubmittedVersion:
        return await self.place.onboarding.submission.create(
            self.place.caller(), name, self.submission(**options), base_digest=BASE_DIGEST
        )

    async def add(self, adapter: str, **options: Any) -> SubmittedVersion:
        return await self.place.onboarding.submission.add_version(
            self.place.caller(), adapter, self.submission(**options), base_digest=BASE_DIGEST
        )


async def arriving(place: Scene, directory: Path = PIRATE) -> Arriving:
    made, ours = Arriving(place), place.tenants[0]
    for name in SOURCE_FILES:
        data = (directory / name).read_bytes()
        state = await place.uploads.create(
            ours, None, "adapter", name, "application/octet-stream", len(data), max_bytes=1 << 30
        )
        made.ids[name] = state.upload.id
        made.parts[name] = (await place.uploads.add_part(ours, state.upload.id, data)).id
    return made


async def states(place: Scene) -> list[tuple[str, str]]:
    """Of every version and its job, oldest first."""
    query = (
        "SELECT v.state || ' ' || j.status FROM adapter_versions v JOIN jobs j USING (adapter_id, version)"
        " ORDER BY j.id"
    )
    return [tuple(row.split()) for row in await place.column(query)]


async def failure(place: Scene) -> tuple[str, str | None]:
    (message,) = await place.column("SELECT error FROM adapter_versions")
    (at_fault,) = await place.column("SELECT error_field FROM adapter_versions")
    return message, at_fault


async def kept(place: Scene) -> list[str]:
    """Copies in the store."""
    return [key for key in await place.keys() if "/adapters/" in key]


async def named(place: Scene) -> list[str]:
    """Copies that versions name."""
    sources = await place.column("SELECT sources FROM adapter_versions")
    return sorted(one["key"] for files in sources for one in files.values())


WAITING = [("uploading", "validating_files")]
STARTED = [("validating", "queued")]


async def test_announced_it_waits_and_with_the_last_file_it_starts(place: Scene) -> None:
    files = await arriving(place)
    made = await files.announce()
    assert (made.created, made.version.state, made.version.sources) == (True, VersionState.UPLOADING, {})
    assert await states(place) == WAITING
    assert await place.column("SELECT count(*) FROM outbox") == [0], "nothing for a worker to do"
    assert await requeue_overdue(place.database, place.onboarding.outbox) == 0, "nor for the jobs' sweep"
    assert await place.column("SELECT count(*) FROM outbox") == [0]
    with pytest.raises(AssertionError):
        await place.lease(made.job_id or "")
    await files.complete(WEIGHTS_FILE)
    assert await states(place) == WAITING
    assert await place.onboarding.waiting.settle() == 0
    await files.complete(CONFIG_FILE)
    assert await states(place) == STARTED
    assert await place.column("SELECT arguments ->> 'job_id' FROM outbox") == [made.job_id]
    assert await place.column("SELECT parameters FROM jobs") == [{}], "as of any other version"
    assert len(await kept(place)) == 2
    assert await kept(place) == await named(place)
    for name, source in (await place.column("SELECT sources FROM adapter_versions"))[0].items():
        stored = await place.store.head(source["key"])
        assert stored is not None
        assert (stored.size, stored.sha256) == ((PIRATE / name).stat().st_size, source["sha256"])
    assert await place.column("SELECT type FROM adapter_events ORDER BY id") == [
        "adapter.created",
        "version.created",
        "job.created",
        "version.uploaded",
    ]
    await place.make_ready(made, "1")
    assert await place.column("SELECT active_version FROM adapters") == [1]


async def test_one_may_be_there_already_and_the_samples_are_kept(place: Scene) -> None:
    files, ours = await arriving(place), place.tenants[0]
    await files.complete(CONFIG_FILE)
    jsonl = await place.files.create(ours, None, "calibration", "c.jsonl", samples(), max_bytes=1 << 20)
    await files.announce(calibration=Calibration(jsonl.id, "bfloat16"))
    await place.files.delete(ours, jsonl.id)
    assert await sweep_copies(place.database, place.store, datetime.now(UTC) + timedelta(days=2)) == 0
    await files.complete(WEIGHTS_FILE)
    assert await states(place) == STARTED
    (parameters,) = await place.column("SELECT parameters FROM jobs")
    assert parameters["dtype"] == "bfloat16"
    assert parameters["calibration"]["key"] in await kept(place)
    assert set(parameters) == {"dtype", "calibration"}


async def test_versions_wait_as_adapters_do_and_asking_again_makes_no_second(place: Scene) -> None:
    made = await place.create("pirate", "sql")
    files = await arriving(place)
    first = await files.add(made.adapter.id, activate=False)
    again = await files.add(made.adapter.id)
    assert (first.created, first.version.version) == (True, 2)
    assert (again.created, again.version.version, again.version.activate) == (False, 2, True)
    other = await files.announce("another")
    assert other.created, "one pair of uploads may become versions of two adapters"
    assert await states(place) == STARTED + 2 * WAITING
    await asyncio.gather(*(files.complete(name) for name in SOURCE_FILES))
    assert await states(place) == 3 * STARTED
    assert sorted(await kept(place)) == await named(place)


async def test_the_same_bytes_are_a_version_of_their_own(place: Scene) -> None:
    made = await place.create("pirate")
    files = await arriving(place)
    await files.add(made.adapter.id)
    for name in SOURCE_FILES:
        await files.complete(name)
    assert await states(place) == 2 * STARTED


async def test_completing_twice_and_at_once_starts_it_once(place: Scene) -> None:
    files = await arriving(place)
    await files.announce()
    await asyncio.gather(*(files.complete(name) for name in (*SOURCE_FILES, *SOURCE_FILES)))
    await asyncio.gather(*(files.complete(name) for name in SOURCE_FILES))
    await asyncio.gather(*(place.onboarding.waiting.settle() for _ in range(3)))
    assert await states(place) == STARTED
    assert await place.column("SELECT count(*) FROM outbox") == [1]
    assert await kept(place) == await named(place), "copies of whoever came second are gone"


async def test_several_that_start_it_at_once_start_it_once(
    place: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = await arriving(place)
    with monkeypatch.context() as patched:
        patched.setattr(place.uploads, "follower", None)
        await files.announce()
        for name in SOURCE_FILES:
            await files.complete(name)
    assert await states(place) == WAITING
    ended = await asyncio.gather(*(place.onboarding.waiting.settle() for _ in range(4)))
    assert sum(ended) == 1
    assert await states(place) == STARTED
    assert await place.column("SELECT count(*) FROM outbox") == [1]
    assert await kept(place) == await named(place)


async def test_uploads_completed_while_it_is_announced_are_not_missed(
    place: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = await arriving(place)
    from adapters.submission import lock_uploads

    async def complete_first(*given: Any) -> None:
        for name in SOURCE_FILES:
            await files.complete(name)
        await lock_uploads(*given)

    monkeypatch.setattr("adapters.submission.lock_uploads", complete_first)
    await files.announce()
    assert await states(place) == STARTED


async def test_uploads_cancelled_while_it_is_announced_refuse_it(
    place: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = await arriving(place)
    from adapters.submission import lock_uploads

    async def cancel_first(*given: Any) -> None:
        await files.cancel(CONFIG_FILE)
        await lock_uploads(*given)

    monkeypatch.setattr("adapters.submission.lock_uploads", cancel_first)
    with pytest.raises(InvalidAdapter, match="cancelled"):
        await files.announce()
    assert await place.column("SELECT count(*) FROM adapters") == [0]


async def test_a_cancelled_upload_fails_whoever_waits_for_it(place: Scene) -> None:
    files = await arriving(place)
    made = await files.announce()
    await files.complete(WEIGHTS_FILE)
    await files.cancel(CONFIG_FILE)
    await files.cancel(CONFIG_FILE)
    assert await states(place) == [("failed", "failed")]
    message, at_fault = await failure(place)
    assert files.ids[CONFIG_FILE] in message
    assert "cancelled" in message
    assert at_fault == CONFIG_FILE
    types = await place.column("SELECT type FROM adapter_events ORDER BY id")
    assert types[-2:] == ["job.failed", "version.failed"]
    assert await kept(place) == []
    other = await arriving(place)
    assert (await other.add(made.adapter.id)).version.version == 2, "the adapter is there to be tried again"


async def test_an_expired_upload_fails_it_at_the_next_look(place: Scene) -> None:
    files = await arriving(place)
    await files.announce()
    await files.complete(CONFIG_FILE)
    async with place.database.write(EVERY_TENANT) as session:
        await session.execute(
            text("UPDATE uploads SET expires_at = now() - interval '1 s' WHERE status = 'pending'")
        )
    assert await place.onboarding.waiting.settle() == 1
    assert await states(place) == [("failed", "failed")]
    message, at_fault = await failure(place)
    assert files.ids[WEIGHTS_FILE] in message
    assert "expired" in message
    assert at_fault == WEIGHTS_FILE
    assert await place.onboarding.waiting.settle() == 0


async def test_what_inspection_refuses_fails_and_the_upload_is_completed(
    place: Scene, tmp_path: Path
) -> None:
    for name in SOURCE_FILES:
        (tmp_path / name).write_bytes((PIRATE / name).read_bytes())
    config = json.loads((PIRATE / CONFIG_FILE).read_text())
    (tmp_path / CONFIG_FILE).write_text(json.dumps(config | {"r": 3}))
    files = await arriving(place, tmp_path)
    await files.announce()
    await files.complete(CONFIG_FILE)
    await files.complete(WEIGHTS_FILE)
    assert await states(place) == [("failed", "failed")]
    _, at_fault = await failure(place)
    assert at_fault is not None
    assert await place.column("SELECT status FROM uploads") == ["completed", "completed"]
    assert await kept(place) == []
    assert await place.column("SELECT count(*) FROM outbox") == [0]


async def test_a_file_refused_for_its_form_fails_it_with_the_field(place: Scene, tmp_path: Path) -> None:
    (tmp_path / WEIGHTS_FILE).write_bytes((PIRATE / WEIGHTS_FILE).read_bytes())
    (tmp_path / CONFIG_FILE).write_text("{")
    files = await arriving(place, tmp_path)
    await files.announce()
    with pytest.raises(InspectionRefused) as refused:
        await files.complete(CONFIG_FILE)
    assert await states(place) == [("failed", "failed")]
    message, at_fault = await failure(place)
    assert refused.value.reason in message
    assert at_fault == refused.value.field


async def test_a_file_deleted_before_it_was_needed_fails_it(place: Scene) -> None:
    files = await arriving(place)
    await files.complete(CONFIG_FILE)
    await files.announce()
    (file_id,) = await place.column("SELECT id FROM files")
    await place.files.delete(place.tenants[0], file_id)
    await files.complete(WEIGHTS_FILE)
    assert await states(place) == [("failed", "failed")]
    assert file_id in (await failure(place))[0]
    assert await kept(place) == []


async def test_an_outage_fails_neither_the_upload_nor_the_version(
    place: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = await arriving(place)
    await files.announce()
    await files.complete(CONFIG_FILE)

    async def full(source: str, target: str) -> None:
        raise StorageUnavailable("full")

    with monkeypatch.context() as patched:
        patched.setattr(place.store, "copy", full)
        await files.complete(WEIGHTS_FILE)
        assert await states(place) == WAITING
        with pytest.raises(StorageUnavailable):
            await place.onboarding.waiting.settle()
    assert await place.onboarding.waiting.settle() == 1
    assert await states(place) == STARTED


async def test_the_workers_schedule_starts_what_nobody_started(
    place: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert create_app(WorkerSettings(redis_url="redis://unused")).conf.beat_schedule[SETTLE_UPLOADS]
    files = await arriving(place)
    await files.announce()
    with monkeypatch.context() as patched:
        patched.setattr(place.uploads, "follower", None)
        for name in SOURCE_FILES:
            await files.complete(name)
    runtime: Any = SimpleNamespace(
        database=place.database,
        store=place.store,
        redis=place.redis,
        outbox=place.onboarding.outbox,
        jobs=SimpleNamespace(),
        bases=[SimpleNamespace(name="sapling", path=SAPLING / "base")],
    )
    assert await storage._settle(runtime) == 1
    assert await states(place) == STARTED
    assert await place.column("SELECT count(*) FROM outbox WHERE sent_at IS NULL") == [0]


async def test_deleted_or_cancelled_while_uploading_it_stays_so(place: Scene) -> None:
    jobs, ours = place.onboarding.jobs, place.tenants[0]
    files = await arriving(place)
    gone = await files.announce("gone")
    ended = await files.announce("ended")
    await place.onboarding.deletion.delete(ours, gone.adapter.id)
    await jobs.cancel(ours, ended.job_id or "")
    for name in SOURCE_FILES:
        await files.complete(name)
    assert await place.onboarding.waiting.settle() == 0
    assert await states(place) == [("deleting", "cancelled"), ("failed", "cancelled")]
    assert await kept(place) == []
    assert await place.column("SELECT count(*) FROM outbox") == [0]


async def test_deleted_while_its_files_are_copied(place: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    files = await arriving(place)
    made = await files.announce()
    await files.complete(CONFIG_FILE)
    copy = place.store.copy

    async def delete_first(source: str, target: str) -> Any:
        if target.endswith(WEIGHTS_FILE):
            await place.onboarding.deletion.delete(place.tenants[0], made.adapter.id)
        return await copy(source, target)

    monkeypatch.setattr(place.store, "copy", delete_first)
    await files.complete(WEIGHTS_FILE)
    assert await states(place) == [("deleting", "cancelled")]
    assert await kept(place) == []


async def test_paused_it_waits_on_until_it_is_resumed(place: Scene) -> None:
    jobs, ours = place.onboarding.jobs, place.tenants[0]
    files = await arriving(place)
    made = await files.announce()
    job_id = made.job_id or ""
    assert (await jobs.pause(ours, job_id)).status == "paused"
    for name in SOURCE_FILES:
        await files.complete(name)
    assert await place.onboarding.waiting.settle() == 0
    assert await states(place) == [("uploading", "paused")]
    assert (await jobs.resume(ours, job_id)).status == "validating_files"
    assert await place.onboarding.waiting.settle() == 1
    assert await states(place) == STARTED
    vain = await arriving(place)
    other = await vain.announce("vain")
    await jobs.pause(ours, other.job_id or "")
    await vain.cancel(WEIGHTS_FILE)
    assert (await states(place))[1] == ("failed", "failed")


async def test_which_uploads_are_meant_must_be_clear(place: Scene) -> None:
    files, other = await arriving(place), await arriving(place)
    create = place.onboarding.submission.create
    for upload_ids in (
        [files.ids[WEIGHTS_FILE], other.ids[WEIGHTS_FILE]],
        [files.ids[CONFIG_FILE]],
        [files.ids[CONFIG_FILE]] * 2,
    ):
        with pytest.raises(InvalidAdapter, match="give one"):
            await create(place.caller(), "x", Submission(upload_ids=upload_ids), base_digest=BASE_DIGEST)
    await other.cancel(CONFIG_FILE)
    with pytest.raises(InvalidAdapter, match="is cancelled"):
        await other.announce()
    assert await place.column("SELECT count(*) FROM adapters") == [0]


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from types import SimpleNamespace
from redis.asyncio import Redis
from adapters import pending_uploads, source_copies
from db.session import EVERY_TENANT, Database
from tests.support.onboarding import reopened

where = sys.argv[4]

async def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

if where == "completed":
    pending_uploads.PendingUploads.completed = die
elif where == "copied":
    source_copies.SourceCopies._inspect = die
elif where == "in the transaction":
    pending_uploads.enqueue = lambda *_: os.kill(os.getpid(), signal.SIGKILL)

async def main():
    database, redis = Database(sys.argv[1]), Redis.from_url(sys.argv[2])
    async with reopened(database, redis, sys.argv[2], Path(sys.argv[3]), tuple(sys.argv[7:])) as place:
        await place.uploads.complete(place.tenants[0], sys.argv[5], [sys.argv[6]])

asyncio.run(main())
"""


@pytest.mark.parametrize("where", ["completed", "copied", "in the transaction"])
async def test_killed_between_completing_and_starting_it_is_started_by_the_sweep(
    place: Scene, database_url: str, redis_url: str, tmp_path: Path, where: str
) -> None:
    files = await arriving(place)
    await files.announce()
    await files.complete(CONFIG_FILE)
    last = (files.ids[WEIGHTS_FILE], files.parts[WEIGHTS_FILE])
    told = (database_url, redis_url, str(tmp_path), where, *last, *place.tenants)
    await end_killed(KILLED, *told)
    assert await place.column("SELECT DISTINCT status FROM uploads") == ["completed"]
    assert await states(place) == WAITING
    assert await place.onboarding.waiting.settle() == 1
    assert await states(place) == STARTED
    assert await place.column("SELECT count(*) FROM outbox") == [1]
    await sweep_copies(place.database, place.store, datetime.now(UTC) + timedelta(days=2))
    assert await kept(place) == await named(place), "what the killed one copied is gone"


async def test_a_signature_is_one_of_the_uploads_that_a_version_waits_for(place: Scene) -> None:
    key, ours, files = SigningKey.make(), place.tenants[0], await arriving(place)
    await SigningKeys(place.database).add(ours, "release", key.public.pem, OPERATOR)
    digests = {name: hashlib.sha256((PIRATE / name).read_bytes()).hexdigest() for name in SOURCE_FILES}
    signature = sign(key, encode_statement("pirate", digests))
    state = await place.uploads.create(
        ours, None, "adapter", SIGNATURE_FILE, "application/json", len(signature), max_bytes=1 << 30
    )
    files.ids[SIGNATURE_FILE] = state.upload.id
    files.parts[SIGNATURE_FILE] = (await place.uploads.add_part(ours, state.upload.id, signature)).id
    await files.announce()
    for name in SOURCE_FILES:
        await files.complete(name)
    assert await states(place) == WAITING
    await files.complete(SIGNATURE_FILE)
    assert await states(place) == STARTED
    ((shown,),) = [await place.column("SELECT uploader_key FROM adapter_versions")]
    assert shown["key_id"] == key.public.id
