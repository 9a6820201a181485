"""Files: what is taken, what is refused, who finds it, and for how long."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from adapters.files import ingestion, service, uploads
from adapters.files.description import describe
from adapters.files.errors import FileNotFound, FileTooLarge, InvalidFile, UnsupportedFile
from adapters.files.models import StoredFile
from adapters.files.service import FileService
from adapters.inspection import InspectionRefused
from adapters.storage import DigestMismatch, ObjectNotFound, StorageUnavailable
from db.errors import DatabaseUnavailable
from db.session import Database
from tests.adapters.files.conftest import Overtaken, Place

LIMIT = 1_000_000
PICKLES_AND_ARCHIVES = (
    *("bin", "pt", "pth", "pkl", "pickle", "ckpt", "zip", "tar", "gz", "tar.gz", "7z", "npz", "h5", "gguf"),
    *("safetensors.bin", "safetensors ", "exe", "py", "jsonl"),
)


async def create(
    place: Place, data: bytes = b"bytes", filename: str = "adapter_model.safetensors", **said: Any
) -> StoredFile:
    return await place.files.create(
        said.pop("tenant", "ten_one"), "key_1", said.pop("purpose", "adapter"), filename, data,
        said.pop("expires_after", None), max_bytes=LIMIT, **said,
    )  # fmt: skip


async def test_a_file_from_its_making_to_its_end(place: Place) -> None:
    made = await create(place, b"weights" * 1000)
    assert (made.size, made.sha256) == (7000, hashlib.sha256(b"weights" * 1000).hexdigest())
    assert (made.purpose, made.filename, made.created_by) == ("adapter", "adapter_model.safetensors", "key_1")
    assert abs(datetime.now(UTC) - made.created_at) < timedelta(seconds=5)
    assert made.expires_at is None
    assert await place.keys() == {f"tenants/ten_one/files/{made.id}"}
    assert place.inspector.seen == [("weights", 7000)]
    assert (await place.files.get("ten_one", made.id)).sha256 == made.sha256
    _, pieces = await place.files.content("ten_one", made.id)
    assert b"".join([piece async for piece in pieces]) == b"weights" * 1000
    await place.files.delete("ten_one", made.id)
    assert await place.is_empty()
    for call in (place.files.get("ten_one", made.id), place.files.delete("ten_one", made.id)):
        with pytest.raises(FileNotFound):
            await call


async def test_kinds_decide_how_files_are_inspected(place: Place) -> None:
    for purpose, name in [
        ("adapter", "adapter_config.json"),
        ("adapter", "MY.SafeTensors"),
        ("calibration", "samples.jsonl"),
    ]:
        await create(place, filename=name, purpose=purpose)
    assert [kind for kind, _ in place.inspector.seen] == ["config", "weights"]


@pytest.mark.parametrize(
    ("filename", "purpose"),
    [
        *((f"adapter_model.{end}", "adapter") for end in PICKLES_AND_ARCHIVES),
        ("adapter_model", "adapter"),
        ("safetensors", "adapter"),
        *((f"samples.{end}", "calibration") for end in ("json", "csv", "safetensors")),
    ],
)
async def test_other_kinds_are_not_opened(place: Place, filename: str, purpose: str) -> None:
    with pytest.raises(UnsupportedFile) as refused:
        await create(place, filename=filename, purpose=purpose)
    assert refused.value.field == "file"
    assert place.inspector.seen == []
    assert await place.is_empty()


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"purpose": "assistants"}, "purpose"),
        ({"purpose": ""}, "purpose"),
        ({"filename": ""}, "file"),
        ({"filename": "../adapter_config.json"}, "file"),
        ({"filename": "a\\b.json"}, "file"),
        ({"filename": ".json"}, "file"),
        ({"filename": "a\0.json"}, "file"),
        ({"filename": "a\u202e.json"}, "file"),
        ({"filename": "x" * 251 + ".json"}, "file"),
        ({"expires_after": 3599}, "expires_after"),
        ({"expires_after": 30 * 86400 + 1}, "expires_after"),
        ({"data": b""}, "file"),
    ],
)
async def test_what_is_said_of_a_file_is_checked(place: Place, said: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidFile) as refused:
        await create(place, **said)
    assert refused.value.field == field
    assert await place.is_empty()


async def test_a_refused_form_leaves_nothing(place: Place) -> None:
    with pytest.raises(InspectionRefused) as refused:
        await create(place, b"bad bytes")
    assert refused.value.field == "r"
    assert await place.is_empty()
    assert (await place.files.list("ten_one")).files == []


async def test_too_many_bytes_leave_nothing(place: Place) -> None:
    taken = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal taken
        while True:
            taken += 100_000
            yield b"x" * 100_000

    with pytest.raises(FileTooLarge):
        await place.files.create("ten_one", None, "adapter", "a.json", endless(), max_bytes=LIMIT)
    assert taken < LIMIT + 2_500_000  # it is not read to its end
    with pytest.raises(FileTooLarge):
        await create(place, b"x" * (LIMIT + 1))
    assert await place.is_empty()
    assert (await create(place, b"x" * LIMIT)).size == LIMIT


async def test_pages(place: Place) -> None:
    made = [(await create(place, filename=f"{number}.json")).id for number in range(5)]
    sample = (await create(place, filename="s.jsonl", purpose="calibration")).id
    await create(place, tenant="ten_two")

    async def listed(**query: Any) -> tuple[list[str], bool]:
        page = await place.files.list("ten_one", **query)
        return [file.id for file in page.files], page.has_more

    newest = [sample, *reversed(made)]
    assert await listed() == (newest, False)
    assert await listed(limit=6) == (newest, False)
    assert await listed(limit=2) == (newest[:2], True)
    assert await listed(limit=2, after=newest[1]) == (newest[2:4], True)
    assert await listed(limit=2, after=newest[3]) == (newest[4:], False)
    assert await listed(newest_first=False, after=made[0], limit=3) == (made[1:4], True)
    assert await listed(purpose="calibration") == ([sample], False)
    assert await listed(purpose="assistants") == ([], False)
    for limit in (0, -1, 10_001):
        with pytest.raises(InvalidFile):
            await listed(limit=limit)


async def test_tenants_do_not_see_each_other(place: Place) -> None:
    made = await create(place)
    for call in (
        place.files.get("ten_two", made.id),
        place.files.delete("ten_two", made.id),
        place.files.content("ten_two", made.id),
    ):
        with pytest.raises(FileNotFound):
            await call
    assert (await place.files.list("ten_two")).files == []
    assert await place.files.get("ten_one", made.id)


async def test_expired_files_are_not_there(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    made = await create(place, expires_after=3600)
    assert made.expires_at == made.created_at + timedelta(hours=1)
    travel(monkeypatch, timedelta(hours=1, seconds=1))
    for call in (
        place.files.get("ten_one", made.id),
        place.files.delete("ten_one", made.id),
        place.files.content("ten_one", made.id),
    ):
        with pytest.raises(FileNotFound):
            await call
    assert (await place.files.list("ten_one")).files == []


def travel(monkeypatch: pytest.MonkeyPatch, distance: timedelta) -> None:
    for module in (ingestion, service, uploads):
        monkeypatch.setattr(module, "now", lambda: datetime.now(UTC) + distance)


async def test_no_connection_is_held_while_bytes_move(place: Place) -> None:
    held: list[int] = []

    async def slow() -> AsyncIterator[bytes]:
        for _ in range(5):
            held.append(place.database.checked_out)
            yield b"x" * 100_000
            await asyncio.sleep(0.01)

    made = await place.files.create("ten_one", None, "calibration", "a.jsonl", slow(), max_bytes=LIMIT)
    _, pieces = await place.files.content("ten_one", made.id)
    async for _ in pieces:
        held.append(place.database.checked_out)
    assert set(held) == {0}


async def test_a_database_that_is_away_leaves_nothing(place: Place) -> None:
    away = FileService(Database("postgresql+psycopg://nobody@127.0.0.1:1/x"), place.store, place.inspector)
    with pytest.raises(DatabaseUnavailable):
        await away.create("ten_one", None, "adapter", "a.json", b"{}", max_bytes=LIMIT)
    assert await place.is_empty()


async def test_a_store_that_is_away_leaves_no_row(place: Place) -> None:
    objects = place.root / "tenants"
    place.root.mkdir()
    objects.write_text("in the way")
    with pytest.raises(StorageUnavailable):
        await create(place)
    objects.unlink()
    assert (await place.files.list("ten_one")).files == []
    assert await place.is_empty()


async def test_a_row_goes_even_when_its_bytes_cannot(place: Place) -> None:
    made = await create(place)
    folder = place.root / "tenants/ten_one/files"
    (folder / made.id).unlink()
    (folder / made.id / "in the way").mkdir(parents=True)
    await place.files.delete("ten_one", made.id)
    with pytest.raises(FileNotFound):
        await place.files.get("ten_one", made.id)


async def test_a_file_deleted_before_its_first_byte_is_read_is_not_found(place: Place) -> None:
    made = await create(place)
    store = Overtaken(place.root)
    store.happens = lambda: place.files.delete("ten_one", made.id)
    _, pieces = await FileService(place.database, store, place.inspector).content("ten_one", made.id)
    with pytest.raises(FileNotFound):
        await anext(pieces)


async def test_bytes_that_the_store_has_lost_are_no_missing_file(place: Place) -> None:
    made = await create(place)
    (place.root / made.object_key).unlink()
    _, pieces = await place.files.content("ten_one", made.id)
    with pytest.raises(ObjectNotFound):
        await anext(pieces)


async def test_damaged_bytes_are_never_handed_out_whole(place: Place, tmp_path: Path) -> None:
    made = await create(place, b"x" * 1000)
    path = place.root / made.object_key
    path.write_bytes(b"y" + path.read_bytes()[1:])
    _, pieces = await place.files.content("ten_one", made.id)
    with pytest.raises(DigestMismatch):
        await anext(pieces)


def test_descriptions_name_the_field_as_the_request_does() -> None:
    with pytest.raises(UnsupportedFile) as refused:
        describe("adapter", "x.pkl")
    assert refused.value.field == "filename"
