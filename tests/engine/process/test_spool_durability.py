"""What is on the disk when the spool says so, and what the spool has when Redis goes away."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cli.local.redis import start_redis
from engine.journal.spool import Spool
from engine.journal.usage_journal import JournalEntry, UsageJournal
from engine.protocol import UsageEvent
from tests.support.journal import numbered_event
from tests.support.waiting import until


def record(number: int) -> bytes:
    return msgspec.msgpack.encode(numbered_event(number))


class Disk:
    """What a power cut now would leave of a file: what it had at the last sync."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.synced: dict[int, bytes] = {}
        self.fails = False
        self._fsync = os.fsync
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._sync)

    def _sync(self, fd: int) -> None:
        if self.fails:
            raise OSError(5, "Input/output error")
        self._fsync(fd)
        status = os.fstat(fd)
        if status.st_size and not os.path.isdir(f"/proc/self/fd/{fd}"):
            self.synced[status.st_ino] = os.pread(fd, status.st_size, 0)
        else:
            self.synced[status.st_ino] = b""

    def power_cut(self, path: Path, copy: Path) -> Path:
        """The file as it would be found."""
        copy.mkdir(exist_ok=True)
        found = copy / path.name
        found.write_bytes(self.synced.get(path.stat().st_ino, b""))
        return found


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def read(path: Path) -> list[bytes]:
    spool = Spool(path)
    try:
        return spool.peek(1000)
    finally:
        spool.close()


def test_what_was_appended_survives_a_power_cut(tmp_path: Path, disk: Disk) -> None:
    path = tmp_path / "usage.spool"
    spool = Spool(path)
    for number in range(3):
        spool.append([record(number), record(10 + number)])
        found = disk.power_cut(path, tmp_path / f"cut-{number}")
        expected = [record(each) for earlier in range(number + 1) for each in (earlier, 10 + earlier)]
        assert read(found) == expected
    spool.close()


def test_a_spool_that_was_emptied_stays_empty_after_a_power_cut(tmp_path: Path, disk: Disk) -> None:
    path = tmp_path / "usage.spool"
    spool = Spool(path)
    spool.append([record(1), record(2)])
    spool.consume(1)
    assert read(disk.power_cut(path, tmp_path / "half")) == [record(1), record(2)], "it may come twice"
    spool.consume(1)
    assert len(spool) == 0
    assert read(disk.power_cut(path, tmp_path / "empty")) == []
    spool.append([record(3)])
    assert read(disk.power_cut(path, tmp_path / "more")) == [record(3)]
    assert spool.peek(10) == [record(3)]
    spool.close()
    assert read(path) == [record(3)]


def test_an_append_that_cannot_be_synced_leaves_nothing(tmp_path: Path, disk: Disk) -> None:
    path = tmp_path / "usage.spool"
    spool = Spool(path)
    spool.append([record(1)])
    disk.fails = True
    with pytest.raises(OSError, match="Input/output"):
        spool.append([record(2)])
    disk.fails = False
    assert len(spool) == 1
    assert spool.peek(10) == [record(1)]
    assert read(path) == [record(1)], "nobody was promised the other"
    spool.append([record(3)])
    spool.close()
    assert read(path) == [record(1), record(3)]


@pytest.fixture
def own_redis() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="rs-redis-"))
    yield folder
    shutil.rmtree(folder)


def test_what_redis_may_have_forgotten_is_on_the_disk_as_soon_as_it_is_gone(
    tmp_path: Path, own_redis: Path
) -> None:
    """It had taken them and said so; nothing is written afterwards, and it never comes back."""
    server = start_redis(own_redis)
    written: list[str] = []

    def on_written(entries: list[JournalEntry]) -> None:
        written.extend(entry.event.request_id for entry in entries)

    spool = Spool(tmp_path / "usage.spool")
    journal = UsageJournal(server.url, spool, on_written, lambda error: None)
    journal.start()
    try:
        journal.put([JournalEntry(numbered_event(number)) for number in range(3)])
        until(lambda: len(written) == 3)
        assert journal.num_spooled == 0
        server.kill()
        until(lambda: journal.num_spooled == 3)
    finally:
        journal.close(5)
        journal.release()
    events = [msgspec.msgpack.decode(each, type=UsageEvent) for each in read(tmp_path / "usage.spool")]
    assert [one.request_id for one in events] == ["r0", "r1", "r2"]


def test_what_redis_surely_has_on_its_disk_is_not_written_again(
    tmp_path: Path, own_redis: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.journal.usage_journal.UNCONFIRMED_SECONDS", 0.05)
    server = start_redis(own_redis)
    written: list[JournalEntry] = []
    spool = Spool(tmp_path / "usage.spool")
    journal = UsageJournal(server.url, spool, written.extend, lambda error: None)
    journal.start()
    try:
        journal.put([JournalEntry(numbered_event(0))])
        until(lambda: len(written) == 1)
        time.sleep(0.3)  # several times as long
        server.kill()
        journal.put([JournalEntry(numbered_event(1))])
        until(lambda: len(written) == 2)
        assert journal.num_spooled == 1
    finally:
        journal.close(5)
        journal.release()
    (left,) = read(tmp_path / "usage.spool")
    assert msgspec.msgpack.decode(left, type=UsageEvent).request_id == "r1"
