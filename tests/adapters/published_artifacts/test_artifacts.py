"""Packed adapters in the object store: fetched whole or not at all, once at a time, into a bounded cache."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import queue
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from adapters.published_artifacts.cache import ArtifactCache
from adapters.published_artifacts.errors import (
    ArtifactNotPublished,
    DamagedArtifact,
    DiskFailed,
    NoRoomForArtifact,
    StoreUnavailable,
)
from adapters.published_artifacts.fetcher import StoreFetcher
from adapters.published_artifacts.publishing import (
    publish_copy,
    publish_file,
    publish_folder,
    publish_signature,
    published_key,
    published_note_key,
    published_signature_key,
    withdraw,
)
from adapters.storage import DigestMismatch, StorageUnavailable
from adapters.storage.locks import locked
from engine.lora.artifact import artifact_path
from engine.lora.draft_adapters import DraftAdapter, note_path, read_note, write_note
from engine.lora.signatures import SignedReport, signature_path, verify_signed, write_signature
from engine.protocol import AdapterRef
from engine.signing.bundle import key_of, sign
from engine.signing.keys import SigningKey, TrustedKeys
from engine.signing.statement import encode_statement
from tests.adapters.published_bases.test_bases import MIB, CountingStore, kill_when_stuck
from tests.support.waiting import until

SIZE = 3 * MIB + 5


@pytest.fixture
def store(tmp_path: Path) -> CountingStore:
    return CountingStore(tmp_path / "store")


def content_of(name: str, size: int) -> bytes:
    return name.encode() * size


async def publish(store: CountingStore, name: str = "a", size: int = SIZE) -> str:
    content = content_of(name, size)
    digest = hashlib.sha256(content).hexdigest()
    await store.put(published_key(digest), content, sha256=digest)
    return digest


def cache_of(tmp_path: Path, store: CountingStore, max_bytes: int = 1 << 30) -> ArtifactCache:
    return ArtifactCache(tmp_path / "cache", store, max_bytes)


async def fetch(cache: ArtifactCache, digest: str) -> Path:
    """Returns the artifact's path, which is not held any more."""
    (await cache.hold(digest)).close()
    return artifact_path(cache.root, digest)


def stored_path(store: CountingStore, tmp_path: Path, digest: str) -> Path:
    return tmp_path / "store" / published_key(digest)


def files_in(folder: Path) -> list[str]:
    """Artifacts and parts of them."""
    return sorted(path.name for path in folder.rglob("*.rsa*"))


async def test_an_artifact_is_fetched_once_and_then_found(store: CountingStore, tmp_path: Path) -> None:
    digest = await publish(store)
    cache = cache_of(tmp_path, store)
    path = await fetch(cache, digest)
    assert path.read_bytes() == content_of("a", SIZE)
    assert files_in(cache.root) == [path.name]
    held = await cache.hold(digest)
    assert held.fetched_bytes == 0
    held.close()
    assert len(store.reads) == 1


async def test_engines_of_one_host_fetch_the_same_artifact_once(store: CountingStore, tmp_path: Path) -> None:
    digest = await publish(store)
    caches = [cache_of(tmp_path, store) for _ in range(3)]  # as three processes: locks are by open file
    held = await asyncio.gather(*(cache.hold(digest) for cache in caches))
    assert sorted(one.fetched_bytes for one in held) == [0, 0, SIZE]
    assert len(store.reads) == 1
    for one in held:
        one.close()


@pytest.mark.parametrize("change", ["flipped", "truncated", "longer", "another"])
async def test_what_is_not_its_digest_is_refused_and_leaves_nothing(
    store: CountingStore, tmp_path: Path, change: str
) -> None:
    digest, other = await publish(store), await publish(store, "b", MIB)
    path = stored_path(store, tmp_path, digest)
    content = bytearray(path.read_bytes())
    if change == "flipped":
        content[MIB] ^= 1
    elif change == "truncated":
        del content[-100:]
    elif change == "longer":
        content += b"x"
    else:  # a whole object, below another digest's key
        content = bytearray(stored_path(store, tmp_path, other).read_bytes())
    path.write_bytes(content)
    cache = cache_of(tmp_path, store)
    with pytest.raises(DamagedArtifact, match=digest):
        await cache.hold(digest)
    assert not artifact_path(cache.root, digest).exists()
    assert all(part.stat().st_size == 0 for part in cache.root.rglob("*.partial"))
    await publish(store)
    assert (await fetch(cache, digest)).read_bytes() == content_of("a", SIZE)


async def test_a_killed_fetch_goes_on_where_it_was(store: CountingStore, tmp_path: Path) -> None:
    digest = await publish(store)
    cache = cache_of(tmp_path, store)
    module = "tests.adapters.published_artifacts.slow_fetch"
    kill_when_stuck([sys.executable, "-m", module, str(tmp_path / "store"), str(cache.root), digest])
    assert not artifact_path(cache.root, digest).exists()
    path = await fetch(cache, digest)
    assert path.read_bytes() == content_of("a", SIZE)
    assert store.reads == [(published_key(digest), MIB)]
    assert files_in(cache.root) == [path.name]


async def test_the_least_recently_used_makes_room_and_what_is_held_stays(
    store: CountingStore, tmp_path: Path
) -> None:
    a, b, c, d = [await publish(store, name, MIB) for name in "abcd"]
    cache = cache_of(tmp_path, store, max_bytes=3 * MIB)
    for digest, age in ((a, 30), (b, 20), (c, 10)):
        path = await fetch(cache, digest)
        at = path.stat().st_mtime - age
        os.utime(path, (at, at))
    held = await cache.hold(a)  # so that b was used least recently
    await fetch(cache, d)
    assert files_in(cache.root) == sorted(f"{digest}.rsa" for digest in (a, c, d))
    holding = [held, await cache.hold(c), await cache.hold(d)]
    with pytest.raises(NoRoomForArtifact, match="ROOTSTOCK_ADAPTERS_CACHE_BYTES"):
        await cache.hold(b)
    for one in holding:
        assert one.opened.read() in (content_of("a", MIB), content_of("c", MIB), content_of("d", MIB))
        one.close()
    await fetch(cache, b)
    assert len(files_in(cache.root)) == 3


async def test_a_part_of_an_artifact_counts_as_all_of_it_and_can_make_room(
    store: CountingStore, tmp_path: Path
) -> None:
    abandoned, wanted = await publish(store, "a", 2 * MIB), await publish(store, "b", 2 * MIB)
    cache = cache_of(tmp_path, store, max_bytes=3 * MIB)
    module = "tests.adapters.published_artifacts.slow_fetch"
    kill_when_stuck([sys.executable, "-m", module, str(tmp_path / "store"), str(cache.root), abandoned])
    assert files_in(cache.root) == [f".{abandoned}.rsa.{2 * MIB}.partial"]
    await fetch(cache, wanted)
    assert files_in(cache.root) == [f"{wanted}.rsa"]


async def test_failures_say_what_failed(
    store: CountingStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, digest = cache_of(tmp_path, store), "0" * 64
    with pytest.raises(ArtifactNotPublished, match=f"no packed adapter {digest}"):
        await cache.hold(digest)

    async def is_away(key: str) -> None:
        raise StorageUnavailable("connection refused")

    with monkeypatch.context() as patched:
        patched.setattr(store, "head", is_away)
        with pytest.raises(StoreUnavailable, match="retry later"):
            await cache.hold(digest)
    digest = await publish(store)
    cache.root.joinpath(digest[:2]).write_text("no folder")
    with pytest.raises(DiskFailed) as failed:
        await cache.hold(digest)
    assert str(tmp_path) not in str(failed.value), "clients read it"


async def test_a_copy_that_decayed_is_dropped_and_a_good_one_stays(
    store: CountingStore, tmp_path: Path
) -> None:
    digest = await publish(store)
    cache = cache_of(tmp_path, store)
    path = await fetch(cache, digest)
    await cache.drop_damaged(digest)
    assert path.exists()
    path.write_bytes(b"x" + path.read_bytes()[1:])
    held = await cache.hold(digest)
    await cache.drop_damaged(digest)
    assert path.exists(), "an engine holds it"
    held.close()
    await cache.drop_damaged(digest)
    assert not path.exists()


async def test_packed_adapters_are_published_and_withdrawn(store: CountingStore, tmp_path: Path) -> None:
    folder = tmp_path / "artifacts"
    digests = []
    for name in "ab":
        digest = hashlib.sha256(content_of(name, MIB)).hexdigest()
        path = artifact_path(folder, digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content_of(name, MIB))
        digests.append(digest)
    await publish_file(store, artifact_path(folder, digests[0]), digests[0])
    assert await publish_folder(store, folder) == (1, 2)
    assert await publish_folder(store, folder) == (0, 2)
    artifact_path(folder, digests[1]).write_bytes(b"decayed")
    await store.delete(published_key(digests[1]))
    with pytest.raises(DigestMismatch):
        await publish_folder(store, folder)

    now = datetime.now(UTC)
    await withdraw(store, digests[0], now - timedelta(minutes=1))
    assert await store.head(published_key(digests[0])) is not None, "it was published since"
    await publish_copy(store, published_key(digests[0]), digests[1])
    await withdraw(store, digests[0], now + timedelta(minutes=1))
    assert await store.head(published_key(digests[0])) is None
    await withdraw(store, digests[0], now)  # as often as a purge is repeated


class Rig:
    """A fetcher, and what it reports."""

    def __init__(self, cache: ArtifactCache) -> None:
        self.fetcher = StoreFetcher(cache)
        self.reports: queue.SimpleQueue[tuple[str, str | None]] = queue.SimpleQueue()
        self.fetcher.start(lambda *report: self.reports.put(report))


@pytest.fixture
def rig(store: CountingStore, tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(cache_of(tmp_path, store))
    yield rig
    rig.fetcher.close()
    assert not rig.fetcher._thread.is_alive()


def test_a_fetcher_brings_an_artifact_once_and_holds_it(
    rig: Rig, store: CountingStore, tmp_path: Path
) -> None:
    digest = asyncio.run(publish(store))
    assert [rig.fetcher.hold(digest) for _ in range(3)] == [False] * 3
    assert rig.reports.get(timeout=20) == (digest, None)
    assert rig.fetcher.hold(digest)
    assert len(store.reads) == 1
    counters = rig.fetcher.counters
    assert (counters.fetching, counters.fetched, counters.num_bytes) == (0, 1, SIZE)
    assert counters.seconds > 0
    small = cache_of(tmp_path, store, max_bytes=SIZE)
    another = asyncio.run(publish(store, "b"))
    with pytest.raises(NoRoomForArtifact):
        asyncio.run(fetch(small, another))
    rig.fetcher.release(digest)
    rig.fetcher.release(digest)  # what is not held
    asyncio.run(fetch(small, another))
    assert not rig.fetcher.hold(digest), "it made room"
    assert rig.reports.get(timeout=20) == (digest, None)


def test_a_fetcher_counts_failures_by_cause_and_tries_again(rig: Rig, store: CountingStore) -> None:
    absent = "0" * 64
    for _ in range(2):
        assert not rig.fetcher.hold(absent)
        digest, error = rig.reports.get(timeout=20)
        assert digest == absent
        assert error is not None
        assert "no packed adapter" in error
    assert rig.fetcher.counters.failures == {"missing": 2}
    assert rig.fetcher.counters.fetching == 0


def test_a_suspect_copy_is_brought_again(rig: Rig, store: CountingStore) -> None:
    digest = asyncio.run(publish(store))
    rig.fetcher.hold(digest)
    rig.reports.get(timeout=20)
    path = artifact_path(rig.fetcher.directory, digest)
    path.write_bytes(b"decayed")
    rig.fetcher.release(digest, is_suspect=True)
    until(lambda: not path.exists(), 20, "the decayed copy is gone")
    assert not rig.fetcher.hold(digest)
    assert rig.reports.get(timeout=20) == (digest, None)
    assert path.read_bytes() == content_of("a", SIZE)


def test_closing_ends_a_fetch_that_waits_for_another_engine(store: CountingStore, tmp_path: Path) -> None:
    digest = asyncio.run(publish(store))
    rig = Rig(cache_of(tmp_path, store))
    (rig.fetcher.directory / digest[:2]).mkdir(parents=True)
    with locked(rig.fetcher.directory / digest[:2] / ".lock", fcntl.LOCK_EX):
        rig.fetcher.hold(digest)
        rig.fetcher.close()
    assert not rig.fetcher._thread.is_alive()
    assert rig.reports.empty()


# Signatures -----------------------------------------------------------------------------------------------


async def test_a_signature_comes_with_its_artifact_and_again_when_its_key_is_not_accepted(
    tmp_path: Path, store: CountingStore
) -> None:
    old, new = SigningKey.make(), SigningKey.make()
    digest = await publish(store, size=100)

    def signed(key: SigningKey) -> bytes:
        statement = encode_statement("adp@1", {"packed/bfloat16.rsa": digest})
        return SignedReport(sign(key, statement).decode(), None).encode()

    def cache(*keys: SigningKey) -> ArtifactCache:
        accepted = TrustedKeys(key.public for key in keys)
        return ArtifactCache(tmp_path / "cache", store, 1 << 30, keys=accepted)

    path = signature_path(tmp_path / "cache", digest)
    (await cache(old).hold(digest)).close()
    assert not path.exists(), "an artifact of before is used without a signature"
    await publish_signature(store, digest, signed(old))
    (await cache(old).hold(digest)).close()
    assert path.read_bytes() == signed_by(path, old)
    await publish_signature(store, digest, signed(new))
    (await cache(new, old).hold(digest)).close()
    assert key_of(SignedReport.decode(path.read_bytes()).bundle.encode()) == old.public.id, "it still holds"
    (await cache(new).hold(digest)).close()
    assert key_of(SignedReport.decode(path.read_bytes()).bundle.encode()) == new.public.id
    await cache(new).drop_damaged(digest)
    assert not path.exists(), "what may be damaged is fetched again"


def signed_by(path: Path, key: SigningKey) -> bytes:
    """The file's content, if the key made it."""
    content = path.read_bytes()
    verify_signed(content, path.stem, TrustedKeys([key.public]), None)
    return content


async def test_a_note_comes_with_its_artifact_and_goes_with_it(tmp_path: Path, store: CountingStore) -> None:
    folder, root = tmp_path / "folder", tmp_path / "cache"
    digest = hashlib.sha256(b"packed").hexdigest()
    artifact_path(folder, digest).parent.mkdir(parents=True)
    artifact_path(folder, digest).write_bytes(b"packed")
    drafter = DraftAdapter(AdapterRef("d" * 64, 4), 7, 3)
    write_note(folder, digest, drafter)
    await publish_folder(store, folder)

    await fetch(ArtifactCache(root, store, 1 << 30), digest)
    assert read_note(root, digest, 100) is None, "this engine drafts nothing"
    artifact_path(root, digest).unlink()
    cache = ArtifactCache(root, store, len(b"packed") + 100, with_notes=True)
    await fetch(cache, digest)
    assert read_note(root, digest, 100) == drafter
    other = await publish(store, size=101)
    await fetch(cache, other)  # there is room for one
    assert read_note(root, other, 100) is None
    assert not note_path(root, digest).exists(), "it is removed with its artifact"

    await withdraw(store, digest, datetime.now(UTC) + timedelta(minutes=1))
    assert await store.head(published_note_key(digest)) is None


async def test_signatures_in_the_engines_folder_are_published_with_artifacts(
    tmp_path: Path, store: CountingStore
) -> None:
    digest = hashlib.sha256(b"packed").hexdigest()
    artifact_path(tmp_path / "folder", digest).parent.mkdir(parents=True)
    artifact_path(tmp_path / "folder", digest).write_bytes(b"packed")
    write_signature(tmp_path / "folder", digest, b"signed")
    assert await publish_folder(store, tmp_path / "folder") == (1, 1)
    assert [piece async for piece in store.get(published_signature_key(digest))] == [b"signed"]
