"""Adapters and versions from files: what is written, what is not, and who wins."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from adapters.errors import AdapterLimitReached, AdapterNotFound, InvalidAdapter
from adapters.files.errors import FileNotFound, UploadNotFound
from adapters.inspection import InspectionRefused
from adapters.models import VersionState
from adapters.object_keys import CONFIG_FILE, WEIGHTS_FILE
from adapters.storage import StorageUnavailable, StoredObject
from adapters.submission import Calibration, Submission, SubmittedVersion
from db.errors import DatabaseUnavailable
from tenants.actors import OPERATOR
from tenants.errors import NameTaken
from tenants.limits.kinds import Limit, Metric
from tenants.quotas.service import LimitService
from tenants.views import PlanView
from tests.support.onboarding import BASE_DIGEST, SAPLING, Scene, samples
from tests.support.programs import end_killed
from tests.support.speed import slowness


def without_files(keys: list[str]) -> list[str]:
    return [key for key in keys if "/adapters/" in key]


def damaged(tmp_path: Path, **config: object) -> Path:
    """Sapling's pirate with another config."""
    source = SAPLING / "adapters" / "pirate"
    (tmp_path / WEIGHTS_FILE).write_bytes((source / WEIGHTS_FILE).read_bytes())
    fields = json.loads((source / CONFIG_FILE).read_text()) | config
    (tmp_path / CONFIG_FILE).write_text(json.dumps(fields))
    return tmp_path


async def test_one_transaction_makes_adapter_version_job_events_and_message(place: Scene) -> None:
    made = await place.create("pirate")
    assert made.created
    assert (made.adapter.name, made.adapter.base, made.adapter.active_version) == ("pirate", "sapling", None)
    version = made.version
    assert (version.version, version.state, version.activate) == (1, VersionState.VALIDATING, True)
    assert version.base_digest == BASE_DIGEST
    for name, source in version.sources.items():
        original = SAPLING / "adapters" / "pirate" / name
        stored = await place.store.head(source["key"])
        assert stored is not None
        assert (stored.size, stored.sha256) == (original.stat().st_size, source["sha256"])
    assert await place.column("SELECT status FROM jobs") == ["queued"]
    assert await place.column("SELECT id FROM jobs") == [made.job_id]
    assert await place.column("SELECT type FROM adapter_events ORDER BY id") == [
        "adapter.created",
        "version.created",
        "job.created",
    ]
    assert await place.column("SELECT arguments ->> 'job_id' FROM outbox") == [made.job_id]


async def test_a_files_deletion_leaves_the_version_its_own(place: Scene) -> None:
    file_ids = await place.upload()
    made = await place.onboarding.submission.create(
        place.caller(), "pirate", Submission(file_ids=file_ids), base_digest=BASE_DIGEST
    )
    for file_id in file_ids:
        await place.files.delete(place.tenants[0], file_id)
    assert await place.keys() == sorted(source["key"] for source in made.version.sources.values())


async def test_of_two_creates_of_one_name_one_wins(place: Scene) -> None:
    files = [await place.upload("pirate"), await place.upload("sql")]
    outcomes = await asyncio.gather(
        *(
            place.onboarding.submission.create(
                place.caller(), "same", Submission(file_ids=file_ids), base_digest=BASE_DIGEST
            )
            for file_ids in files
        ),
        return_exceptions=True,
    )
    (won,) = [one for one in outcomes if isinstance(one, SubmittedVersion)]
    (lost,) = [one for one in outcomes if not isinstance(one, SubmittedVersion)]
    assert isinstance(lost, NameTaken)
    assert await place.column("SELECT id FROM adapters") == [won.adapter.id]
    assert len(await place.column("SELECT id FROM jobs")) == 1
    assert without_files(await place.keys()) == sorted(s["key"] for s in won.version.sources.values())
    theirs = await place.create("same", tenant=1)
    assert theirs.created, "a name is taken within its tenant only"


async def test_versions_added_at_once_get_different_numbers_and_files(place: Scene) -> None:
    made = await place.create("many", "pirate")
    names = ("sql", "to-json", "upper-case", "pluralise")
    added = await asyncio.gather(*(place.add(made.adapter.id, name) for name in names))
    assert sorted(one.version.version for one in added) == [2, 3, 4, 5]
    for name, one in zip(names, added, strict=True):
        stored = await place.store.head(one.version.sources[WEIGHTS_FILE]["key"])
        assert stored is not None
        assert stored.size == (SAPLING / "adapters" / name / WEIGHTS_FILE).stat().st_size
        assert stored.sha256 == one.version.sources[WEIGHTS_FILE]["sha256"]
    assert len({one.version.sources[WEIGHTS_FILE]["sha256"] for one in added}) == 4


async def test_the_same_files_again_are_the_same_version(place: Scene) -> None:
    made = await place.create("pirate")
    again = await place.add(made.adapter.id, "pirate")
    assert (again.created, again.version.version, again.job_id) == (False, 1, None)
    at_once = await asyncio.gather(*(place.add(made.adapter.id, "sql") for _ in range(4)))
    assert [one.version.version for one in at_once] == [2, 2, 2, 2]
    assert sorted(one.created for one in at_once) == [False, False, False, True]
    assert len(await place.column("SELECT id FROM jobs")) == 2
    assert len(without_files(await place.keys())) == 4, "copies of whoever came second are gone"
    await place.onboarding.jobs.cancel(place.tenants[0], at_once[0].job_id or await place_job(place, 2))
    third = await place.add(made.adapter.id, "sql")
    assert (third.created, third.version.version) == (True, 3), "what failed may be tried again"


async def place_job(place: Scene, version: int) -> str:
    (job_id,) = await place.column("SELECT id FROM jobs WHERE version = :version", version=version)
    return str(job_id)


async def test_the_same_files_again_activate_what_is_ready(place: Scene) -> None:
    made = await place.create("pirate")
    await place.make_ready(made, "1")
    second = await place.add(made.adapter.id, "sql")
    await place.make_ready(second, "2")
    assert await place.column("SELECT active_version FROM adapters") == [2]
    await place.add(made.adapter.id, "pirate", activate=False)
    assert await place.column("SELECT active_version FROM adapters") == [2]
    await place.add(made.adapter.id, "pirate")
    assert await place.column("SELECT active_version FROM adapters") == [1]


async def test_what_inspection_refuses_leaves_nothing_but_its_files(place: Scene, tmp_path: Path) -> None:
    with pytest.raises(InspectionRefused) as refused:
        await place.create("pirate", damaged(tmp_path, r=3))
    assert refused.value.field
    assert without_files(await place.keys()) == []
    assert len(await place.keys()) == 2, "the files stay: the good one may be used again"
    for table in ("adapters", "adapter_versions", "jobs", "adapter_events", "outbox"):
        assert await place.column(f"SELECT count(*) FROM {table}") == [0]
    assert list(place.store.scratch.iterdir()) == []


async def test_a_large_adapter_is_inspected_by_its_header(
    place: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adapters.source_copies.WHOLE_INSPECTION", 1000)
    monkeypatch.setattr("adapters.source_copies.HEADER_READ", 65536 + 8)
    assert (await place.create("pirate")).created
    with pytest.raises(InspectionRefused):
        await place.create("broken", damaged(tmp_path, r=3))


async def test_which_files_are_meant_must_be_clear(place: Scene) -> None:
    weights, config = await place.upload()
    other_weights, _ = await place.upload("sql")
    theirs = await place.upload(tenant=1)
    jsonl = await place.files.create(
        place.tenants[0], None, "calibration", "c.jsonl", samples(), max_bytes=1 << 20
    )
    create = place.onboarding.submission.create
    for file_ids, error, field in (
        ([weights, other_weights], InvalidAdapter, "file_ids"),
        ([config, config], InvalidAdapter, "file_ids"),
        ([weights], InvalidAdapter, "file_ids"),
        ([weights, jsonl.id], InvalidAdapter, "file_ids"),
        ([weights, "file_absent"], FileNotFound, None),
        ([weights, theirs[1]], FileNotFound, None),
    ):
        with pytest.raises(error) as caught:
            await create(place.caller(), "x", Submission(file_ids=file_ids), base_digest=BASE_DIGEST)
        assert getattr(caught.value, "field", None) == field
    for submission, error in (
        (Submission(), InvalidAdapter),
        (Submission(file_ids=[weights, config], upload_ids=["upload_1", "upload_2"]), InvalidAdapter),
        (Submission(upload_ids=["upload_1", "upload_2"]), UploadNotFound),
        (Submission(file_ids=[weights, config], calibration=Calibration(weights)), InvalidAdapter),
        (Submission(file_ids=[weights, config], calibration=Calibration("file_absent")), FileNotFound),
    ):
        with pytest.raises(error):
            await create(place.caller(), "x", submission, base_digest=BASE_DIGEST)
    with pytest.raises(AdapterNotFound):
        await place.add("adp_absent", "pirate")
    with pytest.raises(ValueError, match="name must be"):
        await create(
            place.caller(), "Not so", Submission(file_ids=[weights, config]), base_digest=BASE_DIGEST
        )
    assert await place.column("SELECT count(*) FROM adapters") == [0]


async def test_uploads_and_samples_of_ones_own(place: Scene) -> None:
    ours = place.tenants[0]
    upload_ids = []
    for name in (WEIGHTS_FILE, CONFIG_FILE):
        data = (SAPLING / "adapters" / "pirate" / name).read_bytes()
        state = await place.uploads.create(
            ours, None, "adapter", name, "application/octet-stream", len(data), max_bytes=1 << 30
        )
        upload_ids.append(state.upload.id)
        part = await place.uploads.add_part(ours, state.upload.id, data)
        await place.uploads.complete(ours, state.upload.id, [part.id])
    jsonl = await place.files.create(ours, None, "calibration", "c.jsonl", samples(), max_bytes=1 << 20)
    made = await place.onboarding.submission.create(
        place.caller(),
        "pirate",
        Submission(upload_ids=upload_ids, calibration=Calibration(jsonl.id, "bfloat16")),
        base_digest=BASE_DIGEST,
    )
    (parameters,) = await place.column("SELECT parameters FROM jobs")
    assert parameters["dtype"] == "bfloat16"
    assert parameters["calibration"]["file_id"] == jsonl.id
    stored = await place.store.head(parameters["calibration"]["key"])
    assert stored is not None
    assert stored.sha256 == jsonl.sha256
    assert set(made.version.sources) == {WEIGHTS_FILE, CONFIG_FILE}


async def test_a_plan_bounds_how_many_even_at_once(place: Scene) -> None:
    plan = PlanView(max_adapters=2)
    outcomes = await asyncio.gather(
        *(place.create(f"adapter-{number}", plan=plan) for number in range(4)), return_exceptions=True
    )
    assert sum(isinstance(one, SubmittedVersion) for one in outcomes) == 2
    assert sum(isinstance(one, AdapterLimitReached) and one.limit == 2 for one in outcomes) == 2
    made = next(one for one in outcomes if isinstance(one, SubmittedVersion))
    assert (await place.add(made.adapter.id, "sql")).created, "versions are no adapters"
    await place.onboarding.deletion.delete(place.tenants[0], made.adapter.id)
    assert (await place.create("one-more", plan=plan)).created


async def test_a_limit_set_for_a_tenant_goes_before_its_plans(place: Scene) -> None:
    limit = Limit("tenant", place.tenants[0], "", Metric.ADAPTERS, 1)
    await LimitService(place.database, place.redis).set(place.tenants[0], OPERATOR, limit)
    await place.create("one", plan=PlanView(max_adapters=0))
    with pytest.raises(AdapterLimitReached) as refused:
        await place.create("two")
    assert refused.value.limit == 1


async def test_a_crash_between_store_and_commit_leaves_only_what_a_sweep_finds(
    place: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    from datetime import UTC, datetime, timedelta

    from adapters.deletion import sweep_copies

    kept = await place.create("kept", "sql")

    async def die(*_: object, **__: object) -> None:
        raise DatabaseUnavailable("gone in the middle of the commit")

    with monkeypatch.context() as patched:
        patched.setattr("adapters.submission.queue_job", die)
        with pytest.raises(DatabaseUnavailable):
            await place.create("lost")
    assert await place.column("SELECT name FROM adapters") == ["kept"], "nothing of the transaction"
    orphans = [key for key in without_files(await place.keys()) if kept.adapter.id not in key]
    assert len(orphans) == 2
    now = datetime.now(UTC)
    assert await sweep_copies(place.database, place.store, now) == 0, "too young to be given up"
    assert await sweep_copies(place.database, place.store, now + timedelta(days=2)) == 2
    assert without_files(await place.keys()) == sorted(s["key"] for s in kept.version.sources.values())


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from redis.asyncio import Redis
from adapters import source_copies, submission
from db.session import Database
from tests.support.onboarding import Scene, reopened

where = sys.argv[4]

async def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

if where == "copied":
    source_copies.SourceCopies._inspect = die
elif where == "in the transaction":
    submission.queue_job = die
elif where == "committed":
    from db.outbox import Outbox
    Outbox._send = die

async def main():
    database, redis = Database(sys.argv[1]), Redis.from_url(sys.argv[2])
    async with reopened(database, redis, sys.argv[2], Path(sys.argv[3]), tuple(sys.argv[5:])) as place:
        await place.create("pirate")
        await place.onboarding.outbox.settle()

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("where", "made"), [("copied", False), ("in the transaction", False), ("committed", True)]
)
async def test_killed_on_the_way_it_is_all_there_or_not_at_all(
    place: Scene, database_url: str, redis_url: str, tmp_path: Path, where: str, made: bool
) -> None:
    from datetime import UTC, datetime, timedelta

    from adapters.deletion import sweep_copies

    told = (database_url, redis_url, str(tmp_path), where, *place.tenants)
    await end_killed(KILLED, *told)
    for table in ("adapters", "adapter_versions", "jobs", "outbox"):
        assert await place.column(f"SELECT count(*) FROM {table}") == [int(made)], table
    assert len(without_files(await place.keys())) == 2
    swept = await sweep_copies(place.database, place.store, datetime.now(UTC) + timedelta(days=2))
    assert swept == (0 if made else 2)
    if made:
        assert await place.column("SELECT sent_at FROM outbox") == [None], "the relay sends it"
        await place.onboarding.outbox.relay(older_than=0)
        assert await place.column("SELECT count(*) FROM outbox WHERE sent_at IS NULL") == [0]
    else:
        assert (await place.create("pirate")).created, "trying again works"


async def test_a_store_that_fails_leaves_no_rows(place: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = place.store.copy

    async def fail_second(source: str, target: str) -> StoredObject:
        if target.endswith(".json"):
            raise StorageUnavailable("full")
        return await copy(source, target)

    monkeypatch.setattr(place.store, "copy", fail_second)
    with pytest.raises(StorageUnavailable):
        await place.create("pirate")
    assert await place.column("SELECT count(*) FROM adapters") == [0]
    assert without_files(await place.keys()) == []


@pytest.mark.quiet
async def test_it_is_quick(place: Scene) -> None:
    await place.sandbox.start()
    files = [await place.upload("pirate") for _ in range(5)]
    took = []
    for number, file_ids in enumerate(files):
        started = time.perf_counter()
        await place.onboarding.submission.create(
            place.caller(), f"quick-{number}", Submission(file_ids=file_ids), base_digest=BASE_DIGEST
        )
        took.append(time.perf_counter() - started)
    assert min(took) < 0.5 * slowness()
