"""Opens and closes incidents and adds notes, for operators, and shows public ones to tenants.

Every method is one transaction with an entry in the operator's audit log.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
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
            found = await repository.open(public_alone=True)
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
    ) -> Incident:
        """Opens an incident. Raises ValueError naming the field."""
        now = datetime.now(UTC)
        if severity not in SEVERITIES:
            raise ValueError(f"severity must be one of {', '.join(SEVERITIES)}")
        if began_at is not None and began_at > now:
            raise ValueError("began_at must not be in the future")
        incident = Incident(
            id=new_id("inc"),
            title=_text("title", title, MAX_TITLE_LEN),
            severity=severity,
            is_public=is_public,
            began_at=began_at or now,
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
            await _record(session, actor, "incident.opened", incident, details)
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
        """Closes an incident. Raises IncidentNotFound, IncidentEnded."""
        async with self._database.write(EVERY_TENANT) as session:
            incident = await _held(session, incident_id)
            if incident.ended_at is not None:
                raise IncidentEnded(incident_id)
            incident.ended_at = datetime.now(UTC)
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
