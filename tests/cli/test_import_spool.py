"""`rootstock billing import-spool`: what can be read of a file that an engine set aside is billed, once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from sqlalchemy import text

from billing.folding import measure
from billing.repository import LedgerWriter
from cli import service_access
from db.session import EVERY_TENANT
from engine.journal.inflight_table import InflightTable
from engine.journal.records import encode_record
from engine.protocol import EventNumber, UsageEvent
from tests.cli.commands import refusal, run
from tests.support.journal import usage_event

AT = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0).timestamp()


def event(number: int, completion: int = 50) -> UsageEvent:
    total = 50 * number
    return usage_event(
        f"req-{number}", 10, completion, submitted_at=AT, number=EventNumber(number, total - 50, total)
    )


async def ledger(environment: Mapping[str, str]) -> dict[str, int]:
    async with (
        service_access.open_services(environment) as services,
        services.database.read(EVERY_TENANT) as session,
    ):
        rows = await session.execute(text("SELECT request_id, completion_tokens FROM usage_records"))
        return {row[0]: row[1] for row in rows}


async def test_a_piece_of_a_spool_is_billed_and_importing_again_changes_nothing(
    environment: Mapping[str, str], tmp_path: Path
) -> None:
    async with (
        service_access.open_services(environment) as services,
        services.database.write(EVERY_TENANT) as session,
    ):
        await LedgerWriter(session).upsert([measure(event(1)), measure(event(2, 20))])
    file = tmp_path / "usage.spool.tail-1795000000000000000"
    records = [encode_record(msgspec.msgpack.encode(event(number))) for number in range(1, 6)]
    damaged = records[3][:30] + b"\xff" + records[3][31:]
    bad = encode_record(msgspec.msgpack.encode(event(9, -1)))
    file.write_bytes(b"".join([*records[:3], damaged, records[4], bad]))
    shown = await asyncio.to_thread(run, "billing", "import-spool", str(file))
    assert f"{file.name}: 4 usage events of 4 requests could be read" in shown
    assert f"{len(damaged)} bytes could not be read" in shown
    assert "rejected an event: completion_tokens is -1" in shown
    assert "added 2 requests to the ledger, extended 1, 1 were there already" in shown
    assert "added 130 completion tokens" in shown
    assert await ledger(environment) == {"req-1": 50, "req-2": 50, "req-3": 50, "req-5": 50}
    again = await asyncio.to_thread(run, "billing", "import-spool", str(file))
    assert "added 0 requests to the ledger, extended 0, 4 were there already; added 0 completion" in again
    assert file.exists(), "to be removed by a person"
    async with (
        service_access.open_services(environment) as services,
        services.database.read(EVERY_TENANT) as session,
    ):
        query = "SELECT first_number, last_number FROM usage_event_ranges ORDER BY 1"
        assert [tuple(row) for row in await session.execute(text(query))] == [(1, 3), (5, 5)]


async def test_a_damaged_table_is_read_row_by_row(environment: Mapping[str, str], tmp_path: Path) -> None:
    file = tmp_path / "inflight.bin.corrupt-1795000000000000000"
    table = InflightTable(file)
    for number in (1, 2):
        table.admit(event(number))
    table.close()
    os.truncate(file, file.stat().st_size - 1000)
    with file.open("r+b") as opened:
        opened.write(b"\xff" * 16)
    shown = await asyncio.to_thread(run, "billing", "import-spool", str(file))
    assert "2 usage events of 2 requests could be read" in shown
    assert "the rest is lost: its header is unreadable; its length of" in shown
    assert await ledger(environment) == {"req-1": 50, "req-2": 50}


async def test_a_file_that_is_not_there_or_says_nothing(
    environment: Mapping[str, str], tmp_path: Path
) -> None:
    assert "cannot be read: No such file" in await asyncio.to_thread(
        refusal, "billing", "import-spool", str(tmp_path / "nowhere")
    )
    file = tmp_path / "usage.spool.damaged-1"
    file.write_bytes(b"\x07" * 300)
    shown = await asyncio.to_thread(run, "billing", "import-spool", str(file))
    assert "0 usage events of 0 requests could be read" in shown
    assert "300 bytes could not be read" in shown
