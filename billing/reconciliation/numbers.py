"""Finds numbered usage events that the ledger never received: each gap, with the number of its events.

A gap is what is missing between two events that arrived, or after the last up to the number the engine says
it issued. Events on an engine's disk or in the journal are not missing. Events missing for less than two
minutes are on their way, since another worker may have them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

import redis.asyncio

from billing.errors import MalformedEvent
from billing.event_numbers.ranges import Gap, Incarnation, NumberRange, gaps, merged, ranges_of
from billing.event_numbers.repository import EventNumbers
from billing.folding import decode
from billing.reconciliation.differences import Difference, OnItsWay
from billing.reconciliation.journal import entries_in
from billing.reconciliation.spools import SpoolComparison
from db.session import EVERY_TENANT, Database
from engine.protocol import JOURNAL_STREAM, IssuedEvents, UsageEvent

LATE_AFTER = timedelta(minutes=2)
"""Workers drain the journal every second, and take over from a dead worker within ten."""


class NumberComparison:
    """Compares the numbers once, after the engines' disks were read. Then has what is on its way."""

    def __init__(
        self, database: Database, client: redis.asyncio.Redis, spools: SpoolComparison, now: datetime
    ) -> None:
        """`client` must return bytes."""
        self._database = database
        self._redis = client
        self._spools = spools
        self._now = now
        self.on_their_way: list[OnItsWay] = []

    async def compare(self, start: datetime, end: datetime) -> list[Difference]:
        """Returns gaps that became known in [start, end). Raises DatabaseUnavailable, RedisError."""
        # Read in the direction of flow, disks first and the ledger last, so that a moving event is seen.
        waiting = [self._spools.numbers, await self._in_journal()]
        async with self._database.read(EVERY_TENANT) as session:
            numbers = EventNumbers(session)
            issued = _largest([*await numbers.ended(start), *self._spools.issued], start)
            named = {incarnation for _, incarnation in (*issued, *(one for part in waiting for one in part))}
            known = await numbers.ranges(start, named)
        found = []
        for incarnation in sorted({*known, *issued}):
            ranges = merged(one for part in (known, *waiting) for one in part.get(incarnation, ()))
            for gap in _gaps(ranges, issued.get(incarnation)):
                if self._now - gap.noted_at <= LATE_AFTER:
                    self.on_their_way.append(OnItsWay("", _named(incarnation, gap), gap.noted_at))
                elif start <= gap.noted_at < end:
                    what = _named(incarnation, gap)
                    found.append(Difference("event_numbers", "", what, gap.noted_at, gap.num_events, 0))
        return found

    async def _in_journal(self) -> Mapping[Incarnation, list[NumberRange]]:
        events: list[UsageEvent] = []
        async for page in entries_in(self._redis, JOURNAL_STREAM):
            for _, fields in page:
                try:
                    events.append(decode(fields.get(b"e")))
                except MalformedEvent:
                    continue  # the dead letters report it
        return ranges_of(events, self._now)


def _gaps(ranges: list[NumberRange], issued: IssuedEvents | None) -> list[Gap]:
    if issued is None:
        return gaps(ranges)
    return gaps(ranges, issued.events, issued.tokens, datetime.fromtimestamp(issued.at, UTC))


def _largest(issued: Iterable[IssuedEvents], since: datetime) -> dict[Incarnation, IssuedEvents]:
    """Returns the largest report of each incarnation that issued anything since then."""
    found: dict[Incarnation, IssuedEvents] = {}
    for one in issued:
        if one.events and one.at >= since.timestamp():
            known = found.setdefault((one.engine_id, one.incarnation), one)
            if one.events > known.events:
                found[one.engine_id, one.incarnation] = one
    return found


def _named(incarnation: Incarnation, gap: Gap) -> str:
    engine_id, life = incarnation
    events = (
        f"usage event {gap.first} is"
        if gap.num_events == 1
        else f"usage events {gap.first} to {gap.last} are"
    )
    return f"{engine_id}, incarnation {life}: {events} missing, with {gap.tokens} completion tokens"
