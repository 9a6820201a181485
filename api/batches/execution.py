"""Runs one batch under its lease: checks its lines, runs them, writes its files.

Every step continues where a process that died left off: lines that have begun keep their ids and times, and
lines with a result are not run again.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

import structlog

from adapters.files.errors import FileNotFound
from adapters.files.ingestion import FileIngestion
from adapters.storage.errors import ObjectNotFound, StorageUnavailable
from adapters.storage.objects import ObjectStore
from api.authentication import GENERATE
from api.batches.checking import MAX_LINE_BYTES, batch_error, check_lines, check_models
from api.batches.fair_slots import AdaptiveLimit, FairSlots
from api.batches.line_run import Line, LineRuns
from api.batches.lines import custom_id_of, not_run
from api.metrics.batches import BatchMetrics
from api.services import Services
from batches.input import InputLine, lines_of, require_copy
from batches.lease import BatchLease, LineResult
from batches.models import OPEN, BatchStatus
from batches.outputs import write_outputs
from db.errors import DatabaseUnavailable
from db.session import Database
from tenants.context import TenantContext
from tenants.errors import InvalidApiKey, UserNotFound
from tenants.limits.kinds import BUDGETS

log = structlog.get_logger(__name__)
T = TypeVar("T")

EXPIRED = (
    "batch_expired",
    "This request could not be executed before the completion window expired.",
)
CANCELLED = ("batch_cancelled", "This request was not executed: the batch was cancelled.")
GIVEN_UP_TOGETHER = 500
FLUSH_SECONDS, FLUSH_LINES, FLUSH_BYTES = 0.25, 64, 1024 * 1024
"""Results are stored together: as long as this, as many, or as large."""
MOST_UNSTORED = 256
"""Results that may wait to be stored before further lines begin."""
GROUP_LINES, GROUP_BYTES = 32, 256 * 1024
"""Lines that begin together."""
CALLER_SECONDS = 5.0
"""Seconds after which the key is looked up again."""
LAST_SECONDS = 60.0
"""Seconds that running lines have to end once the batch is cancelled or has expired."""
LEAVE_SECONDS = 5.0
"""The same, when this process shuts down: another one runs them again."""
AGAIN = 1.0
"""Seconds until a step is tried again while a store is away."""


@dataclass(frozen=True)
class BatchSite:
    """What the batches of a process share."""

    services: Services
    database: Database
    store: ObjectStore
    ingestion: FileIngestion
    callers: Callable[[str, str], Awaitable[TenantContext]]
    """(tenant, id of a key or a user) -> the caller of requests; raises InvalidApiKey, UserNotFound."""
    slots: FairSlots
    metrics: BatchMetrics
    lines_per_batch: int
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the process shuts down."""


class BatchExecution:
    """One batch's way from its lease to its files."""

    def __init__(self, site: BatchSite, lease: BatchLease) -> None:
        self._site = site
        self._lease = lease
        self._url = lease.batch.endpoint
        self._caller: TenantContext | None = None
        self._looked_up_at = 0.0
        self._limit = AdaptiveLimit(site.lines_per_batch)
        self._runs = LineRuns(site.services, lease, self._limit)
        self._begun: dict[int, datetime] | None = None
        self._done: set[int] = set()
        self._last_started = 0
        """Number of the line that was started last."""
        self._running: set[asyncio.Task[None]] = set()
        self._unstored: list[LineResult] = []
        self._storing = asyncio.Lock()
        self._wake = asyncio.Event()
        """Set when a line ends."""

    async def run(self) -> None:
        """Runs the batch to its end, or until the process shuts down. Raises BatchLeaseLost; what runs is
        aborted then.
        """
        name = self._lease.batch.id
        working = asyncio.create_task(self._work(), name=f"batch {name}")
        beside = [
            asyncio.create_task(self._keep_lease(), name=f"lease of {name}"),
            asyncio.create_task(self._keep_storing(), name=f"results of {name}"),
        ]
        try:
            ended, _ = await asyncio.wait({working, *beside}, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()
        finally:
            tasks = (working, *beside, *self._running)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self) -> None:
        lease = self._lease
        try:
            if lease.status == BatchStatus.VALIDATING:
                await self._reading_input(self._check)
            if lease.status == BatchStatus.IN_PROGRESS:
                await self._reading_input(self._run_lines)
        except (FileNotFound, ObjectNotFound):
            await self._input_lost()
        if self._site.stopping.is_set() and lease.status in OPEN:
            await lease.release()
            return
        if lease.status in (BatchStatus.IN_PROGRESS, BatchStatus.CANCELLING):
            if lease.batch.in_progress_at is not None and lease.batch.failed_at is None:
                try:
                    await self._reading_input(self._give_up_rest)
                except (FileNotFound, ObjectNotFound):
                    await self._input_lost()
            await self._patiently(lease.finalize)
        if lease.status in (BatchStatus.FINALIZING, BatchStatus.CANCELLING):
            await self._patiently(lambda: write_outputs(lease, self._site.ingestion))

    async def _reading_input(self, step: Callable[[], Awaitable[None]]) -> None:
        """Runs a step that reads the batch's copy of its input; if the store has lost it, again with a new
        copy. Raises FileNotFound, ObjectNotFound: the input file is gone, too.
        """
        try:
            await self._patiently(step)
        except ObjectNotFound as error:
            batch = self._lease.batch
            log.error("input of a batch is lost", batch_id=batch.id, error=str(error))
            await self._patiently(lambda: require_copy(self._site.database, self._site.store, batch))
            await self._patiently(step)

    async def _input_lost(self) -> None:
        """Ends the batch with the lines that have a result: which others there were cannot be known."""
        lease = self._lease
        await self._last_lines()
        await self._store_results()
        message = (
            f"The input of the batch was lost, and the file {lease.batch.input_file_id} does not exist any "
            "more. Lines that had been answered are in the output file; create a batch with the others."
        )
        error = batch_error("input_lost", message, None, "input_file_id")
        await self._patiently(lambda: lease.input_lost(error))

    # Beside the work ----------------------------------------------------------------------------------------

    async def _keep_lease(self) -> None:
        while True:
            await asyncio.sleep(self._lease.seconds / 5)
            try:
                await self._lease.renew()
            except DatabaseUnavailable as error:
                # The work continues. No process can take the lease while the database is away.
                log.warning("lease cannot be renewed", batch_id=self._lease.batch.id, error=str(error))

    async def _keep_storing(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            await self._store_results()

    async def _store_results(self) -> None:
        """Stores all results that wait, some at a time."""
        async with self._storing:
            while self._unstored:
                group, size = 0, 0
                for result in self._unstored[:FLUSH_LINES]:
                    group, size = group + 1, size + len(result.content)
                    if size > FLUSH_BYTES:
                        break
                results = self._unstored[:group]
                await self._patiently(lambda: self._lease.store(results))  # noqa: B023
                del self._unstored[:group]
                self._wake.set()

    async def _patiently(self, step: Callable[[], Awaitable[T]]) -> T:
        """Runs `step`, again and again while the database or the object store is away. Raises their errors
        when the process shuts down.
        """
        while True:
            try:
                return await step()
            except (DatabaseUnavailable, StorageUnavailable) as error:
                if self._site.stopping.is_set():
                    raise
                log.warning("batch waits for a store", batch_id=self._lease.batch.id, error=str(error))
                await asyncio.sleep(AGAIN)

    # Checking -----------------------------------------------------------------------------------------------

    async def _check(self) -> None:
        site, batch = self._site, self._lease.batch
        try:
            await require_copy(site.database, site.store, batch)
        except FileNotFound:
            message = f"The file {batch.input_file_id} was deleted before the batch was checked."
            await self._lease.fail([batch_error("file_not_found", message, None, "input_file_id")])
            return
        await self._look_up_caller()
        if self._caller is None:
            return
        checked = await check_lines(self._lines(), self._url)
        errors = checked.errors or await check_models(site.services, self._caller, checked.models)
        if self._lease.status != BatchStatus.VALIDATING:
            return
        if errors:
            await self._lease.fail(errors)
            return
        model = next(iter(checked.models)) if len(checked.models) == 1 else None
        is_accepted = await self._lease.accept(checked.total, model)
        if not is_accepted and self._lease.status == BatchStatus.VALIDATING:
            message = (
                f"With the {checked.total} lines of this batch, your organization would have more lines "
                "waiting than its limit allows; try again when other batches have ended."
            )
            await self._lease.fail([batch_error("batch_lines_limit_exceeded", message, None)])

    def _lines(self) -> AsyncIterator[InputLine]:
        batch = self._lease.batch
        assert batch.input_key is not None, "an unfinished batch has its input"
        return lines_of(self._site.store, batch.input_key, batch.input_size, MAX_LINE_BYTES)

    async def _look_up_caller(self) -> None:
        """Looks up the caller; cancels the batch if its key is not valid any more, or its user may not run
        requests.
        """
        self._looked_up_at = time.monotonic()
        batch = self._lease.batch
        try:
            caller = await self._site.callers(batch.tenant_id, batch.created_by)
            if caller.scopes and GENERATE.scope not in caller.scopes:
                raise InvalidApiKey
        except InvalidApiKey:
            self._caller = None
            message = "The API key that created the batch was revoked or has expired."
            await self._lease.stop(batch_error("invalid_api_key", message, None))
            return
        except UserNotFound:
            self._caller = None
            message = (
                "The member who created the batch was removed, or may no longer send requests to models."
            )
            await self._lease.stop(batch_error("insufficient_permissions", message, None))
            return
        # Rate limits are for requests that a client waits for; budgets hold for everything.
        budgets = tuple(limit for limit in caller.limits if limit.metric.kind in BUDGETS)
        self._caller = dataclasses.replace(caller, limits=budgets)

    # Running ------------------------------------------------------------------------------------------------

    def _may_run(self) -> bool:
        return (
            self._lease.status == BatchStatus.IN_PROGRESS
            and not self._site.stopping.is_set()
            and datetime.now(UTC) < self._lease.batch.expires_at
        )

    async def _run_lines(self) -> None:
        """Runs lines until all have a result, or none may run any more. May be called again after an
        error.
        """
        if self._begun is None:
            self._begun, self._done = await self._lease.begun()
        group: list[InputLine] = []
        async for line in self._lines():
            if not self._may_run():
                break
            if line.number in self._done or line.number <= self._last_started:
                continue
            group.append(line)
            size = sum(len(one.content or b"") for one in group)
            if len(group) == GROUP_LINES or size > GROUP_BYTES:
                await self._start(group)
                group = []
        if group and self._may_run():
            await self._start(group)
        await self._last_lines()
        await self._store_results()

    async def _start(self, group: list[InputLine]) -> None:
        """Starts lines as there is room for them. Each begins once, however often it runs."""
        assert self._begun is not None
        new = [line.number for line in group if line.number not in self._begun]
        if new:
            self._begun |= await self._patiently(lambda: self._lease.begin(new))
        for number, content in group:
            assert content is not None, "the lines have been checked"
            caller = await self._room()
            if caller is None:
                return
            await self._site.slots.acquire(caller.tenant_id)
            line = Line(number, content, self._begun[number])
            task = asyncio.create_task(self._run_line(line), name=f"line {number}")
            self._running.add(task)
            task.add_done_callback(self._line_ended)
            self._last_started = number

    async def _room(self) -> TenantContext | None:
        """Waits until one more line may begin, and returns its caller; None when none may any more."""
        while self._may_run():
            if time.monotonic() - self._looked_up_at > CALLER_SECONDS or self._caller is None:
                with contextlib.suppress(DatabaseUnavailable):
                    await self._look_up_caller()
            caller = self._caller
            if (
                caller is not None
                and caller.billing_state != "suspended"
                and self._site.services.pools.ready
                and len(self._running) < self._limit.limit
                and not self._limit.pause
                and len(self._unstored) < MOST_UNSTORED
            ):
                return caller
            await self._wait()
        return None

    async def _run_line(self, line: Line) -> None:
        result = await self._runs.run(line, lambda: self._caller, self._may_run)
        if result is not None:
            self._unstored.append(result)
            self._site.metrics.ended("failed" if result.is_failed else "completed")

    def _line_ended(self, task: asyncio.Task[None]) -> None:
        self._site.slots.release(self._lease.batch.tenant_id)
        self._running.discard(task)
        self._wake.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("line was interrupted", batch_id=self._lease.batch.id, error=repr(error)[:500])

    async def _last_lines(self) -> None:
        """Waits for the lines that run. Those that take too long to end after the batch must stop are
        aborted.
        """
        until: float | None = None
        while self._running:
            if not self._may_run():
                patience = LEAVE_SECONDS if self._site.stopping.is_set() else LAST_SECONDS
                until = until or time.monotonic() + patience
                if time.monotonic() > until:
                    for task in self._running:
                        task.cancel()
                    await asyncio.gather(*self._running, return_exceptions=True)
                    return
            await self._wait()

    async def _wait(self) -> None:
        """Waits until a line ends or is stored, or for a moment."""
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(0.5, self._limit.pause or 0.5)):
                await self._wake.wait()

    async def _give_up_rest(self) -> None:
        """Gives every line without a result an error: the batch is cancelled or has expired."""
        lease = self._lease
        await self._store_results()
        if lease.batch.completed + lease.batch.failed == lease.batch.total:
            return
        code, message = CANCELLED
        if lease.status == BatchStatus.IN_PROGRESS:
            code, message = EXPIRED
            await lease.expire()
        _, done = await lease.begun()
        results: list[LineResult] = []
        async for number, content in self._lines():
            if number in done:
                continue
            assert content is not None, "the lines have been checked"
            text = not_run(lease.batch.id, number, custom_id_of(content), code, message)
            results.append(LineResult(number, text, True))
            if len(results) == GIVEN_UP_TOGETHER:
                await lease.store(results)
                results = []
        if results:
            await lease.store(results)
        self._site.metrics.ended(code.removeprefix("batch_"), lease.batch.total - len(done))
