"""Compares the events on engines' disks with the ledger.

An engine keeps events on its disk until the journal's Redis has them, and reports these events on request.
What the ledger lacks of them is on its way for as long as an outage may last; after that, or when the two
disagree on a request, it is a difference. An engine that does not respond counts as not compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from billing.errors import MalformedEvent
from billing.event_numbers.ranges import Incarnation, NumberRange, ranges_of
from billing.folding import Measured, decode, measure, merge
from billing.reconciliation.differences import Difference, OnItsWay
from billing.reconciliation.repository import BooksRepository
from db.session import EVERY_TENANT, Database
from engine.client import EngineClient, EngineError
from engine.protocol import IssuedEvents, SetAside, Spooled, UsageEvent
from routing.endpoints import engines_at
from telemetry.tasks import gather_all

LATE_AFTER = timedelta(hours=1)
"""The time since an engine wrote an event to disk. A restarted Redis is back in a minute."""
ANSWERED_WITHIN = 5.0
"""Seconds for an engine to report all events on its disk, including the connection."""
MOST_HELD = 100_000
"""The oldest events of one engine that are compared."""
_BATCH = 1000
COUNTS = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")
CUT_OFF = "error"
"""The finish reason of a request whose engine died: it is billed for what was counted by then."""


class SpoolComparison:
    """Reads every engine's disk once. Then has what is on its way, and which engines did not respond."""

    def __init__(self, database: Database, endpoints: Sequence[str], now: datetime) -> None:
        self._database = database
        self._endpoints = endpoints
        self._now = now
        self.on_their_way: list[OnItsWay] = []
        """The oldest first."""
        self.why_not = ""
        """The engines that did not respond; empty when all did."""
        self.numbers: dict[Incarnation, list[NumberRange]] = {}
        """The number ranges of the events on disk."""
        self.issued: list[IssuedEvents] = []
        """What the engines report their incarnations to have issued."""

    async def compare(self) -> list[Difference]:
        """Returns the differences. Raises DatabaseUnavailable."""
        self._endpoints = await engines_at(self._endpoints)
        answers = await gather_all(*(_disk(endpoint) for endpoint in self._endpoints))
        self.why_not = "; ".join(answer for answer in answers if isinstance(answer, str))
        disks = {
            endpoint: answer
            for endpoint, answer in zip(self._endpoints, answers, strict=True)
            if not isinstance(answer, str)
        }
        found: list[Difference] = []
        held: dict[tuple[float, str], _Held] = {}
        events: list[UsageEvent] = []
        for payload in (one for disk in disks.values() for one in disk.events):
            try:
                event = decode(payload)
                _keep(held, event)
                events.append(event)
            except MalformedEvent as error:
                found.append(Difference("spools", "", f"an event on an engine's disk: {error}", None, 1, 0))
        self.numbers = ranges_of(events)
        for endpoint, disk in disks.items():
            found += [_set_aside(endpoint, one) for one in disk.set_aside]
            # Events beyond the limit cannot be told from missing ones, so the last report is left out.
            self.issued += disk.issued if len(disk.events) <= MOST_HELD else disk.issued[:-1]
        waiting = [held[key] for key in sorted(held)]
        for first in range(0, len(waiting), _BATCH):
            found += await self._beside_the_ledger(waiting[first : first + _BATCH])
        self.on_their_way += [
            OnItsWay("", f"what comes after {MOST_HELD} events on the disk of {endpoint}", self._now)
            for endpoint, disk in disks.items()
            if len(disk.events) > MOST_HELD
        ]
        self.on_their_way.sort(key=lambda one: (one.since, one.what))
        return found

    async def _beside_the_ledger(self, batch: Sequence[_Held]) -> list[Difference]:
        async with self._database.read(EVERY_TENANT) as session:
            rows = await BooksRepository(session).standing([one.row for one in batch])
        found: list[Difference] = []
        for one in batch:
            record = rows.get(one.row.request_id)
            contradictions = [] if record is None else _contradictions(one.row, record)
            found += contradictions
            missing = _missing(one.row, record)
            if not missing or contradictions:
                continue
            if self._now - one.since <= LATE_AFTER:
                self.on_their_way.append(_on_its_way(one, missing))
            else:
                found += [
                    _difference(
                        one.row, f"{name.replace('_', ' ')}, since {one.since:%Y-%m-%d %H:%M}", *counts
                    )
                    for name, counts in missing.items()
                ]
        return found


class _Held:
    """The events of one request on engines' disks, merged."""

    __slots__ = ("row", "since")

    def __init__(self, row: Measured) -> None:
        self.row = row
        self.since = datetime.fromtimestamp(row.recorded_at, UTC)
        """When the oldest of the events was recorded."""


async def _disk(endpoint: str) -> Spooled | str:
    """Returns what is on one engine's disk, or the reason why that is unknown."""
    client = EngineClient(endpoint, "books")
    await client.start()
    try:
        return await client.disk(ANSWERED_WITHIN, MOST_HELD)
    except EngineError as error:
        return str(error)
    finally:
        await client.close()


def _set_aside(endpoint: str, file: SetAside) -> Difference:
    what = (
        f"{file.name}, {file.size} damaged bytes, is set aside on the disk of {endpoint}: import what can be "
        "read with `rootstock billing import-spool`, then remove it"
    )
    return Difference("spools", "", what, None, 0, 1)


def _keep(held: dict[tuple[float, str], _Held], event: UsageEvent) -> None:
    one = _Held(measure(event))
    known = held.setdefault(one.row.key, one)
    if known is not one:
        known.row = merge(known.row, one.row)
        known.since = min(known.since, one.since)


def _contradictions(row: Measured, record: Any) -> list[Difference]:
    """Returns where the disk and the ledger disagree."""
    found = [
        _difference(row, f"{name}: {on_disk!r} there, {in_ledger!r} in the ledger", 1, 0)
        for name, on_disk, in_ledger in _fixed(row, record)
        if on_disk != in_ledger
    ]
    if row.finish_reason not in (None, CUT_OFF):
        found += [
            _difference(row, name.replace("_", " "), getattr(row, name), getattr(record, name))
            for name in COUNTS
            if getattr(record, name) > getattr(row, name)
        ]
    return found


def _fixed(row: Measured, record: Any) -> Iterable[tuple[str, Any, Any]]:
    names = BooksRepository.FIXED
    return ((name, getattr(row, name), getattr(record, name)) for name in names)


def _missing(row: Measured, record: Any) -> dict[str, tuple[int, int]]:
    """Returns what the ledger has less of: (on disk, in the ledger) by name."""
    if record is None:
        return {"requests": (1, 0)} | {name: (getattr(row, name), 0) for name in COUNTS if getattr(row, name)}
    return {
        name: (getattr(row, name), getattr(record, name))
        for name in COUNTS
        if getattr(record, name) < getattr(row, name)
    }


def _difference(row: Measured, what: str, expected: int, found: int) -> Difference:
    at = datetime.fromtimestamp(row.submitted_at, UTC)
    what = f"{row.request_id} on the disk of {row.engine_id}: {what}"
    return Difference("spools", row.tenant_id, what, at, expected, found)


def _on_its_way(one: _Held, missing: dict[str, tuple[int, int]]) -> OnItsWay:
    counts = ", ".join(
        f"{there - here} {name.replace('_', ' ')}"
        for name, (there, here) in missing.items()
        if name in COUNTS
    )
    what = f"{one.row.request_id} on the disk of {one.row.engine_id}" + (f": {counts}" if counts else "")
    return OnItsWay(one.row.tenant_id, what, one.since)
