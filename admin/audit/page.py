"""Gathers the audit log page: reads its filter, and formats entries."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from admin.web.form_errors import FieldError
from tenants.audit.service import AuditEntry, AuditFilter, AuditLog

PAGE = 50
FIELDS = ("type", "actor", "target", "since", "until")
KNOWN_TYPES = (
    "adapter.activated",
    "adapter.created",
    "adapter.deleted",
    "adapter_version.created",
    "api_key.created",
    "api_key.deleted",
    "api_key.rotated",
    "api_key.updated",
    "federation_rule.created",
    "federation_rule.deleted",
    "federation_rule.updated",
    "group.created",
    "group.deleted",
    "group.updated",
    "identity.added",
    "identity.removed",
    "impersonation.began",
    "impersonation.ended",
    "invite.accepted",
    "invite.deleted",
    "invite.sent",
    "limit.deleted",
    "limit.set",
    "login.succeeded",
    "organization.updated",
    "password.changed",
    "password.reset_made",
    "project.archived",
    "project.created",
    "project.updated",
    "role.assignment.created",
    "role.assignment.deleted",
    "saml_connection.created",
    "saml_connection.deleted",
    "saml_connection.updated",
    "scim_token.created",
    "scim_token.deleted",
    "signing_key.created",
    "signing_key.deleted",
    "second_factor.added",
    "second_factor.recovery_codes_renewed",
    "second_factor.removed",
    "user.added",
    "user.deleted",
    "user.disabled",
    "user.enabled",
    "user.updated",
    "workload_identity_provider.created",
    "workload_identity_provider.deleted",
    "workload_identity_provider.updated",
)
"""To choose from; any other can be written."""
_MAX_LEN = 200


@dataclass(frozen=True)
class EntryRow:
    id: str
    seq: int
    at: datetime
    type: str
    what: str
    who: str
    address: str | None
    target_kind: str
    target_id: str
    details: list[tuple[str, str]]


@dataclass(frozen=True)
class Entries:
    rows: list[EntryRow]
    next_after: str | None


class AuditPage:
    """Gathers the page."""

    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit

    async def gather(self, tenant_id: str, wanted: AuditFilter, after: str | None) -> Entries:
        """Raises UnknownCursor, DatabaseUnavailable."""
        found = await self._audit.list(tenant_id, wanted, after=after, limit=PAGE + 1)
        rows = [row_of(entry) for entry in found[:PAGE]]
        return Entries(rows, rows[-1].id if len(found) > PAGE else None)

    async def first_broken(self, tenant_id: str) -> int | None:
        """Reads the whole chain."""
        return await self._audit.verify(tenant_id)


def read_filter(fields: Mapping[str, str]) -> AuditFilter:
    """Raises Refused."""
    given = {name: fields.get(name, "").strip() for name in FIELDS}
    for name, value in given.items():
        if len(value) > _MAX_LEN or "\x00" in value:
            raise FieldError(name, "This value is too long or contains invalid characters.")
    until = _day("until", given["until"])
    actor = given["actor"]
    return AuditFilter(
        types=[given["type"]] if given["type"] else (),
        actor_ids=[actor] if actor and "@" not in actor else (),
        actor_emails=[actor] if "@" in actor else (),
        target_ids=[given["target"]] if given["target"] else (),
        since=_day("since", given["since"]),
        until=None if until is None else until + timedelta(days=1),
    )


def _day(name: str, written: str) -> datetime | None:
    if not written:
        return None
    try:
        day = date.fromisoformat(written)
        if not 2000 <= day.year < 9999:
            raise ValueError(written)
    except ValueError:
        raise FieldError(name, "Enter a date such as 2026-12-31.") from None
    return datetime.combine(day, time(), UTC)


def row_of(entry: AuditEntry) -> EntryRow:
    actor = entry.actor
    return EntryRow(
        id=entry.id,
        seq=entry.seq,
        at=entry.at,
        type=entry.type,
        what=_words(entry.type),
        who=_who(actor),
        address=actor.get("address"),
        target_kind=entry.target_kind.replace("_", " ").replace("api key", "API key"),
        target_id=entry.target_id,
        details=[(name.replace("_", " "), _shown(value)) for name, value in entry.details.items()],
    )


def _who(actor: Mapping[str, Any]) -> str:
    email = actor.get("email")
    if actor["type"] == "operator":
        name = f"operator {email}" if email else "operator"
        return f"{name} for {actor['user_id']}" if "user_id" in actor else name
    if actor["type"] in ("scim_token", "saml_connection", "workload_identity"):
        kind = actor["type"].replace("_", " ").replace("scim", "SCIM").replace("saml", "SAML")
        return f"{kind} {actor['id']}"
    return str(email or (actor["id"] if actor["type"] in ("user", "api_key") else actor["type"]))


def _words(kind: str) -> str:
    text = kind.replace("_", " ").replace(".", " ").replace("api key", "API key").replace("scim", "SCIM")
    text = text.replace("saml", "SAML")
    return text[:1].upper() + text[1:]


def _shown(value: Any) -> str:
    if value is None or value == []:
        return "none"
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return ", ".join(value)
    return json.dumps(value, ensure_ascii=False)
