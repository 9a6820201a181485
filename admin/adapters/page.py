"""Gathers the adapters pages: the list, and one adapter with its versions, jobs and activity."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from redis.exceptions import RedisError

from adapters.catalogue import AdapterCatalogue, AdapterWithVersion
from adapters.jobs.models import Job, JobStatus
from adapters.jobs.repository import OPEN
from adapters.jobs.service import CANCELLED, JobService
from adapters.model_names import ModelName
from adapters.models import Adapter, AdapterEvent, AdapterVersion, VersionState
from adapters.regression import Regression, regression_of
from admin.adapters.work import Work, work_of
from admin.badge import Badge
from admin.operator.engines.report import Engines
from admin.web.sorting import Column, Heading, Sort, headings, sort_rows
from telemetry.tasks import gather_all

PAGE = 50
MAX_SORTED = 500
EVENTS = 15
MAX_VERSIONS = 100
MAX_JOBS = 100
ENGINE_PATIENCE = 0.5
"""Seconds that the page waits for engines' reports; without them it shows no speculation."""
COLUMNS = (
    Column("Name", "name"),
    Column("Status", "status"),
    Column("Active version", "active_version", starts_descending=True),
    Column("Rank", "rank", is_number=True, starts_descending=True),
    Column("Size", "size", is_number=True, starts_descending=True),
    Column("Precision", "dtype"),
    Column("Latest activity", "activity", starts_descending=True),
)
_STATES = {
    VersionState.UPLOADING: Badge("Uploading", "busy"),
    VersionState.VALIDATING: Badge("Validating", "busy"),
    VersionState.CALIBRATING: Badge("Calibrating", "busy"),
    VersionState.READY: Badge("Ready", "good"),
    VersionState.FAILED: Badge("Failed", "bad"),
    VersionState.DISABLED: Badge("Disabled", "off"),
    VersionState.DELETING: Badge("Deleted", "off"),
}
_PAUSED = Badge("Paused", "off")


@dataclass(frozen=True)
class AdapterRow:
    """A line of the list."""

    id: str
    base: str
    name: str
    state: Badge
    on_its_way: str | None
    """A newer version than the one shown, and what it is doing."""
    active_version: int | None
    rank: int | None
    size: int | None
    dtype: str | None
    last_event: AdapterEvent | None


@dataclass(frozen=True)
class AdapterList:
    bases: list[str]
    """The base models, the default one first."""
    headings: list[Heading]
    rows: list[AdapterRow]
    num_sorted: int | None
    """How many of the newest were sorted, if that isn't all."""
    total_size: int | None
    """Of all adapters; None if the page doesn't show them all."""
    next_after: str | None
    is_pending: bool


@dataclass(frozen=True)
class VersionRow:
    """A line of an adapter's versions."""

    version: int
    state: Badge
    is_active: bool
    may_activate: bool
    rank: int | None
    dtype: str | None
    size: int | None
    gain: float | None
    """What calibration found, in nats per token over the base alone."""
    created_at: datetime
    regression: Regression | None
    """Beside the active version."""


@dataclass(frozen=True)
class Refusal:
    """Why the newest version did not become ready."""

    version: int
    was_cancelled: bool
    message: str
    field: str | None
    was_measured: bool


@dataclass(frozen=True)
class Speculation:
    """Drafts of the tenant's requests on the adapter, all versions together, since their engines started."""

    drafted_tokens: int
    accepted_tokens: int
    steps: int
    """Steps of single requests that verified drafts, of engines that count them."""
    gained_tokens: int
    """Accepted in those steps."""

    @property
    def accepted(self) -> float:
        """Share of the drafted tokens."""
        return self.accepted_tokens / self.drafted_tokens

    @property
    def gained(self) -> float | None:
        """Tokens that a step with drafts gave beyond its first one; None where no engine counts steps."""
        return self.gained_tokens / self.steps if self.steps else None


@dataclass(frozen=True)
class AdapterDetail:
    adapter: Adapter
    model: str
    state: Badge
    works: list[Work]
    versions: list[VersionRow]
    rollback_regression: Regression | None
    """Of the previous version beside the active one."""
    has_more_versions: bool
    refusal: Refusal | None
    events: list[AdapterEvent]
    older_events: str | None
    speculation: Speculation | None
    """None where nothing was drafted, or no engine tells."""
    is_pending: bool
    announcement: str
    """What changed, for screen readers."""

    @property
    def is_serving(self) -> bool:
        return any(row.is_active for row in self.versions) and self.state.tone == "good"


class AdaptersPage:
    """Gathers both pages."""

    def __init__(self, catalogue: AdapterCatalogue, jobs: JobService, engines: Engines) -> None:
        self._catalogue = catalogue
        self._jobs = jobs
        self._engines = engines

    async def list(self, tenant_id: str, after: str | None = None, sort: Sort | None = None) -> AdapterList:
        """Newest first, beyond the adapter `after`; sorted, they come in one page."""
        limit = PAGE if sort is None else MAX_SORTED
        found, (jobs, _) = await gather_all(
            self._catalogue.adapters(tenant_id, after=after, limit=limit + 1),
            self._jobs.page(tenant_id, limit=MAX_JOBS),
        )
        shown, has_more = found[:limit], len(found) > limit
        last = await self._catalogue.last_events(tenant_id, [one.adapter.id for one in shown])
        works = {job.adapter_id: job for job in reversed(jobs) if job.status in OPEN}
        rows = [_row(one, works.get(one.adapter.id), last.get(one.adapter.id)) for one in shown]
        if sort is not None:
            rows = sort_rows(rows, sort, _sort_value)
        is_all = after is None and not has_more
        return AdapterList(
            bases=list(self._catalogue.bases),
            headings=headings(COLUMNS, sort),
            rows=rows,
            num_sorted=len(rows) if sort is not None and has_more else None,
            total_size=sum(row.size or 0 for row in rows) or None if is_all else None,
            next_after=shown[-1].adapter.id if sort is None and has_more else None,
            is_pending=any(row.on_its_way or row.state.tone == "busy" for row in rows),
        )

    async def detail(self, tenant_id: str, adapter: str, before: str | None = None) -> AdapterDetail:
        """With events older than `before`. Raises AdapterNotFound."""
        shown, versions = await self._catalogue.versions(
            tenant_id, adapter, limit=MAX_VERSIONS + 1, newest_first=True
        )
        row = shown.adapter
        (jobs, _), events, speculation = await gather_all(
            self._jobs.page(tenant_id, limit=MAX_JOBS, adapter_id=row.id),
            self._catalogue.events(tenant_id, row.id, after=before, limit=EVENTS + 1),
            self._speculation(tenant_id, versions),
        )
        works = [work_of(job) for job in jobs if job.status in OPEN]
        active = next((one for one in versions if one.version == row.active_version), None)
        previous = next((one for one in versions if one.version == row.previous_version), None)
        paused = {work.version for work in works if work.is_paused}
        state = state_of(row, shown.version)
        if shown.version is not None and shown.version.version in paused and state.tone == "busy":
            state = _PAUSED
        return AdapterDetail(
            adapter=row,
            model=str(ModelName(row.base, row.name)),
            state=state,
            works=works,
            versions=[_version_row(one, active, one.version in paused) for one in versions[:MAX_VERSIONS]],
            rollback_regression=None if previous is None else regression_of(previous, active),
            has_more_versions=len(versions) > MAX_VERSIONS,
            refusal=_refusal(versions[0]) if versions else None,
            events=_once(events[:EVENTS]),
            older_events=events[EVENTS - 1].id if len(events) > EVENTS else None,
            speculation=speculation,
            is_pending=bool(works) or any(_is_pending(version) for version in versions),
            announcement="; ".join([f"Adapter {state.word.lower()}", *(_spoken(work) for work in works)]),
        )

    async def _speculation(self, tenant_id: str, versions: Sequence[AdapterVersion]) -> Speculation | None:
        digests = {one["digest"] for version in versions for one in (version.artifacts or {}).values()}
        digests |= {version.digest for version in versions}
        reports = []
        with contextlib.suppress(TimeoutError, RedisError):
            reports = await asyncio.wait_for(self._engines.look(), ENGINE_PATIENCE)
        counts = [
            one
            for report in reports
            if report.view is not None
            for one in report.view.drafts
            if one.tenant == tenant_id and one.digest in digests
        ]
        num_drafted = sum(one.drafted_tokens for one in counts)
        if not num_drafted:
            return None
        return Speculation(
            drafted_tokens=num_drafted,
            accepted_tokens=sum(one.accepted_tokens for one in counts),
            steps=sum(one.steps for one in counts),
            gained_tokens=sum(one.accepted_tokens for one in counts if one.steps),
        )


def _sort_value(row: AdapterRow, column: str) -> Any:
    if column == "name":
        return row.name.casefold()
    if column == "status":
        return row.state.word
    if column == "activity":
        return None if row.last_event is None else row.last_event.created_at
    return getattr(row, column)


def state_of(adapter: Adapter, version: AdapterVersion | None) -> Badge:
    """An adapter's, by the version that stands for it."""
    if adapter.disabled_at is not None:
        return _STATES[VersionState.DISABLED]
    if version is None:
        return Badge("Empty", "off")
    if version.state == VersionState.READY and adapter.active_version is None:
        return Badge("Not active", "off")
    return version_state(version)


def version_state(version: AdapterVersion) -> Badge:
    return _STATES[VersionState(version.state)]


def _spoken(work: Work) -> str:
    """Not the share, which would never stop being said."""
    return f"version {work.version}: {work.headline.lower()}"


def _row(shown: AdapterWithVersion, job: Job | None, last_event: AdapterEvent | None) -> AdapterRow:
    adapter, version = shown.adapter, shown.version
    state = state_of(adapter, version)
    on_its_way = None
    if job is not None and (version is None or job.version != version.version or state.tone != "busy"):
        on_its_way = f"version {job.version}: {work_of(job).headline.lower()}"
    elif job is not None and job.status == JobStatus.PAUSED:
        state = _PAUSED
    return AdapterRow(
        id=adapter.id,
        base=adapter.base,
        name=adapter.name,
        state=state,
        on_its_way=on_its_way,
        active_version=adapter.active_version,
        rank=version.rank if version else None,
        size=version.size if version else None,
        dtype=version.dtype if version else None,
        last_event=last_event,
    )


def _version_row(version: AdapterVersion, active: AdapterVersion | None, is_paused: bool) -> VersionRow:
    is_active = active is not None and active.version == version.version
    state = version_state(version)
    return VersionRow(
        version=version.version,
        state=_PAUSED if is_paused and state.tone == "busy" else state,
        is_active=is_active,
        may_activate=version.state == VersionState.READY and not is_active,
        rank=version.rank,
        dtype=version.dtype,
        size=version.size,
        gain=(version.calibration or {}).get("gain"),
        created_at=version.created_at,
        regression=regression_of(version, active),
    )


def _refusal(version: AdapterVersion) -> Refusal | None:
    if version.state != VersionState.FAILED:
        return None
    message = version.error or "Failed for an unknown reason."
    return Refusal(
        version=version.version,
        was_cancelled=message == CANCELLED,
        message=message,
        field=version.error_field,
        was_measured=version.calibration is not None,
    )


def _once(events: list[AdapterEvent]) -> list[AdapterEvent]:
    """A job and its version fail with the same words: once is enough."""
    return [
        event
        for place, event in enumerate(events)
        if event.type != "job.failed" or event.message not in {near.message for near in events[:place][-2:]}
    ]


def _is_pending(version: AdapterVersion) -> bool:
    return version_state(version).tone == "busy"
