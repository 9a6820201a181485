"""Uploads: parts in any order, in parallel and again; completed once; given up."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from adapters.files.errors import (
    FileTooLarge,
    InvalidFile,
    TooManyUploads,
    UnsupportedFile,
    UploadNotFound,
    UploadNotPending,
)
from adapters.files.uploads import MAX_PART_BYTES, UploadState
from adapters.inspection import InspectionRefused
from tests.adapters.files.conftest import Overtaken, Place
from tests.adapters.files.test_files import travel

DATA = random.Random(3).randbytes(2_500_000)
PIECES = [DATA[begin : begin + 600_000] for begin in range(0, len(DATA), 600_000)]


def md5_of(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


async def create(
    place: Place, size: int = len(DATA), filename: str = "a.safetensors", tenant: str = "ten_one"
) -> UploadState:
    return await place.uploads.create(
        tenant, "key_1", "adapter", filename, "application/octet-stream", size, max_bytes=10_000_000
    )


async def add_all(place: Place, upload_id: str, pieces: list[bytes] = PIECES) -> list[str]:
    parts = await asyncio.gather(*(place.uploads.add_part("ten_one", upload_id, piece) for piece in pieces))
    return [part.id for part in parts]


async def test_an_upload_becomes_a_file(place: Place) -> None:
    upload = (await create(place)).upload
    assert upload.expires_at - upload.created_at == timedelta(hours=1)
    arrived = list(reversed(await add_all(place, upload.id, PIECES[::-1])))
    state = await place.uploads.get("ten_one", upload.id)
    assert {(part.size, part.md5) for part in state.parts} == {
        (len(piece), md5_of(piece)) for piece in PIECES
    }
    md5 = md5_of(DATA).upper()
    done = await place.uploads.complete("ten_one", upload.id, arrived, md5)
    assert done.status == "completed"
    assert done.file is not None
    assert (done.file.size, done.file.sha256) == (len(DATA), hashlib.sha256(DATA).hexdigest())
    assert done.file_id == done.file.id
    assert place.inspector.seen == [("weights", len(DATA))]
    _, pieces = await place.files.content("ten_one", done.file.id)
    assert b"".join([piece async for piece in pieces]) == DATA
    assert await place.keys() == {done.file.object_key}  # no part is left
    assert place.scratch() == []
    again = await place.uploads.complete("ten_one", upload.id, ["whatever"])
    assert again.file is not None
    assert again.file.id == done.file.id
    assert again.parts == []


async def test_many_complete_at_once_and_make_one_file(place: Place) -> None:
    upload = (await create(place)).upload
    parts = await add_all(place, upload.id)
    elsewhere = type(place.uploads)(place.database, place.store, place.inspector)  # another process
    done = await asyncio.gather(
        *(
            service.complete("ten_one", upload.id, parts)
            for service in (place.uploads, elsewhere)
            for _ in range(5)
        )
    )
    assert len({state.file_id for state in done}) == 1
    assert await place.keys() == {f"tenants/ten_one/files/{done[0].file_id}"}
    assert len((await place.files.list("ten_one")).files) == 1
    assert place.uploads._completing == {}
    assert len(place.inspector.seen) <= 2  # once per process


async def test_completed_by_another_process_while_its_parts_are_read(place: Place) -> None:
    upload = (await create(place)).upload
    parts = await add_all(place, upload.id)
    store = Overtaken(place.root)
    store.happens = lambda: place.uploads.complete("ten_one", upload.id, parts)
    elsewhere = type(place.uploads)(place.database, store, place.inspector)
    done = await elsewhere.complete("ten_one", upload.id, parts)
    assert done.file is not None
    assert await place.keys() == {done.file.object_key}
    assert place.scratch() == []


async def test_cancelled_by_another_process_while_its_parts_are_read(place: Place) -> None:
    upload = (await create(place)).upload
    parts = await add_all(place, upload.id)
    store = Overtaken(place.root)
    store.happens = lambda: place.uploads.cancel("ten_one", upload.id)
    elsewhere = type(place.uploads)(place.database, store, place.inspector)
    with pytest.raises(UploadNotPending) as refused:
        await elsewhere.complete("ten_one", upload.id, parts)
    assert refused.value.status == "cancelled"
    assert await place.is_empty()


async def test_a_part_may_come_again(place: Place) -> None:
    upload = (await create(place)).upload
    first = await add_all(place, upload.id)
    again = await place.uploads.add_part("ten_one", upload.id, PIECES[1])
    chosen = [first[0], again.id, *first[2:]]
    done = await place.uploads.complete("ten_one", upload.id, chosen)
    assert done.file is not None
    assert done.file.sha256 == hashlib.sha256(DATA).hexdigest()
    assert await place.keys() == {done.file.object_key}


async def test_a_client_that_lost_its_place_goes_on(place: Place) -> None:
    upload = (await create(place)).upload
    await add_all(place, upload.id, PIECES[:2])
    by_md5 = {part.md5: part.id for part in (await place.uploads.get("ten_one", upload.id)).parts}
    part_ids = []
    for piece in PIECES:
        known = by_md5.get(md5_of(piece))
        part_ids.append(known or (await place.uploads.add_part("ten_one", upload.id, piece)).id)
    done = await place.uploads.complete("ten_one", upload.id, part_ids)
    assert done.file is not None
    assert done.file.sha256 == hashlib.sha256(DATA).hexdigest()


@pytest.mark.parametrize("wrong", ["none", "missing", "unknown", "twice", "foreign", "md5"])
async def test_parts_that_do_not_make_the_file(place: Place, wrong: str) -> None:
    upload = (await create(place)).upload
    parts = await add_all(place, upload.id)
    foreign = (await create(place)).upload.id
    chosen = {
        "none": [],
        "missing": parts[:-1],
        "unknown": [*parts[:-1], "part_unknown"],
        "twice": [*parts[:-2], parts[-1], parts[-1]],
        "foreign": [*parts[:-1], (await place.uploads.add_part("ten_one", foreign, PIECES[-1])).id],
        "md5": parts,
    }[wrong]
    with pytest.raises(InvalidFile) as refused:
        await place.uploads.complete("ten_one", upload.id, chosen, "0" * 32 if wrong == "md5" else None)
    assert refused.value.field == ("md5" if wrong == "md5" else "part_ids")
    assert place.inspector.seen == []
    assert place.scratch() == []
    # It stays pending: the right list still makes the file.
    assert (await place.uploads.complete("ten_one", upload.id, parts)).status == "completed"


async def test_order_is_the_clients(place: Place) -> None:
    upload = (await create(place)).upload
    parts = await add_all(place, upload.id)
    done = await place.uploads.complete("ten_one", upload.id, parts[::-1])
    assert done.file is not None
    assert done.file.sha256 == hashlib.sha256(b"".join(PIECES[::-1])).hexdigest()


async def test_a_refused_form_leaves_nothing(place: Place) -> None:
    upload = (await create(place, 9)).upload
    parts = await add_all(place, upload.id, [b"bad ", b"bytes"])
    with pytest.raises(InspectionRefused):
        await place.uploads.complete("ten_one", upload.id, parts)
    assert await place.is_empty()
    assert (await place.uploads.get("ten_one", upload.id)).status == "cancelled"


async def test_cancelling(place: Place) -> None:
    upload = (await create(place)).upload
    parts = await add_all(place, upload.id)
    for _ in range(2):
        assert (await place.uploads.cancel("ten_one", upload.id)).status == "cancelled"
    assert await place.is_empty()
    with pytest.raises(UploadNotPending) as closed:
        await place.uploads.complete("ten_one", upload.id, parts)
    assert closed.value.status == "cancelled"
    with pytest.raises(UploadNotPending):
        await place.uploads.add_part("ten_one", upload.id, b"x")
    assert await place.is_empty()
    done = (await create(place)).upload.id
    await place.uploads.complete("ten_one", done, await add_all(place, done))
    with pytest.raises(UploadNotPending) as closed:
        await place.uploads.cancel("ten_one", done)
    assert closed.value.status == "completed"


async def test_a_part_whose_upload_ends_while_it_comes_is_dropped(place: Place) -> None:
    upload = (await create(place)).upload

    async def slow() -> AsyncIterator[bytes]:
        yield b"x" * 100
        await place.uploads.cancel("ten_one", upload.id)
        yield b"x" * 100

    with pytest.raises(UploadNotPending):
        await place.uploads.add_part("ten_one", upload.id, slow())
    assert await place.is_empty()


async def test_expiry(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    upload = (await create(place)).upload
    parts = await add_all(place, upload.id)
    travel(monkeypatch, timedelta(hours=1, seconds=1))
    assert (await place.uploads.get("ten_one", upload.id)).status == "expired"
    for call in (
        place.uploads.complete("ten_one", upload.id, parts),
        place.uploads.add_part("ten_one", upload.id, b"x"),
        place.uploads.cancel("ten_one", upload.id),
    ):
        with pytest.raises(UploadNotPending) as closed:
            await call
        assert closed.value.status == "expired"


async def test_the_file_lives_as_long_as_was_asked(place: Place) -> None:
    upload = await place.uploads.create(
        "ten_one", None, "calibration", "s.jsonl", "application/jsonl", 3, 7200, max_bytes=10
    )
    part = await place.uploads.add_part("ten_one", upload.upload.id, b"abc")
    done = await place.uploads.complete("ten_one", upload.upload.id, [part.id])
    assert done.file is not None
    assert done.file.expires_at == done.file.created_at + timedelta(hours=2)


async def test_limits(place: Place) -> None:
    with pytest.raises(FileTooLarge) as large:
        await create(place, 10_000_001)
    assert large.value.field == "bytes"
    with pytest.raises(InvalidFile):
        await create(place, 0)
    with pytest.raises(UnsupportedFile):
        await create(place, filename="model.pkl")
    made = await asyncio.gather(*(create(place) for _ in range(5)), return_exceptions=True)
    assert sum(isinstance(each, TooManyUploads) for each in made) == 2  # the limit is 3 here
    await create(place, tenant="ten_two")
    first = next(each for each in made if isinstance(each, UploadState))
    with pytest.raises(InvalidFile):
        await place.uploads.add_part("ten_one", first.upload.id, b"")
    await place.uploads.cancel("ten_one", first.upload.id)
    await create(place)
    assert await place.is_empty()


async def test_parts_have_their_own_limits(place: Place) -> None:
    upload = (await create(place, 1000)).upload

    async def of(size: int) -> AsyncIterator[bytes]:
        for _ in range(size // 1_048_576):
            yield b"x" * 1_048_576
        if size % 1_048_576:
            yield b"x" * (size % 1_048_576)

    with pytest.raises(FileTooLarge):
        await place.uploads.add_part("ten_one", upload.id, of(MAX_PART_BYTES + 1))
    assert await place.is_empty()
    await place.uploads.add_part("ten_one", upload.id, of(MAX_PART_BYTES))
    await place.uploads.add_part("ten_one", upload.id, of(2000))
    with pytest.raises(FileTooLarge):  # twice the file and one part more is all that is kept at a time
        await place.uploads.add_part("ten_one", upload.id, b"x")
    assert place.scratch() == []


async def test_tenants_do_not_see_each_other(place: Place) -> None:
    upload = (await create(place)).upload
    parts = await add_all(place, upload.id)
    for call in (
        place.uploads.get("ten_two", upload.id),
        place.uploads.add_part("ten_two", upload.id, b"x"),
        place.uploads.complete("ten_two", upload.id, parts),
        place.uploads.cancel("ten_two", upload.id),
    ):
        with pytest.raises(UploadNotFound):
            await call
    assert (await place.uploads.get("ten_one", upload.id)).status == "pending"
    assert len(await place.keys()) == len(PIECES)
