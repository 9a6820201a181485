"""What `rootstock up` says is not in the ledger when it ends."""

from __future__ import annotations

from pathlib import Path

from cli.unbilled import not_in_ledger
from engine.journal.inflight_table import InflightTable
from engine.journal.meter import SPOOL, TABLE
from engine.journal.spool import Spool
from tests.support.journal import usage_event


def test_requests_in_flight_and_spooled_events_are_said_to_be_left(tmp_path: Path) -> None:
    assert (
        not_in_ledger([], 0)
        == not_in_ledger([tmp_path, tmp_path / "other"], 0)
        == "all usage is in the ledger"
    )
    assert not_in_ledger([tmp_path], 4) == "the next start bills 4 usage events in the journal"
    table = InflightTable(tmp_path / TABLE)
    rows = [table.admit(usage_event(f"req-{number}")) for number in range(13)]
    table.free(rows[3])
    table.close()
    assert not_in_ledger([tmp_path], 0) == "the next start bills 12 requests in flight on the engines' disk"
    spool = Spool(tmp_path / SPOOL)
    spool.append([b"event"])
    spool.close()
    assert not_in_ledger([tmp_path], 2) == (
        "the next start bills 12 requests in flight on the engines' disk, "
        "1 usage events on the engines' disk, 2 usage events in the journal"
    )
    (tmp_path / TABLE).unlink()
    (tmp_path / TABLE).mkdir()
    assert "cannot be read" in not_in_ledger([tmp_path], 0)
