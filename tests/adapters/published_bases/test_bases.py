"""Bases in the object store: published once, fetched whole or not at all, resumed after kill -9."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from adapters.published_bases.cache import BaseCache
from adapters.published_bases.errors import BaseNotPublished, DamagedBase, InvalidBase, NoRoomForBase
from adapters.published_bases.manifest import (
    BaseFile,
    BaseManifest,
    check,
    decode,
    digest_of,
    file_key,
    manifest_key,
)
from adapters.published_bases.publishing import publish, read_folder
from adapters.storage import LocalStore, StoredObject
from cli import bases
from cli.errors import CliError
from tests.support.s3_server import S3Server, start_s3_server

MIB = 1 << 20
WEIGHTS = "model.safetensors"


class CountingStore(LocalStore):
    """Notes what is read and written."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reads: list[tuple[str, int]] = []
        self.writes: list[str] = []

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        self.reads.append((key, start))
        return super().get(key, start=start, length=length)

    async def put_file(self, key: str, path: Path, *, sha256: str) -> StoredObject:
        self.writes.append(key)
        return await super().put_file(key, path, sha256=sha256)


@pytest.fixture
def store(tmp_path: Path) -> CountingStore:
    return CountingStore(tmp_path / "store")


@pytest.fixture
def s3_server() -> Iterator[S3Server]:
    server = start_s3_server()
    yield server
    server.kill()


def base(folder: Path, fill: bytes = b"w", size: int = 3 * MIB + 5) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    (folder / WEIGHTS).write_bytes(fill * size)
    return folder


def kill_when_stuck(arguments: list[str]) -> None:
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line == "stuck\n":
                os.kill(child.pid, signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL


async def fetch(cache: BaseCache, digest: str) -> Path:
    """Returns the base's folder, which is no longer in use then."""
    with await cache.fetch(digest) as path:
        return path


def weights_key(folder: Path) -> str:
    return next(file_key(file.sha256) for file in read_folder(folder).files if file.name == WEIGHTS)


async def test_a_fetched_base_equals_the_published_one_and_is_fetched_once(
    store: CountingStore, tmp_path: Path
) -> None:
    source = base(tmp_path / "source")
    digest = await publish(store, source)
    fetched = await fetch(BaseCache(tmp_path / "cache", store), digest)
    assert fetched == tmp_path / "cache" / digest
    assert {path.name: path.read_bytes() for path in fetched.iterdir()} == {
        path.name: path.read_bytes() for path in source.iterdir()
    }
    store.reads.clear()
    assert await fetch(BaseCache(tmp_path / "cache", store), digest) == fetched
    assert store.reads == []


async def test_a_second_publication_sends_no_file(store: CountingStore, tmp_path: Path) -> None:
    digest = await publish(store, base(tmp_path / "source"))
    store.writes.clear()
    assert await publish(store, tmp_path / "source") == digest
    assert store.writes == [manifest_key(digest)]


async def test_an_interrupted_publication_goes_on_at_the_first_file_it_lacks(
    store: CountingStore, tmp_path: Path
) -> None:
    source = base(tmp_path / "source")
    digest = await publish(store, source)
    await store.delete(manifest_key(digest))
    await store.delete(weights_key(source))
    with pytest.raises(BaseNotPublished):  # without its manifest it is no base yet
        await fetch(BaseCache(tmp_path / "cache", store), digest)
    store.writes.clear()
    await publish(store, source)
    assert store.writes == [weights_key(source), manifest_key(digest)]


async def test_a_killed_fetch_goes_on_where_it_was(store: CountingStore, tmp_path: Path) -> None:
    source = base(tmp_path / "source")
    digest = await publish(store, source)
    cache = tmp_path / "cache"
    module = "tests.adapters.published_bases.slow_fetch"
    arguments = [sys.executable, "-m", module, str(tmp_path / "store"), str(cache), digest]
    kill_when_stuck(arguments)
    assert not (cache / digest).exists()
    store.reads.clear()
    fetched = await fetch(BaseCache(cache, store), digest)
    assert (fetched / WEIGHTS).read_bytes() == (source / WEIGHTS).read_bytes()
    assert [start for key, start in store.reads if key == weights_key(source)] == [MIB]


async def test_a_part_that_is_wrong_is_fetched_again(store: CountingStore, tmp_path: Path) -> None:
    digest = await publish(store, base(tmp_path / "source"))
    partial = tmp_path / "cache" / f".{digest}.partial"
    partial.mkdir(parents=True)
    (partial / WEIGHTS).write_bytes(b"x" * 100)
    (partial / "config.json").write_bytes(b"longer than it is")
    fetched = await fetch(BaseCache(tmp_path / "cache", store), digest)
    assert (fetched / WEIGHTS).read_bytes() == (tmp_path / "source" / WEIGHTS).read_bytes()
    assert (fetched / "config.json").read_text() == "{}"


async def test_a_damaged_or_missing_file_is_named_and_can_be_published_again(
    store: CountingStore, tmp_path: Path
) -> None:
    source = base(tmp_path / "source")
    digest = await publish(store, source)
    stored = tmp_path / "store" / weights_key(source)
    content = bytearray(stored.read_bytes())
    content[100] ^= 1
    stored.write_bytes(content)
    cache = BaseCache(tmp_path / "cache", store)
    with pytest.raises(DamagedBase, match=WEIGHTS):
        await fetch(cache, digest)
    assert not (tmp_path / "cache" / digest).exists()
    await publish(store, source, verify=True)
    assert (await fetch(cache, digest)).is_dir()
    await store.delete(weights_key(source))
    with pytest.raises(DamagedBase, match=WEIGHTS):
        await fetch(BaseCache(tmp_path / "another", store), digest)


async def test_unused_bases_make_room_and_used_ones_stay(store: CountingStore, tmp_path: Path) -> None:
    digests = [await publish(store, base(tmp_path / name, name.encode(), MIB)) for name in "abc"]
    cache = BaseCache(tmp_path / "cache", store, max_bytes=2 * MIB + 100)
    with await cache.fetch(digests[0]) as first:
        with await cache.fetch(digests[1]) as second:
            with pytest.raises(NoRoomForBase, match="ROOTSTOCK_BASE_CACHE_BYTES"):
                await cache.fetch(digests[2])
            assert first.is_dir()
            assert second.is_dir()
        third = await fetch(cache, digests[2])
        assert (first.is_dir(), second.exists(), third.is_dir()) == (True, False, True)


async def test_what_is_no_base_is_rejected(store: CountingStore, tmp_path: Path) -> None:
    with pytest.raises(InvalidBase, match="cannot be read"):
        await publish(store, tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidBase, match=r"config\.json"):
        await publish(store, tmp_path / "empty")
    config = BaseFile("config.json", 1, "0" * 64)
    for name in ("../escaped", "/etc/passwd", ".hidden", "a/b"):
        with pytest.raises(InvalidBase, match="cannot be a file of a base"):
            check(BaseManifest((BaseFile(name, 1, "0" * 64), config)))
    encoded = BaseManifest((config,)).encode()
    assert decode(encoded, digest_of(encoded)).files == (config,)
    with pytest.raises(InvalidBase, match="SHA-256"):
        decode(encoded + b" ", digest_of(encoded))


async def test_a_base_that_arrived_in_part_is_completed_from_a_bucket(
    s3_server: S3Server, tmp_path: Path
) -> None:
    bucket = s3_server.store("bases", tmp_path / "scratch")
    source = base(tmp_path / "source")
    digest = await publish(bucket, source)
    partial = tmp_path / "cache" / f".{digest}.partial"
    partial.mkdir(parents=True)
    (partial / WEIGHTS).write_bytes(b"w" * MIB)
    fetched = await fetch(BaseCache(tmp_path / "cache", bucket), digest)
    assert (fetched / WEIGHTS).read_bytes() == (source / WEIGHTS).read_bytes()


def test_an_engines_host_fetches_into_its_own_data_folder(
    store: CountingStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = asyncio.run(publish(store, base(tmp_path / "source")))
    monkeypatch.setattr(bases.logs, "configure", lambda process: None)
    monkeypatch.setenv("ROOTSTOCK_STORAGE_URL", (tmp_path / "store").as_uri())
    monkeypatch.setenv("ROOTSTOCK_BASE_DIGEST", digest)
    for host in ("host-a", "host-b"):
        monkeypatch.setenv("ROOTSTOCK_ENGINE_DATA_DIR", str(tmp_path / host))
        with bases.fetch_engine_base() as path:
            assert path == tmp_path / host / "bases" / digest
            assert (path / WEIGHTS).stat().st_size == 3 * MIB + 5
    monkeypatch.setenv("ROOTSTOCK_BASE_DIGEST", "0" * 64)
    with pytest.raises(CliError, match="rootstock base publish"):
        bases.fetch_engine_base()
