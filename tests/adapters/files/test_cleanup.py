"""The sweep: what is left of crashes, cancellations and time goes, and nothing else does."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta

import pytest

from adapters.files import cleanup
from adapters.files.cleanup import SweepReport, sweep
from adapters.storage import StorageUnavailable
from tests.adapters.files.conftest import Place
from tests.adapters.files.test_uploads import PIECES, add_all, create
from tests.support.programs import end_killed

HOUR = timedelta(hours=1)
NOTHING = SweepReport()


def now() -> datetime:
    return datetime.now(UTC)


async def run(place: Place, at: datetime | None = None) -> SweepReport:
    return await sweep(place.database, place.store, at or now())


async def test_what_is_in_use_stays(place: Place) -> None:
    file = await place.files.create("ten_one", None, "adapter", "a.json", b"{}", max_bytes=10)
    upload = (await create(place)).upload
    await add_all(place, upload.id)
    await place.store.put("tenants/ten_one/adapters/adp_1/1/bfloat16.rsa", b"another's")
    before = await place.keys()
    assert await run(place) == NOTHING
    assert await run(place, now() + HOUR - timedelta(minutes=1)) == NOTHING
    assert await place.keys() == before
    # Later the upload has expired; the file and what belongs to others stay for good.
    report = await run(place, now() + 10 * HOUR)
    assert (report.expired_uploads, report.parts, report.orphans) == (1, len(PIECES), 0)
    assert await place.keys() == {file.object_key, "tenants/ten_one/adapters/adp_1/1/bfloat16.rsa"}
    assert (await place.uploads.get("ten_one", upload.id)).status == "expired"
    assert await run(place, now() + 10 * HOUR) == NOTHING


@pytest.mark.parametrize("key", ["tenants/ten_one/files/file_x", "tenants/gone/uploads/upload_x/part_x"])
async def test_orphans_go_once_they_are_an_hour_old(place: Place, key: str) -> None:
    await place.store.put(key, b"x")
    (place.store.scratch / "left.partial").write_bytes(b"x")
    assert await run(place, now() + HOUR - timedelta(minutes=1)) == NOTHING
    report = await run(place, now() + HOUR + timedelta(minutes=1))
    assert (report.orphans, report.partial_files) == (1, 1)
    assert await place.is_empty()


async def test_more_than_one_batch(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanup, "_BATCH", 3)
    for number in range(7):
        await place.store.put(f"tenants/ten_one/files/orphan_{number}", b"x")
    upload = (await create(place, 8)).upload
    await add_all(place, upload.id, [b"x"] * 8)
    report = await run(place, now() + 2 * HOUR)
    assert (report.orphans, report.parts) == (7, 8)
    assert await place.is_empty()


async def test_two_at_once_do_no_harm(place: Place) -> None:
    kept = await place.files.create("ten_one", None, "adapter", "a.json", b"{}", max_bytes=10)
    for number in range(20):
        await place.store.put(f"tenants/ten_one/files/orphan_{number}", b"x")
    await asyncio.gather(*(run(place, now() + 2 * HOUR) for _ in range(3)))
    assert await place.keys() == {kept.object_key}


async def test_a_store_that_fails_in_between_loses_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts' rows outlive their objects, so that the next sweep finds them."""
    upload = (await create(place)).upload
    await add_all(place, upload.id)
    delete, deleted = place.store.delete, []

    async def fails_later(key: str) -> None:
        if len(deleted) == 2:
            raise StorageUnavailable("away")
        deleted.append(key)
        await delete(key)

    monkeypatch.setattr(place.store, "delete", fails_later)
    with pytest.raises(StorageUnavailable):
        await run(place, now() + 2 * HOUR)
    monkeypatch.setattr(place.store, "delete", delete)
    report = await run(place, now() + 2 * HOUR)
    assert report.parts == len(PIECES)
    assert await place.is_empty()


CRASH = """
import asyncio, os, signal, sys
from pathlib import Path
from adapters.files.service import FileService, UploadService
from adapters.storage import LocalStore
from db.session import Database
from sqlalchemy import event

url, root, instant, upload_id, *part_ids = sys.argv[1:]

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

class Store(LocalStore):
    async def put_file(self, key, path, *, sha256):
        if instant == "received":
            die()
        stored = await super().put_file(key, path, sha256=sha256)
        if instant == "stored":
            die()
        return stored

class Inspector:
    async def check_file(self, path, kind, *, owner):
        pass

database = Database(url)
if instant == "written":
    event.listen(database.engine.sync_engine, "commit", die)
store = Store(Path(root))

async def main():
    if part_ids:
        uploads = UploadService(database, store, Inspector())
        if instant == "completed":
            uploads._drop_parts = die
        await uploads.complete("ten_one", upload_id, part_ids)
    else:
        await FileService(database, store, Inspector()).create(
            "ten_one", None, "adapter", "a.json", b"x" * 100_000, max_bytes=10**6)

asyncio.run(main())
"""


async def crash(place: Place, instant: str, *arguments: str) -> None:
    url = place.database.engine.url.render_as_string(hide_password=False)
    await end_killed(CRASH, url, str(place.root), instant, *arguments)


@pytest.mark.parametrize("instant", ["received", "stored", "written"])
async def test_a_process_killed_while_it_makes_a_file(place: Place, instant: str) -> None:
    await crash(place, instant, "none")
    files = (await place.files.list("ten_one")).files
    assert files == []  # never a row without its object
    assert len(await place.keys()) + len(place.scratch()) == 1
    report = await run(place, now() + 2 * HOUR)
    assert report.orphans + report.partial_files == 1
    assert await place.is_empty()


@pytest.mark.parametrize("instant", ["received", "stored", "completed"])
async def test_a_process_killed_while_it_completes_an_upload(place: Place, instant: str) -> None:
    pieces = [random.Random(4).randbytes(1000), b"y" * 500]
    upload = (await create(place, 1500)).upload
    parts = await add_all(place, upload.id, pieces)
    await crash(place, instant, upload.id, *parts)
    # Whoever asks again gets the one file, whatever the first attempt left.
    done = await place.uploads.complete("ten_one", upload.id, parts)
    assert done.file is not None
    assert len((await place.files.list("ten_one")).files) == 1
    await run(place, now() + 2 * HOUR)
    assert await place.keys() == {done.file.object_key}
    assert place.scratch() == []
    _, content = await place.files.content("ten_one", done.file.id)
    assert b"".join([piece async for piece in content]) == b"".join(pieces)
