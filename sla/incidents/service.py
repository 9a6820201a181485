"""Opens and closes incidents, plans maintenance and adds notes, for operators, and shows public ones to
tenants.

Every method is one transaction with an entry in the operator's audit log.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, get_args

from db.base import new_id
from db.session import EVERY_TENANT, Database, WriteSession
from sla.errors import IncidentEnded, IncidentNotFound
from sla.incidents.models import Incident, IncidentNote
from sla.incidents.repository import IncidentRepository
from tenants.actors import Actor
from tenants.audit.service import OPERATOR_CHAIN, AuditLog

Severity = Literal["minor", "major", "critical"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
MAX_TITLE_LEN = 120
MAX_NOTE_LEN = 2000
MAX_COMPONENTS = 50
_COMPONENT = re.compile(r"api|uploads|console|billing|base:[A-Za-z0-9._-]{1,64}")
KEPT_S = 3.0
"""Seconds for which a process caches the open public incidents."""


@dataclass(frozen=True, slots=True)
class PublicIncident:
    """An open incident as tenants see it."""

    title: str
    severity: str
    began_at: datetime
    note: str
    """The latest public note; empty if there is none."""


class Incidents:
    """Manages all incidents."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._kept: tuple[float, list[PublicIncident]] = (0.0, [])

    async def page(self, *, after: str | None = None, limit: int = 50) -> list[Incident]:
        """Returns incidents, the newest first."""
        async with self._database.read(EVERY_TENANT) as session:
            return [*await IncidentRepository(session).page(after=after, limit=limit)]

    async def find(self, incident_id: str) -> tuple[Incident, Sequence[IncidentNote]]:
        """Returns an incident with its notes. Raises IncidentNotFound."""
        async with self._database.read(EVERY_TENANT) as session:
            repository = IncidentRepository(session)
            incident = None if "\x00" in incident_id else await repository.find(incident_id)
            if incident is None:
                raise IncidentNotFound(incident_id)
            return incident, await repository.notes([incident.id])

    async def public(self) -> list[PublicIncident]:
        """Returns the open public incidents."""
        until, kept = self._kept
        if time.monotonic() < until:
            return kept
        async with self._database.read(EVERY_TENANT) as session:
            repository = IncidentRepository(session)
            now = datetime.now(UTC)
            # Maintenance that is announced is for the status page until it begins.
            found = [one for one in await repository.open(public_alone=True) if one.began_at <= now]
            notes = await repository.notes([one.id for one in found]) if found else []
        latest = {note.incident_id: note.body for note in notes if note.is_public}
        kept = [
            PublicIncident(one.title, one.severity, one.began_at, latest.get(one.id, "")) for one in found
        ]
        self._kept = (time.monotonic() + KEPT_S, kept)
        return kept

    async def open(
        self,
        title: str,
        severity: str,
        actor: Actor,
        *,
        is_public: bool = False,
        began_at: datetime | None = None,
        note: str = "",
        planned_until: datetime | None = None,
        components: Collection[str] = (),
    ) -> Incident:
        """Opens an incident, or plans maintenance, which is what has an end from the start. Raises ValueError
        naming the field.

        Args:
            components: what of the status page is affected; none of maintenance is all of it.
        """
        now = datetime.now(UTC)
        if severity not in SEVERITIES:
            raise ValueError(f"severity must be one of {', '.join(SEVERITIES)}")
        if planned_until is None and began_at is not None and began_at > now:
            raise ValueError("began_at must not be in the future; give maintenance an end, planned_until")
        if planned_until is not None and planned_until <= max(began_at or now, now):
            raise ValueError("planned_until must be later than the start and than now")
        if len(components) > MAX_COMPONENTS or not all(map(_COMPONENT.fullmatch, components)):
            raise ValueError("components must be those of the status page")
        incident = Incident(
            id=new_id("inc"),
            title=_text("title", title, MAX_TITLE_LEN),
            severity=severity,
            is_public=is_public,
            began_at=began_at or now,
            planned_until=planned_until,
            components=sorted(set(components)),
            opened_by=_name(actor),
            created_at=now,
        )
        body = _text("note", note, MAX_NOTE_LEN) if note.strip() else ""
        async with self._database.write(EVERY_TENANT) as session:
            repository = IncidentRepository(session)
            repository.add(incident)
            await session.flush()
            if body:
                repository.add(_note(incident, body, is_public, actor))
            details: dict[str, str | bool] = {"title": incident.title, "severity": severity}
            details["public"] = is_public
            if components:
                details["components"] = ", ".join(incident.components)
            if planned_until is not None:
                details["planned_until"] = planned_until.isoformat()
            type = "incident.opened" if planned_until is None else "maintenance.planned"
            await _record(session, actor, type, incident, details)
        self._kept = (0.0, [])
        return incident

    async def note(self, incident_id: str, body: str, actor: Actor, *, is_public: bool) -> None:
        """Adds a note, also after the end. Raises IncidentNotFound, ValueError."""
        body = _text("note", body, MAX_NOTE_LEN)
        async with self._database.write(EVERY_TENANT) as session:
            incident = await _held(session, incident_id)
            IncidentRepository(session).add(_note(incident, body, is_public, actor))
            await _record(session, actor, "incident.noted", incident, {"note": body, "public": is_public})
        self._kept = (0.0, [])

    async def set_public(self, incident_id: str, is_public: bool, actor: Actor) -> None:
        """Shows the incident to tenants, or hides it. Raises IncidentNotFound."""
        async with self._database.write(EVERY_TENANT) as session:
            incident = await _held(session, incident_id)
            if incident.is_public != is_public:
                incident.is_public = is_public
                await _record(session, actor, "incident.updated", incident, {"public": is_public})
        self._kept = (0.0, [])

    async def close(self, incident_id: str, actor: Actor) -> Incident:
        """Closes an incident, or ends maintenance; before its start that cancels it. Raises IncidentNotFound,
        IncidentEnded.
        """
        async with self._database.write(EVERY_TENANT) as session:
            incident = await _held(session, incident_id)
            if incident.ended_at is not None:
                raise IncidentEnded(incident_id)
            incident.ended_at = max(datetime.now(UTC), incident.began_at)
            await _record(session, actor, "incident.closed", incident, {})
        self._kept = (0.0, [])
        return incident


async def _held(session: WriteSession, incident_id: str) -> Incident:
    found = None if "\x00" in incident_id else await IncidentRepository(session).find(incident_id, lock=True)
    if found is None:
        raise IncidentNotFound(incident_id)
    return found


async def _record(
    session: WriteSession, actor: Actor, type: str, incident: Incident, details: dict[str, str | bool]
) -> None:
    await AuditLog.record(session, OPERATOR_CHAIN, actor, type, ("incident", incident.id), details)


def _note(incident: Incident, body: str, is_public: bool, actor: Actor) -> IncidentNote:
    return IncidentNote(
        id=new_id("note"),
        incident_id=incident.id,
        at=datetime.now(UTC),
        author=_name(actor),
        body=body,
        is_public=is_public,
    )


def _name(actor: Actor) -> str:
    return actor.email or actor.id


def _text(field: str, given: str, most: int) -> str:
    cleaned = "\n".join(line.rstrip() for line in given.strip().splitlines())
    printable = all(char.isprintable() or char == "\n" for char in cleaned)
    if not 0 < len(cleaned) <= most or not printable or (field == "title" and "\n" in cleaned):
        raise ValueError(f"{field} must have 1 to {most} printable characters")
    return cleaned
