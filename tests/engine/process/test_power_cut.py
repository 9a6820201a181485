"""A machine that loses power keeps of the engine's files what was synced: here copies, made at each fsync."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from engine.journal.inflight_rows import recover_table
from engine.journal.meter import SPOOL, TABLE, TOTALS
from tests.engine.process.engines import billed, journal_events
from tests.engine.process.test_recovery import counted, issued, meter, settled
from tests.engine.process.test_usage_journal import NOWHERE, wait_until


@pytest.fixture
def survives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of `tmp_path/engine` as they were when they were last synced."""
    folder = tmp_path / "survives"
    folder.mkdir()
    fsync = os.fsync

    def synced(fd: int) -> None:
        fsync(fd)
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if path.is_file() and path.parent == tmp_path / "engine":
            shutil.copyfile(path, folder / f"{path.name}.new")
            (folder / f"{path.name}.new").rename(folder / path.name)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr("engine.journal.disk_sync.SYNC_SECONDS", 0.05)
    return folder


def tokens_in(table: Path) -> int:
    return sum(row.event.usage.completion_tokens for row in recover_table(table).rows)


def test_a_power_cut_takes_what_was_counted_since_the_last_sync_and_no_more(
    tmp_path: Path, survives: Path, redis_url: str
) -> None:
    with meter(tmp_path / "engine", NOWHERE, "one") as first:
        settled(first, counted(first, "ended", 30), "ended", 30, "one")
        row = counted(first, "open", 100)
        wait_until(lambda: (survives / SPOOL).exists() and tokens_in(survives / TABLE) == 100)
        wait_until(lambda: (survives / TOTALS).exists())
        cut = tmp_path / "cut"
        shutil.copytree(survives, cut)
        first.count([row], [50])
        assert tokens_in(tmp_path / "engine" / TABLE) == 150
        wait_until(lambda: tokens_in(survives / TABLE) == 150)
    with meter(cut, redis_url, "two") as second:
        wait_until(lambda: second.num_spooled == 0)
        tokens = {
            name: one.usage.completion_tokens for name, one in billed(journal_events(redis_url)).items()
        }
        assert tokens == {"open": 100, "ended": 30}


def test_rows_that_a_power_cut_took_are_missed_where_the_totals_were_synced_after_them(
    tmp_path: Path, survives: Path, redis_url: str
) -> None:
    with meter(tmp_path / "engine", NOWHERE, "one") as first:
        wait_until(lambda: (survives / TABLE).exists())
        old = (survives / TABLE).read_bytes()
        counted(first, "open", 100)
        wait_until(lambda: tokens_in(survives / TABLE) == 100)
        now = (survives / TOTALS).stat().st_mtime_ns
        wait_until(lambda: (survives / TOTALS).stat().st_mtime_ns > now)
        cut = tmp_path / "cut"
        shutil.copytree(survives, cut)
        (cut / TABLE).write_bytes(old)
    with meter(cut, redis_url, "two"):
        assert [(one.events, one.tokens) for one in issued(redis_url)] == [(1, 100)]
