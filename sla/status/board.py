"""Holds the snapshot that the status page shows, and keeps it up to date.

Requests read the snapshot from memory: however many come, the database is asked once in `REFRESH_S` by each
process. What cannot be read stays as it was last read; the snapshot says of when that is. It is kept in Redis
too, for processes that start meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec
import redis.asyncio
import structlog
from redis.exceptions import RedisError

from db.errors import DatabaseUnavailable
from db.session import EVERY_TENANT, Database
from sla.incidents.models import Incident, IncidentNote
from sla.incidents.repository import IncidentRepository
from sla.status import sampling
from sla.status.components import BASE, State, title_of, worst
from sla.status.models import StatusDay
from sla.status.repository import StatusRepository
from sla.status.sampling import Sample, latest_sample

REFRESH_S = 15.0
DAYS = 90
INCIDENTS_SHOWN = timedelta(days=30)
MOST_INCIDENTS = 50
STALE_S = 180.0
"""Age of the last sample above which it says nothing of now."""
SNAPSHOT = "rootstock:status:snapshot"
_KEPT_S = 30 * 24 * 3600
_BY_SEVERITY: dict[str, State] = {"minor": "degraded", "major": "degraded", "critical": "down"}
_LAST = ("uploads", "console", "billing")
log = structlog.get_logger(__name__)


class Day(msgspec.Struct, frozen=True):
    """Minutes of a day in each state."""

    day: date
    operational: int = 0
    degraded: int = 0
    down: int = 0
    maintenance: int = 0

    @property
    def state(self) -> State | None:
        """The worst state that is worth a colour: a single minute may be a restart. None: no sample."""
        sampled = self.operational + self.degraded + self.down + self.maintenance
        if not sampled:
            return None
        if self.down > 5:
            return "down"
        if self.down or self.degraded > 5:
            return "degraded"
        return "maintenance" if self.maintenance * 2 > sampled else "operational"


class Component(msgspec.Struct, frozen=True):
    id: str
    title: str
    state: State | None
    """None: not known now."""
    days: tuple[Day, ...]
    """The last `DAYS` days, the oldest first."""

    @property
    def uptime(self) -> float | None:
        """The share of sampled minutes in which it was not down, maintenance left out; None without any."""
        up = sum(day.operational + day.degraded for day in self.days)
        down = sum(day.down for day in self.days)
        return up / (up + down) if up + down else None


class Update(msgspec.Struct, frozen=True):
    at: datetime
    text: str


class ShownIncident(msgspec.Struct, frozen=True):
    """A public incident or maintenance, without who wrote it."""

    id: str
    title: str
    severity: str
    began_at: datetime
    planned_until: datetime | None
    """Of maintenance."""
    ended_at: datetime | None
    components: tuple[str, ...]
    updates: tuple[Update, ...]
    """The newest first."""

    @property
    def is_maintenance(self) -> bool:
        return self.planned_until is not None

    def has_begun(self, now: datetime) -> bool:
        return self.began_at <= now


class Snapshot(msgspec.Struct, frozen=True):
    """All that the page shows."""

    sampled_at: datetime | None = None
    """When the current states were sampled."""
    history_at: datetime | None = None
    """When days and incidents were last read."""
    components: tuple[Component, ...] = ()
    incidents: tuple[ShownIncident, ...] = ()

    @property
    def state(self) -> State | None:
        """The worst of the components; None where nothing is known."""
        known = [one.state for one in self.components if one.state is not None]
        return worst(*known) if known else None


class _History(msgspec.Struct, frozen=True):
    read_at: datetime
    days: dict[str, tuple[Day, ...]]
    incidents: tuple[ShownIncident, ...]
    last: Sample | None


class StatusBoard:
    """One process's snapshot. `start` it with the process."""

    def __init__(
        self,
        database: Database,
        client: redis.asyncio.Redis,
        report: Callable[[], Awaitable[None]] | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`report` stores what this process says of itself; it is called before each refresh."""
        self._database = database
        self._redis = client
        self._report = report
        self._clock = clock
        self._history: _History | None = None
        self._task: asyncio.Task[None] | None = None
        self.snapshot = Snapshot()
        self.version = 0
        """Counts snapshots, so that pages are rendered once for each."""

    async def start(self) -> None:
        self._task = asyncio.create_task(self._keep_refreshing(), name="status page")

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    async def _keep_refreshing(self) -> None:
        while True:
            try:
                if self._report is not None:
                    with contextlib.suppress(RedisError, OSError):
                        await self._report()
                await self.refresh()
            except Exception:
                log.exception("the status page is not refreshed")
            await asyncio.sleep(REFRESH_S)

    async def refresh(self) -> None:
        """Reads what is to be shown, as far as it can be reached."""
        sample: Sample | None = None
        with contextlib.suppress(RedisError, OSError):
            sample = await latest_sample(self._redis)
        is_new = await self._read_history()
        if self._history is None:
            await self._restore()
        history = self._history
        if sample is None and history is not None:
            sample = history.last
        self.snapshot = _snapshot(self._clock(), sample, history)
        self.version += 1
        if is_new and history is not None:
            with contextlib.suppress(RedisError, OSError):
                await self._redis.set(SNAPSHOT, msgspec.msgpack.encode(history), ex=_KEPT_S)

    async def _read_history(self) -> bool:
        now = self._clock()
        try:
            async with asyncio.timeout(sampling.PATIENCE_S), self._database.read(EVERY_TENANT) as session:
                repository = StatusRepository(session)
                days = await repository.days(now.date() - timedelta(days=DAYS - 1))
                incidents = await repository.incidents(now - INCIDENTS_SHOWN, MOST_INCIDENTS)
                notes = await IncidentRepository(session).notes([one.id for one in incidents])
                minute, states = await repository.last_states()
        except (DatabaseUnavailable, TimeoutError):
            return False
        last = None if minute is None else Sample(int(minute.timestamp()), states)  # type: ignore[arg-type]
        self._history = _History(now, _by_component(days), _shown(incidents, notes), last)
        return True

    async def _restore(self) -> None:
        """Takes over the history that another process read last, while the database is away."""
        with contextlib.suppress(RedisError, OSError, msgspec.DecodeError):
            kept: Any = await self._redis.get(SNAPSHOT)
            if kept is not None:
                self._history = msgspec.msgpack.decode(kept, type=_History)


def _by_component(rows: Sequence[StatusDay]) -> dict[str, tuple[Day, ...]]:
    found: dict[str, list[Day]] = {}
    for row in rows:
        found.setdefault(row.component, []).append(
            Day(row.day, row.operational, row.degraded, row.down, row.maintenance)
        )
    return {name: tuple(days) for name, days in found.items()}


def _shown(incidents: Sequence[Incident], notes: Sequence[IncidentNote]) -> tuple[ShownIncident, ...]:
    updates: dict[str, list[Update]] = {}
    for note in notes:
        if note.is_public:
            updates.setdefault(note.incident_id, []).append(Update(note.at, note.body))
    return tuple(
        ShownIncident(
            one.id,
            one.title,
            one.severity,
            one.began_at,
            one.planned_until,
            one.ended_at,
            tuple(one.components),
            tuple(reversed(updates.get(one.id, ()))),
        )
        for one in incidents
    )


def _snapshot(now: datetime, sample: Sample | None, history: _History | None) -> Snapshot:
    states = {} if sample is None else sample.states
    sampled_at = None if sample is None else datetime.fromtimestamp(sample.minute, UTC)
    is_fresh = sampled_at is not None and (now - sampled_at).total_seconds() <= STALE_S
    incidents = () if history is None else history.incidents
    days = {} if history is None else history.days
    return Snapshot(
        sampled_at,
        None if history is None else history.read_at,
        tuple(
            Component(
                name,
                title_of(name),
                _current(name, states.get(name), incidents, now) if is_fresh else None,
                _every_day(now.date(), days.get(name, ())),
            )
            for name in sorted(states, key=_place)
        ),
        incidents,
    )


def _current(
    name: str, sampled: State | None, incidents: Sequence[ShownIncident], now: datetime
) -> State | None:
    """The state that was sampled, or a worse one that an open incident of the component says."""
    said = [
        _BY_SEVERITY[one.severity]
        for one in incidents
        if name in one.components and one.ended_at is None and not one.is_maintenance and one.has_begun(now)
    ]
    return None if sampled is None else worst(sampled, *said)


def _every_day(today: date, days: Sequence[Day]) -> tuple[Day, ...]:
    found = {day.day: day for day in days}
    every = [today - timedelta(days=back) for back in range(DAYS - 1, -1, -1)]
    return tuple(found.get(day, Day(day)) for day in every)


def _place(name: str) -> tuple[int, str]:
    """The API first, then its bases, then the others."""
    if name == "api":
        return 0, name
    return (1, name) if name.startswith(BASE) else (2 + _LAST.index(name), name)
