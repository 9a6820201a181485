"""Meters each open request's usage, from admission until the journal has it.

Orders the writes to the in-flight table, the totals beside it and the usage journal: a row is written before
a request is accepted, counts before its tokens are sent, and the row is freed after its last event is
written. So whenever the process dies, table and journal together hold every token that was sent, and a
request's largest counts are right.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import structlog

from engine.journal.counters import DiskCounters
from engine.journal.disk_sync import DiskSync
from engine.journal.event_numbering import EventNumbering
from engine.journal.inflight_rows import recover_table
from engine.journal.inflight_table import InflightTable
from engine.journal.recovery import bill_leftovers, remove_table, usage_at_crash
from engine.journal.set_aside import files_set_aside
from engine.journal.spool import Spool
from engine.journal.usage_journal import JournalEntry, JournalError, UsageJournal
from engine.protocol import IssuedEvents, Spooled, Submit, Usage, UsageEvent
from telemetry.disk import DiskSpace, disk_space

log = structlog.get_logger(__name__)

FLUSH_SECONDS = 5.0
TABLE, SPOOL, TOTALS, HISTORY = "inflight.bin", "usage.spool", "counters.bin", "issued.spool"
"""Files of an engine's folder: the in-flight table, usage that waits for Redis, this incarnation's totals,
and what those before it have issued."""
MAX_REMEMBERED = 1000
"""Incarnations in that history."""
_decoder = msgspec.msgpack.Decoder(IssuedEvents)


class Meter:
    """Counts tokens of open requests; all methods belong to the step loop's thread."""

    def __init__(
        self,
        *,
        state_dir: Path,
        redis_url: str,
        engine_id: str,
        incarnation: str,
        on_settled: Callable[[list[object]], None],
        on_failed: Callable[[JournalError], None],
        on_ended: Callable[[UsageEvent], None] | None = None,
    ) -> None:
        """Opens the files, bills what the last incarnation left in flight, then starts the journal's thread.

        `on_settled` receives, on the journal's thread, the receipts of requests whose last event is written;
        then `on_ended` receives each of these events;
        `on_failed` is called there at most once. Raises: OSError for the files, JournalError when leftovers
        cannot be written anywhere.
        """
        self._engine_id = engine_id
        self._incarnation = incarnation
        self._on_settled = on_settled
        self._on_ended = on_ended
        self._state_dir = state_dir
        self._lock_fd = _lock(state_dir)
        self._counters = DiskCounters(state_dir / TOTALS)
        self._history = Spool(state_dir / HISTORY)
        self._issued = IssuedEvents(engine_id, incarnation, 0, 0, 0.0)
        """What this incarnation has written so far."""
        self._numbering = EventNumbering(self._counters.stamp, self._on_issued)
        spool = Spool(state_dir / SPOOL)
        self._journal = UsageJournal(redis_url, spool, self._on_written, on_failed, self._numbering)
        self._entries: list[JournalEntry] = []
        self._journaled: dict[int, int] = {}
        """By row, of open requests: completion tokens that their events have so far."""
        try:
            self._recover(state_dir / TABLE)
        except (OSError, JournalError):
            os.close(self._lock_fd)  # a process that goes on must not keep others from the folder
            raise
        self._set_aside = files_set_aside(state_dir)
        self._sync = DiskSync([self._table.sync, self._counters.sync, self._refresh_set_aside])
        self._sync.start()
        self._journal.start()

    def _recover(self, path: Path) -> None:
        """Bills what the last incarnation left and records what it issued, and only then resets the files."""
        recovered = recover_table(path)
        ended = bill_leftovers(recovered, self._counters.last, self._journal, self._engine_id)
        if len(self._history) > MAX_REMEMBERED:
            self._history.consume(len(self._history))
        if ended is not None:
            self._history.append([msgspec.msgpack.encode(ended)])
            self._journal.announce([ended])
        payloads, _ = self._history.page(0, MAX_REMEMBERED)
        self._issued_before = [_decoder.decode(one) for one in payloads]
        self._counters.begin(self._incarnation)
        remove_table(path, recovered)
        self._table = InflightTable(path)
        self._table.clear()

    @property
    def num_spooled(self) -> int:
        """Events on local disk, waiting for Redis."""
        return self._journal.num_spooled

    @property
    def disk(self) -> DiskSpace:
        """Space on the file system with table and spool; all zeros when it does not answer."""
        try:
            return disk_space(self._state_dir)
        except OSError:
            return DiskSpace(0, 0)

    @property
    def num_set_aside(self) -> int:
        """Damaged files that wait for an operator, as of the last second."""
        return len(self._set_aside)

    def spooled(self, position: int) -> Spooled:
        """Returns a page of spooled events; the first with the numbers issued and the files set aside."""
        # Read before the page: an event written meanwhile is in the page, and does not count as missing.
        issued = [] if position else [*self._issued_before, self._issued]
        page = self._journal.spooled(position)
        if position:
            return page
        return msgspec.structs.replace(page, issued=issued, set_aside=self._set_aside)

    def admit(self, request: Submit) -> int:
        """Writes the row of a request about to be accepted. Raises ValueError when its labels do not fit."""
        return self._table.admit(
            UsageEvent(
                request_id=request.request_id,
                engine_id=self._engine_id,
                incarnation=self._incarnation,
                tenant=request.tenant,
                submitted_at=request.submitted_at,
                recorded_at=time.time(),
                priority=request.priority,
                usage=Usage(len(request.prompt_ids), 0, 0),
                adapter_digest=request.adapter.digest if request.adapter is not None else None,
                labels=request.labels,
                n=request.n,
            )
        )

    def count(self, rows: Sequence[int], counts: Sequence[int]) -> None:
        """Counts a step's completion tokens, `counts[i]` of `rows[i]`'s request, before they are sent."""
        self._table.touch(time.time())
        self._table.add(rows, counts)
        self._counters.count(sum(counts))

    def started(self, row: int, event: UsageEvent) -> None:
        """Stores what a request's admission found, once its first token has been counted."""
        self._update(row, event)

    def checkpoint(self, row: int, event: UsageEvent) -> None:
        """Stores a long request's counts so far: in the table now, in the journal at the step's end."""
        self._update(row, event)
        tokens = event.usage.completion_tokens
        self._entries.append(JournalEntry(event, row=row, tokens=tokens - self._journaled.get(row, 0)))
        self._journaled[row] = tokens

    def settle(self, row: int, event: UsageEvent, receipt: object) -> None:
        """Queues a request's last event for the step's end. `receipt` comes back once it is written."""
        self._update(row, event)
        tokens = event.usage.completion_tokens - self._journaled.pop(row, 0)
        self._entries.append(JournalEntry(event, (row, receipt), tokens=tokens))

    def end_step(self) -> None:
        """Hands the step's events to the journal. Raises JournalError when it has failed."""
        if self._entries:
            self._journal.put(self._entries)
            self._entries = []

    def cancel(self, row: int) -> None:
        """Frees the row of a request that never ran: it owes nothing."""
        self._table.free(row)

    def close(self) -> None:
        """Writes what is queued, then bills what is still in flight, which only a failure leaves. Raises
        JournalError.

        What cannot be written stays in the table, for the next incarnation.
        """
        self._sync.close()
        flushed = self._journal.close(FLUSH_SECONDS)
        if not flushed:
            raise JournalError("cannot flush the usage journal; the next start bills what is in flight")
        leftovers = self._table.read()
        if leftovers:
            log.warning("billing requests cut off by the engine's failure", requests=len(leftovers))
            events = [self._numbering.stamp(usage_at_crash(left.event), left.owed) for left in leftovers]
            self._journal.write_now(events)
            self._numbering.written()
            self._table.clear()
        if self._numbering.issued:
            self._journal.announce([self._issued])
        self._journal.release()
        self._history.close()
        self._counters.close()
        self._table.close()
        os.close(self._lock_fd)

    def _update(self, row: int, event: UsageEvent) -> None:
        uncounted = self._table.update(row, event)
        if uncounted:
            self._counters.count(uncounted)

    def _on_issued(self, events: int, tokens: int) -> None:
        self._counters.issue(events, tokens)
        self._issued = IssuedEvents(self._engine_id, self._incarnation, events, tokens, time.time())

    def _refresh_set_aside(self) -> None:
        self._set_aside = files_set_aside(self._state_dir)

    def _on_written(self, entries: list[JournalEntry]) -> None:
        receipts: list[object] = []
        for entry in entries:
            if entry.completion is not None:
                row, receipt = entry.completion
                self._table.free(row)
                receipts.append(receipt)
            elif entry.row is not None:
                self._table.journaled(entry.row, entry.event.usage.completion_tokens)
        if receipts:
            self._on_settled(receipts)
        if self._on_ended is not None:
            for entry in entries:
                if entry.completion is not None:
                    self._on_ended(entry.event)


def _lock(folder: Path) -> int:
    """Locks the folder for this process, until it ends in whatever way.

    Raises BlockingIOError when another process holds the lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise BlockingIOError(error.errno, "state folder is in use by another engine", str(folder)) from error
    return fd
