"""What every object store does, asked of the directory and of a server that speaks S3."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from adapters.storage import DigestMismatch, ObjectNotFound, ObjectStore
from tests.support.s3_server import KEYS_OF_A_PAGE

LARGE = random.Random(1).randbytes(20 * 1024 * 1024 + 17)
"""Three parts on S3."""


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def pieces(data: bytes, size: int = 300_000) -> AsyncIterator[bytes]:
    for begin in range(0, len(data), size):
        yield data[begin : begin + size]
        await asyncio.sleep(0)


async def take(stream: AsyncIterator[bytes], into: list[bytes]) -> None:
    async for piece in stream:
        into.append(piece)


async def read(store: ObjectStore, key: str, **options: int) -> bytes:
    return b"".join([piece async for piece in store.get(key, **options)])


def leftovers(store: ObjectStore) -> list[Path]:
    return list(store.scratch.iterdir()) if store.scratch.exists() else []


@pytest.mark.parametrize("data", [b"", b"x", b"y" * 1024 * 1024, LARGE], ids=["0", "1", "1M", "20M"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_what_is_put_is_got(store: ObjectStore, data: bytes, streamed: bool) -> None:
    before = datetime.now(UTC) - timedelta(seconds=2)
    put = await store.put("tenants/ten_1/files/file_1", pieces(data) if streamed else data)
    assert (put.key, put.size, put.sha256) == ("tenants/ten_1/files/file_1", len(data), digest(data))
    assert before < put.modified_at < datetime.now(UTC) + timedelta(seconds=2)
    assert await store.head(put.key) == put
    assert await read(store, put.key) == data
    assert leftovers(store) == []


async def test_a_put_replaces(store: ObjectStore) -> None:
    await store.put("a/b", b"first")
    await store.put("a/b", b"the second")
    assert await read(store, "a/b") == b"the second"


async def test_ranges(store: ObjectStore) -> None:
    data = bytes(range(256)) * 8192
    await store.put("a", data)
    for start, length in [(0, 10), (5, None), (1_000_000, 1_000_001), (len(data) - 3, 100), (0, 0)]:
        assert await read(store, "a", start=start, length=length) == data[start:][:length]
    assert await read(store, "a", start=len(data), length=5) == b""
    assert await read(store, "a", start=len(data) + 5) == b""
    for start, length in [(-1, 3), (0, -3)]:
        with pytest.raises(ValueError, match="no range"):
            await read(store, "a", start=start, length=length)


@pytest.mark.parametrize("data", [b"right", LARGE], ids=["small", "large"])
async def test_bytes_of_another_digest_are_not_stored(store: ObjectStore, data: bytes) -> None:
    with pytest.raises(DigestMismatch):
        await store.put("a", pieces(data), sha256=digest(b"wrong"))
    assert await store.head("a") is None
    assert leftovers(store) == []
    await store.put("a", pieces(data), sha256=digest(data))
    with pytest.raises(DigestMismatch):
        await store.put("a", b"other", sha256=digest(b"wrong"))
    assert await read(store, "a") == data


async def test_a_stream_that_fails_leaves_nothing(store: ObjectStore) -> None:
    class Broken(Exception):
        pass

    async def breaks() -> AsyncIterator[bytes]:
        yield LARGE[: 9 * 1024 * 1024]
        raise Broken

    with pytest.raises(Broken):
        await store.put("a", breaks())
    assert await store.head("a") is None
    assert leftovers(store) == []


async def test_a_put_that_is_cancelled_leaves_nothing(store: ObjectStore) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield LARGE[:2_000_000]
            await asyncio.sleep(0.001)

    task = asyncio.create_task(store.put("a", endless()))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await store.head("a") is None
    assert leftovers(store) == []


async def test_a_file_is_taken_over(store: ObjectStore, tmp_path: Path) -> None:
    for folder in (tmp_path, store.scratch):
        folder.mkdir(exist_ok=True, parents=True)
        path = folder / "file"
        path.write_bytes(LARGE)
        put = await store.put_file("a", path, sha256=digest(LARGE))
        assert put.size == len(LARGE)
        assert not path.exists()
        assert await read(store, "a") == LARGE
    assert leftovers(store) == []


async def test_copies_stand_alone(store: ObjectStore) -> None:
    put = await store.put("a", LARGE)
    copied = await store.copy("a", "b/c")
    assert (copied.key, copied.size, copied.sha256) == ("b/c", put.size, put.sha256)
    await store.put("a", b"changed")
    await store.delete("a")
    assert await read(store, "b/c") == LARGE
    with pytest.raises(ObjectNotFound):
        await store.copy("a", "d")
    assert await store.head("d") is None


async def test_a_copy_is_as_young_as_its_making(store: ObjectStore) -> None:
    old = await store.put("a", b"old")
    await asyncio.sleep(2.1)
    assert (await store.copy("a", "b")).modified_at - old.modified_at >= timedelta(seconds=2)


async def test_concatenation(store: ObjectStore) -> None:
    parts = [LARGE[:7_000_000], b"", LARGE[7_000_000:7_000_001], LARGE[7_000_001:]]
    for number, part in enumerate(parts):
        await store.put(f"p/{number}", part)
    put = await store.concatenate([f"p/{number}" for number in range(4)], "whole")
    assert put.sha256 == digest(LARGE)
    assert await read(store, "whole") == LARGE
    with pytest.raises(ObjectNotFound):
        await store.concatenate(["p/0", "p/9"], "half")
    assert await store.head("half") is None


async def test_what_is_deleted_is_gone(store: ObjectStore) -> None:
    await store.put("a/b", b"1")
    await store.put("a/c", b"2")
    await store.delete("a/b")
    await store.delete("a/b")
    assert await store.head("a/b") is None
    with pytest.raises(ObjectNotFound):
        await read(store, "a/b")
    with pytest.raises(ObjectNotFound):
        await read(store, "a/b", start=1, length=1)
    assert await read(store, "a/c") == b"2"


async def test_lists_go_by_whole_segments(store: ObjectStore) -> None:
    assert [listed async for listed in store.list("")] == []
    keys = {f"tenants/ten_1/files/f{number}" for number in range(7)} | {"tenants/ten_11/files/x", "other"}
    for key in keys:
        await store.put(key, key.encode())
    listed = [item async for item in store.list("")]
    assert {item.key: item.size for item in listed} == {key: len(key) for key in keys}
    for prefix in ("tenants/ten_1", "tenants/ten_1/"):
        below = {item.key async for item in store.list(prefix)}
        assert below == {key for key in keys if key.startswith("tenants/ten_1/")}
    assert [item async for item in store.list("nothing/here")] == []


async def test_long_lists(store: ObjectStore) -> None:
    """Of three pages."""
    keys = {f"many/{number}" for number in range(2 * KEYS_OF_A_PAGE + 1)}
    await asyncio.gather(*(store.put(key, b"x") for key in keys))
    assert {item.key async for item in store.list("many")} == keys


async def test_fetching(store: ObjectStore, tmp_path: Path) -> None:
    await store.put("a", LARGE)
    path = tmp_path / "deep" / "file"
    await store.fetch("a", path, sha256=digest(LARGE))
    assert path.read_bytes() == LARGE
    await store.put("a", b"new")
    with pytest.raises(DigestMismatch):
        await store.fetch("a", path, sha256=digest(LARGE))
    with pytest.raises(ObjectNotFound):
        await store.fetch("b", path)
    assert path.read_bytes() == LARGE
    await store.fetch("a", path)
    assert path.read_bytes() == b"new"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    "key",
    [
        *("", "/a", "a/", "a//b", ".", "..", "a/../b", "../a", "a/.b", "a\0b", "a\nb", "a b", "ä", "a\\b"),
        *("x" * 201, "/".join(["x" * 100] * 8), "a%2fb", "-a", "a/*"),
    ],
)
async def test_keys_that_are_none(store: ObjectStore, key: str, tmp_path: Path) -> None:
    await store.put("good", b"x")
    calls = [
        store.put(key, b"x"),
        read(store, key),
        store.head(key),
        store.copy("good", key),
        store.copy(key, "target"),
        store.delete(key),
        store.concatenate([key], "target"),
        store.concatenate(["good"], key),
        store.fetch(key, tmp_path / "file"),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="not an object's key"):
            await call
    if key not in ("", "a/"):
        with pytest.raises(ValueError, match="not an object's key"):
            await anext(aiter(store.list(key)))
    assert {item.key async for item in store.list("")} == {"good"}


async def test_readers_of_a_replaced_object_see_one_of_the_two(store: ObjectStore) -> None:
    first, second = b"1" * 3_000_000, b"2" * 5_000_000
    await store.put("a", first)
    stop = asyncio.Event()

    async def replace() -> None:
        while not stop.is_set():
            await store.put("a", second)
            await store.put("a", first)

    writer = asyncio.create_task(replace())
    try:
        for _ in range(20):
            assert await read(store, "a") in (first, second)
    finally:
        stop.set()
        await writer


async def test_sweeping_takes_only_what_is_old(store: ObjectStore) -> None:
    store.scratch.mkdir(parents=True, exist_ok=True)
    (store.scratch / "cut-off.partial").write_bytes(b"x")
    now = datetime.now(UTC)
    assert await store.sweep(now - timedelta(hours=1)) == 0
    assert await store.sweep(now + timedelta(seconds=5)) == 1
    assert leftovers(store) == []
