"""`/v1/organization/audit_logs`: who changed what in the account, when and from where.

Owns the stock client's form of an entry; ours stands beside it: the entry's place in the chain, its target
and its details. Reads and proves; entries are written by whoever makes the change.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request

from api.deps import READ_AUDIT
from api.errors import InvalidValue
from api.openapi import ERROR_RESPONSES
from api.organization.requests import asking
from api.pages import Cursor, Paged, page
from db.errors import UnknownCursor
from tenants.audit.models import AuditEntry
from tenants.audit.repository import AuditFilter

router = APIRouter(prefix="/v1/organization/audit_logs", responses=ERROR_RESPONSES, tags=["Audit"])

_MAX_VALUES = 100
_MAX_SECONDS = 1 << 36

Listed = list[str] | None


@dataclass(frozen=True, slots=True)
class Range:
    """Unix seconds between which entries were written."""

    since: datetime | None
    """Included."""
    until: datetime | None
    """Not."""


def _range(
    gt: Annotated[int | None, Query(alias="effective_at[gt]", ge=0, le=_MAX_SECONDS)] = None,
    gte: Annotated[int | None, Query(alias="effective_at[gte]", ge=0, le=_MAX_SECONDS)] = None,
    lt: Annotated[int | None, Query(alias="effective_at[lt]", ge=0, le=_MAX_SECONDS)] = None,
    lte: Annotated[int | None, Query(alias="effective_at[lte]", ge=0, le=_MAX_SECONDS)] = None,
) -> Range:
    """Entries show whole seconds, so that "after this second" begins with the next."""
    begins = [second for second in (gte, None if gt is None else gt + 1) if second is not None]
    ends = [second for second in (lt, None if lte is None else lte + 1) if second is not None]
    return Range(_moment(max(begins)) if begins else None, _moment(min(ends)) if ends else None)


def _moment(second: int) -> datetime:
    return datetime.fromtimestamp(second, UTC)


@router.get("", operation_id="listAuditLogs")
async def list_audit_logs(
    request: Request,
    query: Paged,
    between: Annotated[Range, Depends(_range)],
    before: Cursor = None,
    event_types: Annotated[Listed, Query(alias="event_types[]")] = None,
    actor_ids: Annotated[Listed, Query(alias="actor_ids[]")] = None,
    actor_emails: Annotated[Listed, Query(alias="actor_emails[]")] = None,
    resource_ids: Annotated[Listed, Query(alias="resource_ids[]")] = None,
    project_ids: Annotated[Listed, Query(alias="project_ids[]")] = None,
) -> dict[str, Any]:
    """The newest first. Lists are taken with and without the brackets of the stock client."""
    who = await asking(request, READ_AUDIT)
    if query.after is not None and before is not None:
        raise InvalidValue("Give either 'after' or 'before'.", "before")

    def values(name: str, bracketed: Listed) -> list[str]:
        found = [*(bracketed or ()), *request.query_params.getlist(name)]
        if len(found) > _MAX_VALUES or any("\x00" in value for value in found):
            raise InvalidValue(f"Give at most {_MAX_VALUES} values.", name)
        return found

    wanted = AuditFilter(
        types=values("event_types", event_types),
        actor_ids=values("actor_ids", actor_ids),
        actor_emails=values("actor_emails", actor_emails),
        target_ids=values("resource_ids", resource_ids),
        project_ids=values("project_ids", project_ids),
        since=between.since,
        until=between.until,
    )
    backwards = before is not None
    try:
        found = await who.accounts.audit.list(
            who.tenant_id,
            wanted,
            after=before if backwards else query.after,
            limit=query.limit + 1,
            newest_first=query.newest_first != backwards,
        )
    except UnknownCursor:
        raise UnknownCursor("before" if backwards else "after") from None
    more = len(found) > query.limit
    entries = found[: query.limit]
    if backwards:
        entries.reverse()
    return page([entry_object(entry) for entry in entries], query.limit) | {"has_more": more}


@router.get("/verification", operation_id="verifyAuditLogs")
async def verify_audit_logs(request: Request) -> dict[str, Any]:
    """Whether every entry is there and as it was written. `digest` is that of the last one: kept elsewhere,
    it proves all that came before.
    """
    who = await asking(request, READ_AUDIT)
    newest = await who.accounts.audit.list(who.tenant_id, limit=1)
    broken = await who.accounts.audit.verify(who.tenant_id)
    return {
        "object": "organization.audit_log.verification",
        "intact": broken is None,
        "first_broken": broken,
        "last_seq": newest[0].seq if newest else 0,
        "last_id": newest[0].id if newest else None,
        "digest": bytes(newest[0].digest).hex() if newest else None,
    }


def entry_object(entry: AuditEntry) -> dict[str, Any]:
    told: dict[str, Any] = {"id": entry.target_id}
    if entry.details:
        told["changes_requested" if entry.type.endswith(".updated") else "data"] = entry.details
    shown = {
        "id": entry.id,
        "object": "organization.audit_log",
        "type": entry.type,
        "effective_at": int(entry.at.timestamp()),
        "actor": actor_object(entry.actor),
        entry.type: told,
        "seq": entry.seq,
        "target": {"kind": entry.target_kind, "id": entry.target_id},
        "details": entry.details,
        "request_id": entry.actor.get("request_id"),
        "previous": bytes(entry.previous).hex(),
        "digest": bytes(entry.digest).hex(),
    }
    if entry.project_id is not None:
        shown["project"] = {"id": entry.project_id}
    return shown


def actor_object(actor: dict[str, Any]) -> dict[str, Any]:
    """A key or a session, as the stock client knows them; or the operator, or the service itself."""
    kind, address, behind = actor["type"], actor.get("address"), actor.get("user_id")
    if kind == "user":
        user = {"id": actor["id"], "email": actor.get("email")}
        return {"type": "session", "session": {"ip_address": address, "user": user}}
    if kind != "api_key":
        # Of an operator in a user's place both, whose account it was and for whom.
        return {name: actor[name] for name in ("type", "id", "email", "user_id") if name in actor}
    key: dict[str, Any] = {"id": actor["id"]}
    if behind is not None:
        owner = "service_account" if behind.startswith("svc_acct_") else "user"
        key |= {"type": owner, owner: {"id": behind}}
    return {"type": "api_key", "api_key": key, "ip_address": address}
