"""Reads usage events out of a file of the journal that was set aside: a part of a spool, or a table."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from engine.journal.inflight_rows import HEADER_LEN, LIVE, MAGIC, OLD_MAGIC, ROW_LEN, WORD, recover_table
from engine.journal.meter import SPOOL, TABLE
from engine.journal.records import file_parts
from engine.journal.recovery import usage_at_crash
from engine.protocol import UsageEvent

_decoder = msgspec.msgpack.Decoder(UsageEvent)


class Salvaged(NamedTuple):
    """What could be read of a file."""

    events: list[UsageEvent]
    num_unreadable_bytes: int
    """Of a spool: bytes in no whole record."""
    damage: str
    """Of a table: what is wrong with it."""


def salvage(path: Path) -> Salvaged:
    """Reads everything readable in the file, without changing it. Raises OSError."""
    data = path.read_bytes()
    if _is_table(data):
        recovered = recover_table(path)
        return Salvaged([usage_at_crash(row.event) for row in recovered.rows], 0, recovered.damage)
    events: list[UsageEvent] = []
    num_unreadable_bytes = 0
    for part in file_parts(data):
        try:
            events.append(_decoder.decode(part.payload or b""))
        except msgspec.DecodeError:
            num_unreadable_bytes += part.end - part.start
    return Salvaged(events, num_unreadable_bytes, "")


class PendingUsage(NamedTuple):
    """Usage in the folder of an engine that is not running."""

    requests: int
    """In flight when it ended."""
    events: int
    """Not yet in Redis."""


def pending_usage(folder: Path) -> PendingUsage:
    """Counts what waits in an engine's folder for its next start, without changing it. Raises OSError."""
    spool = folder / SPOOL
    data = spool.read_bytes() if spool.exists() else b""
    events = sum(part.payload is not None for part in file_parts(data))
    return PendingUsage(len(recover_table(folder / TABLE).rows), events)


def _is_table(data: bytes) -> bool:
    """Returns whether it is a table, by its header or, where that is damaged, by any live row."""
    if data[:8] in (MAGIC, OLD_MAGIC):
        return True
    live = LIVE.to_bytes(WORD, "little")
    return any(data[at : at + WORD] == live for at in range(HEADER_LEN, len(data), ROW_LEN))
