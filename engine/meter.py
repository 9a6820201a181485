"""The meter: what each open request owes, from admission until the journal has it.

Owns the in-flight table and the usage journal, and the order between them: a row is written before a request
is accepted, counts before its tokens are sent, and is freed after its last event is written. So whatever
moment the process dies at, table and journal together hold every token anybody was given, and the largest
counts of a request are right. Refuses to know clients, sockets and steps.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import structlog

from engine.inflight import InflightTable
from engine.protocol import Spooled, Submit, Usage, UsageEvent
from engine.spool import Spool
from engine.usage import JournalEntry, JournalError, UsageJournal
from telemetry.disk import DiskSpace, disk_space

log = structlog.get_logger(__name__)

FLUSH_SECONDS = 5.0


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
    ) -> None:
        """Open the files, bill what the last incarnation left in flight, then start the journal's thread.

        `on_settled` gets the receipts of requests whose last event is written, on the journal's thread;
        `on_failed` likewise, once. Raises: OSError for the files, JournalError when leftovers can be written
        nowhere.
        """
        self._engine_id = engine_id
        self._incarnation = incarnation
        self._on_settled = on_settled
        self._state_dir = state_dir
        self._lock_fd = _lock(state_dir)
        self._table = InflightTable(state_dir / "inflight.bin")
        self._journal = UsageJournal(redis_url, Spool(state_dir / "usage.spool"), self._on_written, on_failed)
        self._entries: list[JournalEntry] = []
        leftovers = [_owed_at_death(event) for event in self._table.read()]
        if leftovers:
            log.warning("billing requests that the last incarnation left in flight", requests=len(leftovers))
            self._journal.write_now(leftovers)
        self._table.clear()
        self._journal.start()

    @property
    def num_spooled(self) -> int:
        """Events on local disk, waiting for Redis."""
        return self._journal.num_spooled

    @property
    def disk(self) -> DiskSpace:
        """Of the file system with table and spool; all zeros when it does not answer."""
        try:
            return disk_space(self._state_dir)
        except OSError:
            return DiskSpace(0, 0)

    def spooled(self, position: int) -> Spooled:
        """A page of them."""
        return self._journal.spooled(position)

    def admit(self, request: Submit) -> int:
        """The row of a request about to be accepted. Raises ValueError when its labels do not fit one."""
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
        """Count a step's completion tokens, `counts[i]` of `rows[i]`'s request, before they are sent."""
        self._table.touch(time.time())
        self._table.add(rows, counts)

    def started(self, row: int, event: UsageEvent) -> None:
        """A request's first token has been counted: keep what its admission found, in case we die."""
        self._table.update(row, event)

    def checkpoint(self, row: int, event: UsageEvent) -> None:
        """A long request's counts so far: to the table now, to the journal at the step's end."""
        self._table.update(row, event)
        self._entries.append(JournalEntry(event))

    def settle(self, row: int, event: UsageEvent, receipt: object) -> None:
        """A request's last event, for the journal at the step's end. `receipt` comes back once written."""
        self._table.update(row, event)
        self._entries.append(JournalEntry(event, (row, receipt)))

    def end_step(self) -> None:
        """Hand the step's events to the journal. Raises JournalError when it has failed."""
        if self._entries:
            self._journal.put(self._entries)
            self._entries = []

    def cancel(self, row: int) -> None:
        """The request never ran: nothing is owed."""
        self._table.free(row)

    def close(self) -> None:
        """Write what is queued, then bill what is still in flight: only a failure leaves any. Raises
        JournalError.

        What cannot be written stays in the table, for the next incarnation.
        """
        flushed = self._journal.close(FLUSH_SECONDS)
        if not flushed:
            raise JournalError(
                "the usage journal could not be flushed; the next start bills what is in flight"
            )
        leftovers = [_owed_at_death(event) for event in self._table.read()]
        if leftovers:
            log.warning("billing requests cut off by the engine's failure", requests=len(leftovers))
            self._journal.write_now(leftovers)
            self._table.clear()
        self._journal.release()
        self._table.close()
        os.close(self._lock_fd)

    def _on_written(self, entries: list[JournalEntry]) -> None:
        receipts: list[object] = []
        for entry in entries:
            if entry.last_word is not None:
                row, receipt = entry.last_word
                self._table.free(row)
                receipts.append(receipt)
        if receipts:
            self._on_settled(receipts)


def _lock(folder: Path) -> int:
    """Take the folder for this process, until it ends however it ends.

    Raises BlockingIOError when another has it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise BlockingIOError(error.errno, "state folder is in use by another engine", str(folder)) from error
    return fd


def _owed_at_death(event: UsageEvent) -> UsageEvent:
    """A request that died before its first token got nothing for its prompt, and owes nothing for it."""
    if event.usage.completion_tokens == 0:
        return msgspec.structs.replace(event, usage=Usage(0, 0, 0))
    return event
