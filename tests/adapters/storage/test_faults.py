"""Stores on a bad day: disks full, files cut short or changed, servers killed, processes killed."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from adapters.storage import (
    DigestMismatch,
    LocalStore,
    ObjectStore,
    StorageSettings,
    StorageUnavailable,
    open_store,
)
from adapters.storage.s3 import AccessKey, RetryPolicy, S3Store
from tests.adapters.storage.test_contract import digest, leftovers, read, take
from tests.support.s3_server import S3Server, start_s3_server

DATA = random.Random(2).randbytes(3_000_000)


@contextmanager
def files_at_most(num_bytes: int) -> Iterator[None]:
    """Every write beyond it fails, as on a disk without room."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_full_disk_is_told_and_leaves_nothing(store: ObjectStore, tmp_path: Path) -> None:
    await store.put("a", b"old")
    with files_at_most(1_500_000), pytest.raises(StorageUnavailable):
        await store.put("a", DATA)
    assert await read(store, "a") == b"old"
    assert leftovers(store) == []
    await store.put("b", DATA)
    with files_at_most(1_500_000), pytest.raises(StorageUnavailable):
        await store.fetch("b", tmp_path / "fetched" / "b")
    assert list((tmp_path / "fetched").iterdir()) == []


async def test_room_for_the_bytes_but_not_for_their_seal(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for room in (len(DATA), len(DATA) + 20):
        with files_at_most(room), pytest.raises(StorageUnavailable):
            await store.put("a", DATA)
        assert await store.head("a") is None
        assert leftovers(store) == []


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[1_000_000] ^= 1
    path.write_bytes(data)


def flip_the_seal(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [cut, empty, flip, flip_the_seal])
async def test_damage_on_the_disk_is_found(tmp_path: Path, damage: object) -> None:
    store = LocalStore(tmp_path)
    await store.put("a/b", DATA)
    damage(tmp_path / "a/b")  # type: ignore[operator]
    got: list[bytes] = []
    with pytest.raises(DigestMismatch):
        await take(store.get("a/b"), got)
    assert len(b"".join(got)) < len(DATA)  # never a whole object's worth of wrong bytes
    with pytest.raises(DigestMismatch):
        await store.fetch("a/b", tmp_path / "fetched")
    with pytest.raises(DigestMismatch):
        await store.concatenate(["a/b"], "c")
    assert not (tmp_path / "fetched").exists()
    assert await store.head("c") is None
    assert leftovers(store) == []


async def test_damage_in_the_bucket_is_found(s3_server: S3Server, tmp_path: Path) -> None:
    store = s3_server.store("damaged", tmp_path)
    s3_server.tamper("damaged/a", DATA[:-1] + b"x", digest(DATA))
    got: list[bytes] = []
    with pytest.raises(DigestMismatch):
        await take(store.get("a"), got)
    assert len(b"".join(got)) < len(DATA)
    with pytest.raises(DigestMismatch):
        await store.fetch("a", tmp_path / "fetched", sha256=digest(DATA))
    assert leftovers(store) == []


async def test_a_server_killed_in_the_middle(tmp_path: Path) -> None:
    server = start_s3_server()
    try:
        store = server.store("killed", tmp_path)
        await store.put("there", DATA)
        reading = store.get("there")
        task = asyncio.create_task(store.put("a", DATA * 20))
        await asyncio.sleep(0.35)  # some of the parts are on their way
        server.kill()
        began = time.monotonic()
        for call in (task, store.head("there"), store.put("b", b"x"), store.delete("there"), anext(reading)):
            with pytest.raises(StorageUnavailable):
                await call
        with pytest.raises(StorageUnavailable):
            await anext(aiter(store.list("")))
        assert time.monotonic() - began < 60
        assert leftovers(store) == []
    finally:
        server.kill()


async def test_a_server_that_hangs_is_given_up(tmp_path: Path) -> None:
    connections: list[asyncio.StreamWriter] = []

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        await reader.read()

    silent = await asyncio.start_server(swallow, "127.0.0.1", 0)
    async with silent:
        port = silent.sockets[0].getsockname()[1]
        store = S3Store(
            "bucket",
            scratch=tmp_path,
            endpoint=f"http://127.0.0.1:{port}",
            access_key=AccessKey("k", "s"),
            retry_policy=RetryPolicy(timeout=0.3, connect_timeout=0.3, retries=1, retry_timeout=1),
        )
        began = time.monotonic()
        with pytest.raises(StorageUnavailable):
            await store.put("a", b"x")
        assert time.monotonic() - began < 30
        for writer in connections:
            writer.close()
            await writer.wait_closed()


async def test_a_bucket_that_is_not_there(s3_server: S3Server, tmp_path: Path) -> None:
    store = S3Store(
        "no-such-bucket",
        scratch=tmp_path,
        endpoint=s3_server.endpoint,
        access_key=AccessKey("k", "s"),
        retry_policy=RetryPolicy(retries=0),
    )
    with pytest.raises(StorageUnavailable):
        await store.put("a", b"x")


KILLED = """
import asyncio, sys
from pathlib import Path
from adapters.storage.local import LocalStore

async def endless():
    while True:
        yield b"x" * 1_000_000
        print("more", flush=True)

asyncio.run(LocalStore(Path(sys.argv[1])).put("a/b", endless()))
"""


async def test_a_process_killed_while_it_writes_leaves_no_object(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    await store.put("a/b", b"old")
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    for _ in range(5):
        assert await process.stdout.readline() == b"more\n"
    process.kill()
    await process.wait()
    assert await read(store, "a/b") == b"old"
    assert {listed.key async for listed in store.list("")} == {"a/b"}
    assert len(leftovers(store)) == 1  # what `sweep` is for


async def test_folders_come_and_go_under_writers(tmp_path: Path) -> None:
    """Deleting the last object of a folder removes the folder, whoever is about to write there."""
    store = LocalStore(tmp_path)

    async def churn(name: str) -> None:
        for _ in range(100):
            await store.put(f"deep/folder/{name}", b"x")
            await store.delete(f"deep/folder/{name}")

    await asyncio.gather(*(churn(f"n{number}") for number in range(4)))
    assert os.listdir(tmp_path) == [".incoming"], "and the root stays"


async def test_an_object_below_another_is_refused(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    await store.put("a", b"x")
    for key in ("a/b", "a/b/c"):
        with pytest.raises(StorageUnavailable):
            await store.put(key, b"x")
        assert await store.head(key) is None
    assert leftovers(store) == []


async def test_objects_lie_where_the_url_says(tmp_path: Path) -> None:
    store = open_store(StorageSettings(url=f"file://{tmp_path}/objects"))
    await store.put("tenants/t/a", b"x")
    assert (tmp_path / "objects/tenants/t/a").is_file()
    assert [found.key async for found in store.list("")] == ["tenants/t/a"]


async def test_a_directory_of_an_earlier_release_keeps_its_layout(tmp_path: Path) -> None:
    await LocalStore(tmp_path / "objects/objects").put("tenants/t/a", b"x")
    store = open_store(StorageSettings(url=f"file://{tmp_path}/objects"))
    assert await store.head("tenants/t/a") is not None
    await store.put("tenants/t/b", b"y")
    assert (tmp_path / "objects/objects/tenants/t/b").is_file()
    assert store.scratch == tmp_path / "objects/incoming"
    for key in ("tenants/t/a", "tenants/t/b"):
        await store.delete(key)
    again = open_store(StorageSettings(url=f"file://{tmp_path}/objects"))
    assert again.scratch == store.scratch, "also once it is empty"


def test_where_a_url_leads(tmp_path: Path) -> None:
    local = open_store(StorageSettings(url=f"file://{tmp_path}/a%20b"))
    assert local.scratch == tmp_path / "a b" / ".incoming"
    assert isinstance(open_store(StorageSettings(url="s3://bucket/some/prefix")), S3Store)
    for url in ("file:///", "http://host/x", "relative", "s3://", "file://host/x"):
        with pytest.raises(ValueError):
            open_store(StorageSettings(url=url))


LONG = """
import asyncio, resource
from adapters.storage import StorageSettings, open_store

async def main():
    store = open_store(StorageSettings())
    async def long(num):
        for _ in range(num):
            yield b"x" * 1_000_000
    async def there_and_back(num):
        await store.put("a", long(num))
        async for _ in store.get("a"):
            pass
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    before = await there_and_back(40)
    print(await there_and_back(200) - before)

asyncio.run(main())
"""


@pytest.mark.parametrize("kind", ["local", "s3"])
async def test_a_long_stream_needs_no_more_memory_than_a_short_one(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    settings = {
        "ROOTSTOCK_STORAGE_URL": f"file://{tmp_path}/store",
        "ROOTSTOCK_STORAGE_SCRATCH": str(tmp_path),
    }
    if kind == "s3":
        settings |= request.getfixturevalue("s3_server").settings("long")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", LONG, env={**os.environ, **settings}, stdout=asyncio.subprocess.PIPE
    )
    grown, _ = await process.communicate()
    assert int(grown) < 30  # MiB, of 160 more
