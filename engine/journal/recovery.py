"""Recovers and bills what a dead incarnation left in its files, and reports how much of it cannot be read.

The order is safe against a kill in between: the next start repeats it, and journals nothing under another
number.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import structlog

from engine.journal.counters import IncarnationTotals
from engine.journal.event_numbering import EventNumbering
from engine.journal.inflight_rows import RecoveredTable
from engine.journal.set_aside import set_aside_path
from engine.journal.usage_journal import UsageJournal
from engine.protocol import IssuedEvents, Usage, UsageEvent

log = structlog.get_logger(__name__)


def bill_leftovers(
    recovered: RecoveredTable, last: IncarnationTotals | None, journal: UsageJournal, engine_id: str
) -> IssuedEvents | None:
    """Writes a last event for each request that was in flight. Returns what the incarnation has issued with
    those.

    Completion tokens that it had counted and that are in no event and no row are lost: they use up a number
    that no event has, so that reconciliation finds them missing. `last` is None where the totals cannot be
    read: then events have no numbers. Raises JournalError.
    """
    numbering = None
    if last is not None:
        numbering = EventNumbering(lambda _: None, lambda *_: None, last.issued, last.tokens)
    events = []
    for row in recovered.rows:
        event = usage_at_crash(row.event)
        if numbering is not None and last is not None and event.incarnation == last.incarnation:
            event = numbering.stamp(event, row.owed)
        events.append(event)
    if events:
        log.warning("billing requests that the last incarnation left in flight", requests=len(events))
        journal.write_now(events)
    if numbering is None or last is None:
        return None
    lost = last.counted - numbering.tokens
    if lost > 0:
        log.error("usage of requests in flight is lost", incarnation=last.incarnation, completion_tokens=lost)
        numbering.skip(lost, last.stamped)
    if not numbering.issued:
        return None
    return IssuedEvents(engine_id, last.incarnation, numbering.issued, numbering.tokens, time.time())


def remove_table(path: Path, recovered: RecoveredTable) -> None:
    """Sets a damaged table aside, and removes one of an older release, once the leftovers are journaled.

    Raises OSError.
    """
    if recovered.damage:
        aside = path.rename(set_aside_path(path))
        aside.chmod(0o600)
        log.error("in-flight table is damaged; set aside", reason=recovered.damage, kept=str(aside))
    elif not recovered.is_current:
        path.unlink()


def usage_at_crash(event: UsageEvent) -> UsageEvent:
    """Returns the event to bill: a request that died before its first token owes nothing for its prompt."""
    if event.usage.completion_tokens == 0:
        return msgspec.structs.replace(event, usage=Usage(0, 0, 0))
    return event
