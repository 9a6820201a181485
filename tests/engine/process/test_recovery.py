"""What the next start makes of files that a dead engine left: billed, numbered, and what is lost counted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import redis

from engine.journal.counters import DiskCounters, IncarnationTotals
from engine.journal.inflight_rows import HEADER_LEN, ROW_LEN
from engine.journal.meter import HISTORY, SPOOL, TABLE, TOTALS, Meter
from engine.protocol import ISSUED_STREAM, EventNumber, IssuedEvents, Usage, UsageEvent
from tests.engine.process.engines import billed, journal_events, submission
from tests.engine.process.test_usage_journal import NOWHERE, wait_until
from tests.support.journal import numbered_event


@contextmanager
def meter(folder: Path, url: str, incarnation: str) -> Iterator[Meter]:
    """Of an engine that dies with the block: nothing is closed but what no other may hold."""
    made = Meter(
        state_dir=folder,
        redis_url=url,
        engine_id="engine-0",
        incarnation=incarnation,
        on_settled=lambda _: None,
        on_failed=lambda _: None,
    )
    yield made
    made._sync.close()
    made._journal.close(5)
    os.close(made._lock_fd)


def counted(made: Meter, request_id: str, tokens: int) -> int:
    row = made.admit(submission(request_id, 999))
    made.count([row], [tokens])
    return row


def last(made: Meter, request_id: str, tokens: int, incarnation: str) -> UsageEvent:
    return msgspec.structs.replace(
        numbered_event(tokens), request_id=request_id, incarnation=incarnation, finish_reason="stop"
    )


def settled(made: Meter, row: int, request_id: str, tokens: int, incarnation: str) -> None:
    made.settle(row, last(made, request_id, tokens, incarnation), None)
    made.end_step()


def issued(url: str) -> list[IssuedEvents]:
    with redis.Redis.from_url(url) as client:
        entries = client.xrange(ISSUED_STREAM)
    return [msgspec.msgpack.decode(fields[b"e"], type=IssuedEvents) for _, fields in entries]


def numbers(url: str) -> dict[str, EventNumber | None]:
    return {one.request_id: one.number for one in journal_events(url)}


def test_leftovers_go_on_with_the_numbers_of_the_incarnation_that_died(
    tmp_path: Path, redis_url: str
) -> None:
    with meter(tmp_path, redis_url, "one") as first:
        done, long, short = (counted(first, name, n) for name, n in (("a", 7), ("b", 300), ("c", 4)))
        first.checkpoint(long, last(first, "b", 300, "one"))
        settled(first, done, "a", 7, "one")
        wait_until(lambda: len(journal_events(redis_url)) == 2)
        first.count([long, short], [5, 1])
    with meter(tmp_path, redis_url, "two") as second:
        assert numbers(redis_url)["a"] == EventNumber(2, 300, 307)
        assert numbers(redis_url)["b"] == EventNumber(3, 307, 312), "what its checkpoint had counts once"
        assert numbers(redis_url)["c"] == EventNumber(4, 312, 317)
        assert billed(journal_events(redis_url))["b"].usage.completion_tokens == 305
        (ended,) = issued(redis_url)
        assert (ended.incarnation, ended.events, ended.tokens) == ("one", 4, 317)
        page = second.spooled(0)
        assert [(one.incarnation, one.events) for one in page.issued] == [("one", 4), ("two", 0)]
        assert page.set_aside == []


def test_a_clean_end_says_how_much_was_issued(tmp_path: Path, redis_url: str) -> None:
    with meter(tmp_path, redis_url, "one") as first:
        settled(first, counted(first, "a", 7), "a", 7, "one")
        wait_until(lambda: len(journal_events(redis_url)) == 1)
    again = Meter(
        state_dir=tmp_path, redis_url=redis_url, engine_id="engine-0", incarnation="two",
        on_settled=lambda _: None, on_failed=lambda _: None,
    )  # fmt: skip
    counted(again, "b", 3)
    again.close()
    assert [(one.incarnation, one.events, one.tokens) for one in issued(redis_url)] == [
        ("one", 1, 7),
        ("two", 1, 3),
    ]


@pytest.mark.parametrize("cut", [True, False], ids=["cut to nothing", "row overwritten"])
def test_rows_that_are_gone_are_missed_with_their_tokens(tmp_path: Path, redis_url: str, cut: bool) -> None:
    with meter(tmp_path, redis_url, "one") as first:
        for name, tokens in (("a", 40), ("b", 2), ("c", 9)):
            counted(first, name, tokens)
    if cut:
        os.truncate(tmp_path / TABLE, 0)
    else:
        with (tmp_path / TABLE).open("r+b") as file:
            file.seek(HEADER_LEN)
            file.write(os.urandom(ROW_LEN))
    with meter(tmp_path, redis_url, "two") as second:
        (ended,) = issued(redis_url)
        assert (ended.events, ended.tokens) == ((1, 51) if cut else (3, 51))
        assert set(numbers(redis_url)) == (set() if cut else {"b", "c"}), "one number is nobody's"
        assert second.num_set_aside == (0 if cut else 1)
    for aside in tmp_path.glob("*.damaged-*"):
        assert aside.stat().st_mode & 0o777 == 0o600
        assert aside.stat().st_size > ROW_LEN


def test_a_table_cut_by_unused_bytes_is_billed_and_the_file_kept(tmp_path: Path, redis_url: str) -> None:
    with meter(tmp_path, redis_url, "one") as first:
        counted(first, "a", 1938)
    os.truncate(tmp_path / TABLE, (tmp_path / TABLE).stat().st_size - 1000)
    with meter(tmp_path, redis_url, "two") as second:
        assert billed(journal_events(redis_url))["a"].usage == Usage(3, 0, 1938)
        assert [one.name.partition(".damaged")[0] for one in second.spooled(0).set_aside] == [TABLE]
        assert second.spooled(1).set_aside == [], "with the first page"


def test_without_totals_everything_is_billed_without_numbers(tmp_path: Path, redis_url: str) -> None:
    with meter(tmp_path, redis_url, "one") as first:
        counted(first, "a", 7)
    (tmp_path / TOTALS).write_bytes(os.urandom(4096))
    with meter(tmp_path, redis_url, "two"):
        assert numbers(redis_url) == {"a": None}
        assert issued(redis_url) == []


def test_a_start_that_dies_half_way_is_made_again_with_the_same_numbers(
    tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with meter(tmp_path, redis_url, "one") as first:
        counted(first, "a", 7)
        counted(first, "b", 8)

    class Died(Exception):
        pass

    def dies(*_: object) -> None:
        raise Died

    monkeypatch.setattr("engine.journal.meter._lock", lambda folder: os.open(folder, os.O_RDONLY))
    for number, step in enumerate(
        ("engine.journal.counters.DiskCounters.begin", "engine.journal.meter.remove_table")
    ):
        with monkeypatch.context() as patch:
            patch.setattr(step, dies)
            with pytest.raises(Died), meter(tmp_path, redis_url, f"dies-{number}"):
                pass
    with meter(tmp_path, redis_url, "two"):
        stamped = [one.number for one in journal_events(redis_url)]
        assert stamped[:4] == [EventNumber(1, 0, 7), EventNumber(2, 7, 15)] * 2
        assert stamped[4:] == [None, None], "the totals are the next one's already"
        assert {(one.incarnation, one.events, one.tokens) for one in issued(redis_url)} == {("one", 2, 15)}


def test_what_cannot_be_told_to_redis_is_remembered_on_disk(tmp_path: Path, redis_url: str) -> None:
    with meter(tmp_path, NOWHERE, "one") as first:
        settled(first, counted(first, "a", 7), "a", 7, "one")
        wait_until(lambda: first.num_spooled == 1)
    with meter(tmp_path, NOWHERE, "two"):
        pass
    with meter(tmp_path, redis_url, "three") as third:
        assert [(one.incarnation, one.events) for one in third.spooled(0).issued] == [
            ("one", 1),
            ("three", 0),
        ]
        wait_until(lambda: third.num_spooled == 0)
        assert numbers(redis_url) == {"a": EventNumber(1, 0, 7)}
    assert (tmp_path / SPOOL).stat().st_size == 0
    assert (tmp_path / HISTORY).stat().st_size > 0


def test_what_is_missed_has_no_number_that_an_event_has(tmp_path: Path, redis_url: str) -> None:
    """Killed after an event was written, and before that was noted."""
    with meter(tmp_path, redis_url, "one") as first:
        settled(first, counted(first, "a", 7), "a", 7, "one")
        wait_until(lambda: len(journal_events(redis_url)) == 1)
        counted(first, "b", 90)
    counters = DiskCounters(tmp_path / TOTALS)
    counters.issue(0, 0)
    counters.close()
    (tmp_path / TABLE).unlink()
    with meter(tmp_path, redis_url, "two"):
        assert numbers(redis_url) == {"a": EventNumber(1, 0, 7)}
        (ended,) = issued(redis_url)
        assert (ended.events, ended.tokens) == (2, 97), "number 2 is missing, with 90 tokens"


def test_totals_survive_damage_to_either_place(tmp_path: Path) -> None:
    path = tmp_path / "t"
    counters = DiskCounters(path)
    assert counters.last is None
    counters.begin("a" * 32)
    counters.count(30)
    counters.stamp(6)
    counters.issue(5, 20)
    counters.close()
    whole = path.read_bytes()
    for at in (0, 8, 64, 2048, 2056, 2112):
        path.write_bytes(whole[:at] + os.urandom(100) + whole[at + 100 :])
        again = DiskCounters(path)
        assert again.last == IncarnationTotals("a" * 32, 5, 20, 30, 6), at
        again.close()
    path.write_bytes(bytes(4096))
    again = DiskCounters(path)
    assert again.last is None
    again.close()
