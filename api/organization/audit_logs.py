"""`/v1/organization/audit_logs`: lists and verifies who changed what in the account, when and from where.

Entries have the fields of OpenAI's client, and ours: the position in the chain, the target and the details.
The services that make a change write its entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from fastapi import Depends, Query, Request

from api.authentication import READ_AUDIT
from api.errors import InvalidValue
from api.openapi.routing import Router, texts_query
from api.organization.admin_requests import authenticated_admin
from api.pagination import Cursor, Page, Paged, page
from db.errors import UnknownCursor
from tenants.audit.models import AuditEntry
from tenants.audit.repository import AuditFilter

router = Router(prefix="/v1/organization/audit_logs", tags=["Audit"])

_MAX_VALUES = 100
_MAX_SECONDS = 1 << 36

Listed = list[str] | None


class AuditTarget(TypedDict):
    kind: str
    id: str


class AuditProject(TypedDict):
    id: str


class AuditEntryObject(TypedDict):
    """A change in the organization.

    A field named like `type` has the change as OpenAI's clients read it: the target's `id`, with
    `changes_requested` or `data`.
    """

    id: str
    object: Literal["organization.audit_log"]
    type: str
    """What happened, such as `api_key.created`."""
    effective_at: int
    """Unix seconds."""
    actor: dict[str, Any]
    """Who made the change: an API key, a session, the identity provider, the operator or the service."""
    project: NotRequired[AuditProject]
    """The project of the target, where it is in one."""
    seq: int
    """The entry's place in the log, from 1, without gaps."""
    target: AuditTarget
    """What was changed."""
    details: dict[str, Any]
    """What the target was created with or changed to."""
    request_id: str | None
    """The `x-request-id` of the request that made the change."""
    previous: str
    """The digest of the entry before, in hex."""
    digest: str
    """The SHA-256 of this entry and the one before, in hex."""


class AuditVerificationObject(TypedDict):
    """Whether the audit log is complete."""

    object: Literal["organization.audit_log.verification"]
    intact: bool
    """Whether every entry is there and unchanged."""
    first_broken: int | None
    """The place of the first entry that is missing or changed."""
    last_seq: int
    """The place of the last entry; 0 for an empty log."""
    last_id: str | None
    digest: str | None
    """The digest of the last entry. Kept elsewhere, it proves everything up to it."""


@dataclass(frozen=True, slots=True)
class Range:
    """Unix seconds between which entries were written."""

    since: datetime | None
    """Included."""
    until: datetime | None
    """Not."""


async def _range(
    gt: Annotated[int | None, Query(alias="effective_at[gt]", ge=0, le=_MAX_SECONDS)] = None,
    gte: Annotated[int | None, Query(alias="effective_at[gte]", ge=0, le=_MAX_SECONDS)] = None,
    lt: Annotated[int | None, Query(alias="effective_at[lt]", ge=0, le=_MAX_SECONDS)] = None,
    lte: Annotated[int | None, Query(alias="effective_at[lte]", ge=0, le=_MAX_SECONDS)] = None,
) -> Range:
    """Returns the range of times. Entries show whole seconds, so "after this second" starts with the next."""
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
    event_types: Annotated[Listed, texts_query("event_types", _MAX_VALUES)] = None,
    actor_ids: Annotated[Listed, texts_query("actor_ids", _MAX_VALUES)] = None,
    actor_emails: Annotated[Listed, texts_query("actor_emails", _MAX_VALUES)] = None,
    resource_ids: Annotated[Listed, texts_query("resource_ids", _MAX_VALUES)] = None,
    project_ids: Annotated[Listed, texts_query("project_ids", _MAX_VALUES)] = None,
) -> Page[AuditEntryObject]:
    """Lists changes in the organization, the newest first. Filters can be repeated."""
    who = await authenticated_admin(request, READ_AUDIT)
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
    return page([entry_object(entry) for entry in entries], query.limit, more)


@router.get("/verification", operation_id="verifyAuditLogs")
async def verify_audit_logs(request: Request) -> AuditVerificationObject:
    """Checks that every entry of the audit log is there and unchanged. Keep the `digest` elsewhere: it proves
    everything up to it.
    """
    who = await authenticated_admin(request, READ_AUDIT)
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


def entry_object(entry: AuditEntry) -> AuditEntryObject:
    told: dict[str, Any] = {"id": entry.target_id}
    if entry.details:
        told["changes_requested" if entry.type.endswith(".updated") else "data"] = entry.details
    shown: AuditEntryObject = {
        "id": entry.id,
        "object": "organization.audit_log",
        "type": entry.type,
        "effective_at": int(entry.at.timestamp()),
        "actor": actor_object(entry.actor),
        "seq": entry.seq,
        "target": {"kind": entry.target_kind, "id": entry.target_id},
        "details": entry.details,
        "request_id": entry.actor.get("request_id"),
        "previous": bytes(entry.previous).hex(),
        "digest": bytes(entry.digest).hex(),
    }
    if entry.project_id is not None:
        shown["project"] = {"id": entry.project_id}
    shown[entry.type] = told  # type: ignore[literal-required]  # the stock client's field
    return shown


def actor_object(actor: dict[str, Any]) -> dict[str, Any]:
    """Returns a key or a session in the format of OpenAI's client; or the operator, or the service itself."""
    kind, address, behind = actor["type"], actor.get("address"), actor.get("user_id")
    if kind == "user":
        user = {"id": actor["id"], "email": actor.get("email")}
        return {"type": "session", "session": {"ip_address": address, "user": user}}
    if kind != "api_key":
        # For an impersonating operator both: the member's account, and the operator.
        return {name: actor[name] for name in ("type", "id", "email", "user_id") if name in actor}
    key: dict[str, Any] = {"id": actor["id"]}
    if behind is not None:
        owner = "service_account" if behind.startswith("svc_acct_") else "user"
        key |= {"type": owner, owner: {"id": behind}}
    return {"type": "api_key", "api_key": key, "ip_address": address}
