"""The usage journal against a real Redis that comes and goes, and disks that fill."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import redis

from cli.local.redis import start_redis
from engine.journal.spool import Spool
from engine.journal.usage_journal import JournalEntry, JournalError, UsageJournal
from engine.protocol import JOURNAL_STREAM
from tests.engine.process.engines import journal_events
from tests.support.journal import numbered_event

NOWHERE = "redis://127.0.0.1:1/0"


class Recorder:
    """What a journal reports."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.failures: list[JournalError] = []
        self._changed = threading.Condition()

    def on_written(self, entries: list[JournalEntry]) -> None:
        with self._changed:
            self.written += [entry.event.request_id for entry in entries]
            self._changed.notify_all()

    def on_failed(self, error: JournalError) -> None:
        with self._changed:
            self.failures.append(error)
            self._changed.notify_all()

    def wait(self, condition: Callable[[], bool], seconds: float = 30.0) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, seconds)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


Open = Callable[[str], UsageJournal]


@pytest.fixture
def open_journal(tmp_path: Path, recorder: Recorder) -> Iterator[Open]:
    """Opens journals on one spool; closed at the end."""
    journals: list[UsageJournal] = []

    def open_at(url: str) -> UsageJournal:
        spool = Spool(tmp_path / "usage.spool")
        journals.append(UsageJournal(url, spool, recorder.on_written, recorder.on_failed))
        return journals[-1]

    yield open_at
    for journal in journals:
        journal.close(5)
        journal.release()


@pytest.fixture
def own_redis() -> Iterator[Path]:
    """A folder for a Redis that keeps what it is told, and may be killed."""
    folder = Path(tempfile.mkdtemp(prefix="rs-redis-"))
    yield folder
    shutil.rmtree(folder)


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Outage:
    """Redis refuses writes, as on a replica or out of memory, until lifted."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url)

    def __enter__(self) -> None:
        self._client.config_set("maxmemory-policy", "noeviction")
        self._client.config_set("maxmemory", 1)

    def __exit__(self, *exc_info: object) -> None:
        self._client.config_set("maxmemory", 0)
        self._client.close()


def test_events_reach_the_stream_in_order_and_are_reported_once_there(
    open_journal: Open, recorder: Recorder, redis_url: str
) -> None:
    journal = open_journal(redis_url)
    journal.start()
    for first in range(0, 3000, 3):
        journal.put([JournalEntry(numbered_event(number)) for number in range(first, first + 3)])
    recorder.wait(lambda: len(recorder.written) == 3000)
    assert [e.usage.completion_tokens for e in journal_events(redis_url)] == list(range(3000))
    assert journal_events(redis_url)[7] == numbered_event(7)


def test_a_step_waits_while_too_many_batches_are_queued(
    open_journal: Open, recorder: Recorder, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.journal.usage_journal.MAX_QUEUED", 3)
    journal = open_journal(redis_url)
    for number in range(3):
        journal.put([JournalEntry(numbered_event(number))])
    one_more = threading.Thread(target=journal.put, args=[[JournalEntry(numbered_event(3))]], daemon=True)
    one_more.start()
    one_more.join(0.2)
    assert one_more.is_alive(), "nobody has taken one of them"
    journal.start()
    one_more.join(10)
    assert not one_more.is_alive()
    recorder.wait(lambda: len(recorder.written) == 4)
    assert recorder.written == ["r0", "r1", "r2", "r3"]


def test_a_connection_that_was_closed_in_between_is_no_outage(
    open_journal: Open, recorder: Recorder, redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = open_journal(redis_url)
    journal.start()
    journal.put([JournalEntry(numbered_event(0))])
    recorder.wait(lambda: len(recorder.written) == 1)
    with redis.Redis.from_url(redis_url) as client:
        client.client_kill_filter(_type="normal", skipme=True)
    journal.put([JournalEntry(numbered_event(1))])
    recorder.wait(lambda: len(recorder.written) == 2)
    wait_until(lambda: journal.num_spooled == 0)  # what the last one took is written again
    assert [one.request_id for one in journal_events(redis_url)] == ["r0", "r1", "r0"]
    assert "does not take" not in capsys.readouterr().out


def test_while_redis_refuses_events_wait_on_disk_and_follow_in_order(
    open_journal: Open, recorder: Recorder, redis_url: str, tmp_path: Path
) -> None:
    journal = open_journal(redis_url)
    journal.start()
    journal.put([JournalEntry(numbered_event(0))])
    recorder.wait(lambda: len(recorder.written) == 1)
    with Outage(redis_url):
        for number in range(1, 1200):
            journal.put([JournalEntry(numbered_event(number))])
        recorder.wait(lambda: len(recorder.written) == 1200)
        assert journal.num_spooled == 1199
        assert len(journal_events(redis_url)) == 1
    journal.put([JournalEntry(numbered_event(1200))])
    wait_until(lambda: journal.num_spooled == 0)
    journal.put([JournalEntry(numbered_event(1201))])
    recorder.wait(lambda: len(recorder.written) == 1202)
    # At least once: what Redis had taken before it refused may come again, yet never out of order.
    seen = [e.usage.completion_tokens for e in journal_events(redis_url)]
    assert list(dict.fromkeys(seen)) == list(range(1202))
    assert (tmp_path / "usage.spool").stat().st_size == 0


def test_what_was_spooled_is_replayed_by_the_next_process(
    open_journal: Open, recorder: Recorder, redis_url: str
) -> None:
    lost = open_journal(NOWHERE)
    lost.start()
    lost.put([JournalEntry(numbered_event(number)) for number in range(700)])
    recorder.wait(lambda: len(recorder.written) == 700)
    assert lost.close(5)
    journal = open_journal(redis_url)
    assert journal.num_spooled == 700
    journal.write_now([numbered_event(700)])
    journal.start()
    wait_until(lambda: journal.num_spooled == 0)
    assert [e.usage.completion_tokens for e in journal_events(redis_url)] == list(range(701))


def test_a_full_disk_without_redis_is_a_failure_that_says_so(
    open_journal: Open, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = open_journal(NOWHERE)
    journal.start()
    journal.put([JournalEntry(numbered_event(0))])
    recorder.wait(lambda: len(recorder.written) == 1)

    def no_space(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", no_space)
    journal.put([JournalEntry(numbered_event(1))])
    recorder.wait(lambda: len(recorder.failures) == 1)
    assert "No space left" in str(recorder.failures[0])
    with pytest.raises(JournalError):
        journal.put([JournalEntry(numbered_event(2))])
    assert not journal.close(1)
    assert recorder.written == ["r0"]
    assert journal.num_spooled == 1


def test_a_full_queue_makes_the_giver_wait_instead_of_losing_events(
    open_journal: Open, recorder: Recorder, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.journal.usage_journal.MAX_QUEUED", 4)
    journal = open_journal(redis_url)
    giver = threading.Thread(
        target=lambda: [journal.put([JournalEntry(numbered_event(n))]) for n in range(20)]
    )
    giver.start()
    giver.join(0.2)
    assert giver.is_alive(), "nobody writes yet: the queue is full"
    journal.start()
    giver.join(5)
    recorder.wait(lambda: len(recorder.written) == 20)
    assert len(journal_events(redis_url)) == 20


# The spool


def test_a_spool_is_looked_through_page_by_page_while_it_is_written_and_emptied(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    assert spool.page(0, 10) == ([], None)
    spool.append([b"a", b"b", b"c", b"d"])
    seen, onward = spool.page(0, 2)
    assert seen == [b"a", b"b"]
    assert onward is not None
    spool.append([b"e"])
    assert spool.page(onward, 10) == ([b"c", b"d", b"e"], None)
    spool.consume(3)
    assert spool.page(onward, 10) == ([b"d", b"e"], None), "what is gone is not shown again"
    spool.consume(2)
    assert spool.page(onward, 10) == ([], None)
    spool.append([b"f", b"g"])
    assert spool.page(onward, 10) == ([b"f", b"g"], None), "a position from before means the front"
    first, onward = spool.page(0, 1)
    assert first == [b"f"]
    assert onward is not None
    assert spool.page(onward, 1) == ([b"g"], None)
    spool.close()


def test_a_spool_gives_back_what_was_appended_across_openings(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    spool.append([b"a", b"b", b"c" * 10_000])
    spool.consume(1)
    spool.append([b"d"])
    assert spool.peek(10) == [b"b", b"c" * 10_000, b"d"]
    assert spool.peek(2) == [b"b", b"c" * 10_000]
    spool.close()
    again = Spool(tmp_path / "s")
    assert again.peek(10) == [b"a", b"b", b"c" * 10_000, b"d"], "consumed in part: all come again"
    again.consume(4)
    assert len(again) == 0
    again.append([b"e"])
    assert again.peek(10) == [b"e"]
    again.close()


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_torn_last_record_is_ignored_and_later_ones_are_readable(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "s"
    spool = Spool(path)
    spool.append([b"first", b"torn"])
    spool.close()
    os.truncate(path, path.stat().st_size - cut)
    spool = Spool(path)
    assert spool.peek(10) == [b"first"]
    spool.append([b"next"])
    spool.close()
    spool = Spool(path)
    assert spool.peek(10) == [b"first", b"next"]
    spool.close()


def damaged(path: Path, at: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


RECORDS = [bytes([64 + number]) * (30 + number) for number in range(32)]


@pytest.mark.parametrize("where", [0, 5, 20], ids=["length", "checksum", "payload"])
def test_damage_costs_the_record_it_lies_in_and_no_other(tmp_path: Path, where: int) -> None:
    path = tmp_path / "s"
    spool = Spool(path)
    spool.append(RECORDS)
    spool.close()
    record = sum(8 + len(one) for one in RECORDS[:7])
    damaged(path, record + where, b"\xf3")
    spool = Spool(path)
    assert spool.peek(99) == RECORDS[:7] + RECORDS[8:]
    assert len(spool) == 31
    spool.append([b"later"])
    spool.close()
    (aside,) = tmp_path.glob("s.damaged-*")
    assert aside.stat().st_size == 8 + len(RECORDS[7])
    assert aside.stat().st_mode & 0o777 == 0o600, "it names tenants"
    again = Spool(path)
    assert again.peek(99) == [*RECORDS[:7], *RECORDS[8:], b"later"]
    again.consume(32)
    assert len(again) == 0
    again.close()
    assert len(list(tmp_path.iterdir())) == 2, "set aside once"


def test_a_stretch_of_zeros_is_no_record(tmp_path: Path) -> None:
    path = tmp_path / "s"
    spool = Spool(path)
    spool.append(RECORDS)
    spool.close()
    damaged(path, 100, bytes(512))
    lost = range(2, 14)  # those that bytes 100 to 611 are of
    spool = Spool(path)
    assert spool.peek(99) == [one for number, one in enumerate(RECORDS) if number not in lost]
    spool.close()


def test_what_a_power_cut_leaves_behind_the_last_record_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "s"
    spool = Spool(path)
    spool.append([b"first"])
    spool.close()
    with path.open("ab") as file:
        file.write(bytes(4096))
    spool = Spool(path)
    assert spool.peek(9) == [b"first"]
    spool.close()
    assert [one.name for one in tmp_path.iterdir()] == ["s"]


def test_a_file_damaged_while_it_is_open_is_read_on_and_set_aside_when_empty(tmp_path: Path) -> None:
    path = tmp_path / "s"
    spool = Spool(path)
    spool.append(RECORDS)
    damaged(path, 10, b"\xff")
    damaged(path, path.stat().st_size - 3, b"\xff")
    assert spool.peek(99) == RECORDS[1:31]
    spool.consume(20)
    spool.consume(10)
    assert len(spool) == 0, "the last one cannot be read"
    spool.append([b"next"])
    assert spool.peek(9) == [b"next"]
    spool.close()
    (aside,) = tmp_path.glob("s.damaged-*")
    assert RECORDS[0][3:] in aside.read_bytes()


def test_an_append_that_fails_half_way_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path / "s")
    spool.append([b"first"])
    pwrite = os.pwrite

    def runs_out(fd: int, data: memoryview, at: int) -> int:
        if at > 30:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(fd, data[:9], at)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", runs_out)
        with pytest.raises(OSError, match="No space"):
            spool.append([b"x" * 100])
    spool.append([b"second"])
    assert spool.peek(10) == [b"first", b"second"]
    spool.close()


def test_the_stream_carries_what_the_protocol_says(
    open_journal: Open, recorder: Recorder, redis_url: str
) -> None:
    journal = open_journal(redis_url)
    journal.write_now([numbered_event(5)])
    with redis.Redis.from_url(redis_url) as client:
        ((_, fields),) = client.xrange(JOURNAL_STREAM)
    assert list(fields) == [b"e"]
    assert msgspec.msgpack.decode(fields[b"e"])["request_id"] == "r5"


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_what_redis_took_and_forgot_in_a_kill_is_written_again(
    open_journal: Open, recorder: Recorder, own_redis: Path, busy: bool
) -> None:
    """While it waits for a sync Redis answers without having written. Killed then, it does not know what it
    has acknowledged: here the end of its file is cut off, as it would be missing.
    """
    server = start_redis(own_redis)
    file = own_redis / "redis" / "appendonly.aof"
    journal = open_journal(server.url)
    journal.start()
    journal.put([JournalEntry(numbered_event(0))])
    recorder.wait(lambda: len(recorder.written) == 1)
    wait_until(lambda: file.stat().st_size > 0)
    written = file.stat().st_size
    journal.put([JournalEntry(numbered_event(1)), JournalEntry(numbered_event(2))])
    recorder.wait(lambda: len(recorder.written) == 3)
    server.kill()
    os.truncate(file, written)
    with start_redis(own_redis) as again:
        if busy:
            journal.put([JournalEntry(numbered_event(3))])
        expected = {f"r{number}" for number in range(4 if busy else 3)}
        wait_until(lambda: {one.request_id for one in journal_events(again.url)} == expected)
        assert journal_events(again.url)[0] == numbered_event(0), "the file was cut behind it"
        wait_until(lambda: journal.num_spooled == 0)
        client = redis.Redis.from_url(again.url)
        settled = client.xlen(JOURNAL_STREAM)
        journal.put([JournalEntry(numbered_event(4))])
        recorder.wait(lambda: recorder.written[-1] == "r4")
        assert client.xlen(JOURNAL_STREAM) == settled + 1, "the same connection: nothing is in doubt"
        client.close()
