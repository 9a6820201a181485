"""An engine that stops itself says why, to readers and to whoever starts it again; and what it leaves."""

from __future__ import annotations

import asyncio
import errno
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.client import EngineGone
from engine.journal.inflight_rows import recover_table
from engine.journal.inflight_table import InflightTable
from engine.journal.meter import SPOOL, TABLE
from engine.journal.salvage import PendingUsage, pending_usage
from engine.journal.spool import Spool
from engine.journal.usage_journal import JournalError
from engine.protocol import TokenChunk
from engine.stop_reason import NAME, StopReason
from tests.engine.process.conftest import Connect
from tests.engine.process.engines import EngineProcess, engine_process, read, submission, tokens_of, until
from tests.engine.process.test_usage_journal import NOWHERE
from tests.support.journal import numbered_event


@pytest.fixture
def away(folder: Path) -> Iterator[EngineProcess]:
    """An engine without Redis: its usage goes to its disk."""
    for process in engine_process(folder, NOWHERE):
        process.start()
        yield process


async def test_an_engine_whose_disk_takes_no_more_says_so_and_leaves_all_usage_to_the_next(
    away: EngineProcess, connect: Connect
) -> None:
    client = await connect(away)
    await read(client.submit(submission("done", 3)))
    received: list[TokenChunk] = []

    async def endless() -> None:
        async for chunks in client.submit(submission("open", 5000)):
            received.extend(chunks)

    reader = asyncio.create_task(endless())
    await until(lambda: len(received) > 3)
    # No file of it grows from here on, its log among them.
    pid = away._process.pid  # type: ignore[union-attr]
    resource.prlimit(pid, resource.RLIMIT_FSIZE, ((away.state_dir / SPOOL).stat().st_size,) * 2)
    with pytest.raises(EngineGone):
        await read(client.submit(submission("last", 3)))
    with pytest.raises(EngineGone):
        await reader
    assert await asyncio.to_thread(away.wait) == 1
    told = (away.state_dir / NAME).read_text().strip()
    assert told.startswith("stopped: cannot write usage to Redis or to the spool: [Errno 27]")
    left = pending_usage(away.state_dir)
    assert left == PendingUsage(requests=2, events=1)
    rows = recover_table(away.state_dir / TABLE).rows
    billed = {row.event.request_id: row.event.usage.completion_tokens for row in rows}
    assert billed["last"] == 3
    assert billed["open"] >= len(tokens_of(received)) > 0


def test_a_full_disk_is_named_with_its_folder(tmp_path: Path) -> None:
    reason = StopReason(tmp_path)
    assert (tmp_path / NAME).read_text().strip() == ""
    full = OSError(errno.ENOSPC, "No space left on device")
    try:
        raise JournalError(f"usage can be written nowhere: {full}") from full
    except JournalError as error:
        reason.write(error)
    expected = f"stopped: disk full at {tmp_path}: usage can be written nowhere: [Errno 28] No space"
    assert (tmp_path / NAME).read_text().startswith(expected)
    StopReason(tmp_path)
    assert (tmp_path / NAME).read_text().strip() == "", "the next start has no reason to stop"


def test_an_engine_that_cannot_start_says_why(tmp_path: Path) -> None:
    folder = tmp_path / "engine" / "engine-0"
    (folder / TABLE).mkdir(parents=True)
    for process in engine_process(tmp_path, NOWHERE, endpoint=f"ipc://{tmp_path}/e.sock"):
        process.start()
        assert process.wait() == 1
    assert "Is a directory" in (folder / NAME).read_text()


def test_what_a_killed_engine_left_is_counted_without_changing_it(tmp_path: Path) -> None:
    assert pending_usage(tmp_path) == PendingUsage(0, 0)
    table = InflightTable(tmp_path / TABLE)
    for number in range(12):
        table.admit(numbered_event(number))
    table.close()
    spool = Spool(tmp_path / SPOOL)
    spool.append([b"a", b"b", b"c"])
    spool.close()
    before = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    assert pending_usage(tmp_path) == PendingUsage(12, 3)
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == before
