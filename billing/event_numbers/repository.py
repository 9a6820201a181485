"""Queries event numbers. The session's scope is every tenant, since an engine serves all tenants."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from billing.event_numbers.ranges import Incarnation, NumberRange, is_possible, merged, ranges_of
from billing.rollups import hold_ledger
from engine.protocol import IssuedEvents, UsageEvent

_COLUMNS = "first_number, last_number, tokens_before, tokens_after, noted_at"
_TAKE_OUT = text(
    f"""
    DELETE FROM usage_event_ranges WHERE engine_id = :engine_id AND incarnation = :incarnation
        AND first_number <= CAST(:last AS bigint) + 1 AND last_number >= CAST(:first AS bigint) - 1
    RETURNING {_COLUMNS}
    """
)
_PUT_IN = text(
    f"""
    INSERT INTO usage_event_ranges (engine_id, incarnation, {_COLUMNS})
    VALUES (:engine_id, :incarnation, :first, :last, :tokens_before, :tokens_after, :noted_at)
    """
)
_END = text(
    """
    INSERT INTO engine_incarnations AS known (engine_id, incarnation, events, tokens, ended_at)
    VALUES (:engine_id, :incarnation, :events, :tokens, :ended_at)
    ON CONFLICT (engine_id, incarnation) DO UPDATE
    SET events = excluded.events, tokens = excluded.tokens WHERE excluded.events > known.events
    """
)
_RANGES = text(
    f"""
    SELECT engine_id, incarnation, {_COLUMNS} FROM usage_event_ranges r
    WHERE noted_at >= :since OR EXISTS (
        SELECT FROM usage_event_ranges o WHERE o.engine_id = r.engine_id AND o.incarnation = r.incarnation
            AND o.noted_at >= :since
    ) OR EXISTS (
        SELECT FROM engine_incarnations i WHERE i.engine_id = r.engine_id AND i.incarnation = r.incarnation
            AND i.ended_at >= :since
    ) OR incarnation = ANY(:named)
    ORDER BY engine_id, incarnation, first_number
    """
)
_ENDED = text(
    """
    SELECT engine_id, incarnation, events, tokens, ended_at FROM engine_incarnations WHERE ended_at >= :since
    """
)


class EventNumbers:
    """Records event numbers by engine and incarnation."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def note(self, events: Iterable[UsageEvent], now: datetime) -> None:
        """Records the numbers of events whose rows this transaction writes. There is one writer at a time, as
        for the ledger.
        """
        found = ranges_of(events, now)
        if found:
            await hold_ledger(self.session)
        for (engine_id, incarnation), ranges in found.items():
            names = {"engine_id": engine_id, "incarnation": incarnation}
            reach = {"first": ranges[0].first, "last": ranges[-1].last}
            rows = await self.session.execute(_TAKE_OUT, names | reach)
            known = [NumberRange(*row) for row in rows]
            await self.session.execute(
                _PUT_IN,
                [
                    names
                    | {
                        "first": one.first,
                        "last": one.last,
                        "tokens_before": one.tokens_before,
                        "tokens_after": one.tokens_after,
                        "noted_at": one.noted_at,
                    }
                    for one in merged([*known, *ranges])
                ],
            )

    async def end(self, issued: Iterable[IssuedEvents]) -> None:
        """Records how many events ended incarnations issued; of several reports the largest counts."""
        values = [
            {
                "engine_id": one.engine_id,
                "incarnation": one.incarnation,
                "events": one.events,
                "tokens": one.tokens,
                "ended_at": datetime.fromtimestamp(one.at, UTC),
            }
            for one in issued
            if is_possible(one)
        ]
        if values:
            await self.session.execute(_END, values)

    async def ranges(self, since: datetime, named: Iterable[str]) -> dict[Incarnation, list[NumberRange]]:
        """Returns all ranges of incarnations that had an event or ended since then, and of those named."""
        found: dict[Incarnation, list[NumberRange]] = {}
        for row in await self.session.execute(_RANGES, {"since": since, "named": list(named)}):
            found.setdefault((row[0], row[1]), []).append(NumberRange(*row[2:]))
        return found

    async def ended(self, since: datetime) -> list[IssuedEvents]:
        """Returns what incarnations issued that ended since then."""
        rows = await self.session.execute(_ENDED, {"since": since})
        return [
            IssuedEvents(row.engine_id, row.incarnation, row.events, row.tokens, row.ended_at.timestamp())
            for row in rows
        ]
