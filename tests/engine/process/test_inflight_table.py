"""The in-flight table: counts that outlive the process, damage, growth, and what a step pays for it."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from engine.journal.inflight_rows import (
    BODY_START,
    HEADER_LEN,
    MAX_BODY_LEN,
    OLD_MAGIC,
    REASONING,
    ROW_LEN,
    recover_table,
)
from engine.journal.inflight_table import INITIAL_ROWS, InflightTable
from engine.protocol import Usage
from tests.support.journal import numbered_event
from tests.support.speed import calls_of_nothing, times_as_long


def test_counts_are_read_back_by_the_next_process(tmp_path: Path) -> None:
    table = InflightTable(tmp_path / "t")
    rows = [table.admit(numbered_event(0)) for _ in range(3)]
    table.touch(2000.5)
    table.add([rows[0], rows[2], rows[0]], [2, 1, 3])  # two choices of one request move in one step
    table.touch(2001.5)
    table.add([rows[0]], [2])
    started = msgspec.structs.replace(
        numbered_event(0), usage=Usage(3, 2, 1), scheduled_at=1999.0, first_token_at=2000.0, preemptions=1
    )
    table.update(rows[1], started)
    table.add([rows[1]], [4])
    table.free(rows[2])
    table.close()

    first, second = (row.event for row in InflightTable(tmp_path / "t").read())
    assert first.usage == Usage(3, 0, 7)
    assert (first.first_token_at, first.finished_at, first.finish_reason) == (2000.5, 2001.5, "error")
    assert second.usage == Usage(3, 2, 5)
    assert (second.scheduled_at, second.first_token_at, second.preemptions) == (1999.0, 2000.0, 1)


def test_an_event_older_than_the_counter_does_not_set_it_back(tmp_path: Path) -> None:
    table = InflightTable(tmp_path / "t")
    row = table.admit(numbered_event(0))
    table.add([row], [9])
    table.update(row, msgspec.structs.replace(numbered_event(0), usage=Usage(3, 1, 4)))
    assert table.read()[0].event.usage == Usage(3, 1, 9)
    table.close()


def test_kill_9_keeps_every_count_made(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from engine.journal.inflight_table import InflightTable\n"
        "from tests.support.journal import numbered_event\n"
        "table = InflightTable(Path(sys.argv[1]))\n"
        "rows = [table.admit(numbered_event(0)) for _ in range(50)]\n"
        "for _ in range(20):\n"
        "    table.add(rows, [3] * 50)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    process = subprocess.run([sys.executable, "-c", script, str(tmp_path / "t")], check=False)
    assert process.returncode == -9
    leftovers = InflightTable(tmp_path / "t").read()
    assert [one.event.usage.completion_tokens for one in leftovers] == [60] * 50


def test_the_table_grows_and_rows_are_given_again(tmp_path: Path) -> None:
    table = InflightTable(tmp_path / "t")
    rows = [table.admit(numbered_event(0)) for _ in range(INITIAL_ROWS + 1)]
    assert len(set(rows)) == INITIAL_ROWS + 1
    assert table.num_rows == 2 * INITIAL_ROWS
    table.add([rows[0], rows[-1]], [1, 2])
    assert [table.read()[row].event.usage.completion_tokens for row in (0, INITIAL_ROWS)] == [1, 2]
    table.free(rows[7])
    table.free(rows[-1])
    assert {table.admit(numbered_event(0)), table.admit(numbered_event(0))} == {rows[7], rows[-1]}
    assert table.num_live == INITIAL_ROWS + 1
    table.close()
    again = InflightTable(tmp_path / "t")
    assert (again.num_rows, len(again.read())) == (2 * INITIAL_ROWS, INITIAL_ROWS + 1)
    again.clear()
    assert (again.read(), again.num_live) == ([], 0)
    again.close()


def written(path: Path, at: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


def left_behind(path: Path, *tokens: int) -> None:
    """A dead engine's table: requests r1, r2, ... with so many completion tokens."""
    table = InflightTable(path)
    rows = [table.admit(numbered_event(number + 1)) for number in range(len(tokens))]
    for row, count in zip(rows, tokens, strict=True):
        table.update(row, msgspec.structs.replace(numbered_event(1), usage=Usage(3, 2, count)))
    table.close()


def found(path: Path) -> dict[str, tuple[int, int]]:
    """Cached and completion tokens, by request."""
    recovered = recover_table(path)
    return {
        row.event.request_id: (row.event.usage.cached_tokens, row.event.usage.completion_tokens)
        for row in recovered.rows
    }


@pytest.mark.parametrize(
    ("offset", "num_bytes"),
    [(0, 2), (8, 6), (16, 8), (24, 3), (0, 64), (ROW_LEN - 40, 40), (1000, 700)],
    ids=["state", "counter", "journaled", "cached", "beginning", "end", "unused"],
)
def test_a_row_damaged_in_one_place_is_read_whole(tmp_path: Path, offset: int, num_bytes: int) -> None:
    path = tmp_path / "t"
    left_behind(path, 41, 42)
    for content in (b"\xff" * num_bytes, bytes(num_bytes)):
        damaged = tmp_path / f"d{content[0]}"
        damaged.write_bytes(path.read_bytes())
        written(damaged, HEADER_LEN + offset, content)
        completion_tokens = 0 if (offset, content[0]) == (8, 0) else 41
        assert found(damaged) == {"r1": (2, completion_tokens), "r2": (2, 42)}, content[0]


@pytest.mark.parametrize("offset", [BODY_START, 100], ids=["body", "body later"])
def test_a_row_whose_body_is_damaged_costs_only_itself(tmp_path: Path, offset: int) -> None:
    path = tmp_path / "t"
    left_behind(path, 41, 42)
    written(path, HEADER_LEN + offset, b"\xff\xff")
    assert found(path) == {"r2": (2, 42)}
    assert recover_table(path).damage == "1 rows are unreadable"


@pytest.mark.parametrize("cut", [1, 1000, ROW_LEN, 100 * ROW_LEN + 7, (INITIAL_ROWS - 2) * ROW_LEN])
def test_a_table_that_was_cut_short_is_read_row_by_row(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "t"
    left_behind(path, 41, 42)
    os.truncate(path, path.stat().st_size - cut)
    assert found(path) == {"r1": (2, 41), "r2": (2, 42)}
    assert bool(recover_table(path).damage) == (cut % ROW_LEN != 0)


@pytest.mark.parametrize("content", [b"\xff" * 24, bytes(HEADER_LEN)], ids=["garbage", "zeros"])
def test_a_table_without_a_header_is_read_row_by_row(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t"
    left_behind(path, 41, 42)
    written(path, 0, content)
    assert found(path) == {"r1": (2, 41), "r2": (2, 42)}
    assert recover_table(path).damage == "its header is unreadable"


def test_times_that_cannot_be_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "t"
    left_behind(path, 41)
    written(path, HEADER_LEN + 32, b"\xff" * 24)
    (row,) = recover_table(path).rows
    assert (row.event.scheduled_at, row.event.first_token_at, row.event.preemptions) == (None, None, 0)


@pytest.mark.parametrize(("stored", "read"), [(30, 30), (41, 41), (42, 0), (0x7878787878787878, 0)])
def test_reasoning_tokens_are_kept_as_of_the_last_update(tmp_path: Path, stored: int, read: int) -> None:
    """More than all completion tokens is the end of a long body that an older release wrote there."""
    path = tmp_path / "t"
    table = InflightTable(path)
    event = numbered_event(1)
    row = table.admit(event)
    table.add([row], [40])
    table.update(row, msgspec.structs.replace(event, usage=Usage(3, 0, 41, 30)))
    table.close()
    assert [left.event.usage for left in recover_table(path).rows] == [Usage(3, 0, 41, 30)]
    written(path, HEADER_LEN + REASONING * 8, struct.pack("=Q", stored))
    assert [left.event.usage.reasoning_tokens for left in recover_table(path).rows] == [read]


def test_a_table_of_the_release_before_is_read(tmp_path: Path) -> None:
    """Which kept what it knew of a row once, at its beginning, and called a live one 1."""
    path = tmp_path / "t"
    left_behind(path, 41, 42)
    data = bytearray(path.read_bytes())
    data[:8] = OLD_MAGIC
    for row in range(2):
        at = HEADER_LEN + row * ROW_LEN
        data[at : at + 8] = struct.pack("=Q", 1)
        data[at + 16 : at + 24] = struct.pack("=Q", 3)
        data[at + ROW_LEN - 32 : at + ROW_LEN] = bytes(32)
    path.write_bytes(data)
    recovered = recover_table(path)
    assert found(path) == {"r1": (2, 41), "r2": (2, 42)}
    assert (recovered.damage, recovered.is_current) == ("", False)
    assert [row.owed for row in recovered.rows] == [41, 42]


@pytest.mark.parametrize(
    "content", [b"x", b"\x00" * (HEADER_LEN + ROW_LEN), b"RSINFL02", b"RSINFL02" + b"\x07" * 9000]
)
def test_a_file_that_is_no_table_is_damage(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t"
    path.write_bytes(content)
    recovered = recover_table(path)
    assert recovered.rows == []
    assert recovered.damage
    assert not recovered.is_current
    assert path.read_bytes() == content


def test_an_event_too_large_for_a_row_is_refused(tmp_path: Path) -> None:
    table = InflightTable(tmp_path / "t")
    large = msgspec.structs.replace(numbered_event(1), labels={"note": "x" * MAX_BODY_LEN})
    with pytest.raises(ValueError, match="labels"):
        table.admit(large)
    assert table.num_live == 0
    table.close()


def test_a_full_disk_is_an_error_not_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_space)
    with pytest.raises(OSError, match="No space"):
        InflightTable(tmp_path / "t")


def test_counting_a_step_of_256_rows_costs_less_than_8_calls_of_nothing_per_row(tmp_path: Path) -> None:
    table = InflightTable(tmp_path / "t")
    rows, counts = [table.admit(numbered_event(number)) for number in range(256)], [1] * 256

    def step() -> None:
        table.touch(1.0)
        table.add(rows, counts)

    assert times_as_long(step, than=calls_of_nothing(256)) < 8
    table.close()
