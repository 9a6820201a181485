"""The in-flight table: counts that outlive the process, damage, growth, and what a step pays for it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from engine.inflight import HEADER_LEN, INITIAL_ROWS, MAX_BODY_LEN, ROW_LEN, InflightTable
from engine.protocol import Usage
from tests.engine.process.test_journal import event
from tests.support.speed import calls_of_nothing, times_as_long


def test_counts_are_read_back_by_the_next_process(tmp_path: Path) -> None:
    table = InflightTable(tmp_path / "t")
    rows = [table.admit(event(0)) for _ in range(3)]
    table.touch(2000.5)
    table.add([rows[0], rows[2], rows[0]], [2, 1, 3])  # two choices of one request move in one step
    table.touch(2001.5)
    table.add([rows[0]], [2])
    started = msgspec.structs.replace(
        event(0), usage=Usage(3, 2, 1), scheduled_at=1999.0, first_token_at=2000.0, preemptions=1
    )
    table.update(rows[1], started)
    table.add([rows[1]], [4])
    table.free(rows[2])
    table.close()

    first, second = InflightTable(tmp_path / "t").read()
    assert first.usage == Usage(3, 0, 7)
    assert (first.first_token_at, first.finished_at, first.finish_reason) == (2000.5, 2001.5, "error")
    assert second.usage == Usage(3, 2, 5)
    assert (second.scheduled_at, second.first_token_at, second.preemptions) == (1999.0, 2000.0, 1)


def test_an_event_older_than_the_counter_does_not_set_it_back(tmp_path: Path) -> None:
    table = InflightTable(tmp_path / "t")
    row = table.admit(event(0))
    table.add([row], [9])
    table.update(row, msgspec.structs.replace(event(0), usage=Usage(3, 1, 4)))
    assert table.read()[0].usage == Usage(3, 1, 9)
    table.close()


def test_kill_9_keeps_every_count_made(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from engine.inflight import InflightTable\n"
        "from tests.engine.process.test_journal import event\n"
        "table = InflightTable(Path(sys.argv[1]))\n"
        "rows = [table.admit(event(0)) for _ in range(50)]\n"
        "for _ in range(20):\n"
        "    table.add(rows, [3] * 50)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    process = subprocess.run([sys.executable, "-c", script, str(tmp_path / "t")], check=False)
    assert process.returncode == -9
    leftovers = InflightTable(tmp_path / "t").read()
    assert [one.usage.completion_tokens for one in leftovers] == [60] * 50


def test_the_table_grows_and_rows_are_given_again(tmp_path: Path) -> None:
    table = InflightTable(tmp_path / "t")
    rows = [table.admit(event(0)) for _ in range(INITIAL_ROWS + 1)]
    assert len(set(rows)) == INITIAL_ROWS + 1
    assert table.num_rows == 2 * INITIAL_ROWS
    table.add([rows[0], rows[-1]], [1, 2])
    assert [table.read()[row].usage.completion_tokens for row in (0, INITIAL_ROWS)] == [1, 2]
    table.free(rows[7])
    table.free(rows[-1])
    assert {table.admit(event(0)), table.admit(event(0))} == {rows[7], rows[-1]}
    assert table.num_live == INITIAL_ROWS + 1
    table.close()
    again = InflightTable(tmp_path / "t")
    assert (again.num_rows, len(again.read())) == (2 * INITIAL_ROWS, INITIAL_ROWS + 1)
    again.clear()
    assert (again.read(), again.num_live) == ([], 0)
    again.close()


@pytest.mark.parametrize(
    "offset", [0, 56, 64, 100], ids=["state", "length and checksum", "body", "body later"]
)
def test_a_damaged_row_costs_only_itself(tmp_path: Path, offset: int) -> None:
    path = tmp_path / "t"
    table = InflightTable(path)
    first, _ = table.admit(event(1)), table.admit(event(2))
    table.close()
    with path.open("r+b") as file:
        file.seek(HEADER_LEN + first * ROW_LEN + offset)
        file.write(b"\xff\xff")
    table = InflightTable(path)
    assert [one.request_id for one in table.read()] == ["r2"]
    table.clear()
    assert table.num_live == 0
    table.close()


@pytest.mark.parametrize(
    "content", [b"x", b"\x00" * (HEADER_LEN + ROW_LEN), b"RSINFL01", b"RSINFL01" + b"\x07" * 9000]
)
def test_a_file_that_is_no_table_is_kept_aside(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t"
    path.write_bytes(content)
    table = InflightTable(path)
    assert table.read() == []
    table.add([table.admit(event(1))], [1])
    table.close()
    (aside,) = tmp_path.glob("t.corrupt-*")
    assert aside.read_bytes() == content
    assert len(InflightTable(path).read()) == 1


def test_an_event_too_large_for_a_row_is_refused(tmp_path: Path) -> None:
    table = InflightTable(tmp_path / "t")
    large = msgspec.structs.replace(event(1), labels={"note": "x" * MAX_BODY_LEN})
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
    rows, counts = [table.admit(event(number)) for number in range(256)], [1] * 256

    def step() -> None:
        table.touch(1.0)
        table.add(rows, counts)

    assert times_as_long(step, than=calls_of_nothing(256)) < 8
    table.close()
