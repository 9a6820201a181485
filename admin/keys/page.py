"""Gathers the API key pages, and parses the forms that create and edit keys."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, TypeVar

from admin.badge import Badge
from admin.web.form_errors import FieldError
from admin.web.sorting import Column, Heading, Sort, headings, sort_rows
from tenants.context import KeyKind
from tenants.key_service import KEEP, KeyChanges, KeyRestrictions, KeyService, ShownKey
from tenants.models import ApiKey, Project, User
from tenants.projects.service import ProjectService

PAGE = 50
MAX_SORTED = 500
MAX_PROJECTS = 100
COLUMNS = (
    Column("Name", "name"),
    Column("Status", "status"),
    Column("Key"),
    Column("Project", "project"),
    Column("Last used", "last_used_at", starts_descending=True),
    Column("Expires", "expires_at"),
)
FIELDS = ("name", "project", "owner", "scopes", "models", "networks", "origins", "expires_at")
SCOPE_FIELD = "scope:"
"""Before the scope, in the name of its box."""
GRACES = (
    (86_400, "24 hours"),
    (3_600, "1 hour"),
    (7 * 86_400, "7 days"),
    (30 * 86_400, "30 days"),
    (0, "Immediately"),
)
_SOON = timedelta(days=7)
_WORDS: Mapping[str, str] = {
    "model.request": "Send requests to models",
    "models.read": "List models",
    "files.read": "Read files",
    "files.write": "Upload and delete files",
    "adapters.read": "View adapters, jobs and reports",
    "adapters.write": "Create, activate and delete adapters",
    "generations.read": "View usage and cost of requests",
    "sla.read": "View service level reports",
    "usage.read": "View usage and costs",
}
_THINGS: Mapping[str, str] = {
    "members": "members and invitations",
    "keys": "API keys",
    "projects": "projects",
    "adapters": "adapters",
    "limits": "limits",
    "billing": "billing",
    "audit": "the audit log",
}
T = TypeVar("T")
_PIECES = re.compile(r"[\s,]+")


@dataclass(frozen=True)
class KeyRow:
    """A key as pages show it."""

    id: str
    name: str
    prefix: str
    kind: KeyKind
    project_id: str | None
    project: str | None
    whose: str | None
    """The person or program with whom it ends."""
    scopes: list[str]
    models: list[str]
    networks: list[str]
    origins: list[str]
    created_at: datetime
    last_used_at: datetime | None
    expires_at: datetime | None
    state: Badge
    is_live: bool
    may_rotate: bool
    replaced_by: str | None


@dataclass(frozen=True)
class KeyList:
    headings: list[Heading]
    rows: list[KeyRow]
    num_sorted: int | None
    """How many of the newest were sorted, if that isn't all."""
    next_after: str | None


class KeysPage:
    """Gathers the pages."""

    def __init__(self, keys: KeyService, projects: ProjectService) -> None:
        self._keys = keys
        self._projects = projects

    async def index(
        self, tenant_id: str, after: str | None, *, with_revoked: bool, sort: Sort | None = None
    ) -> KeyList:
        """Newest first, in pages; sorted, they come in one. Raises DatabaseUnavailable."""
        limit = PAGE if sort is None else MAX_SORTED
        found = await self._keys.list(tenant_id, with_revoked=with_revoked, after=after, limit=limit + 1)
        names = await self._names(tenant_id)
        rows = [row_of(one, names) for one in found[:limit]]
        has_more = len(found) > limit
        if sort is None:
            return KeyList(headings(COLUMNS, sort), rows, None, rows[-1].id if has_more else None)
        rows = sort_rows(rows, sort, _sort_value)
        return KeyList(headings(COLUMNS, sort), rows, len(rows) if has_more else None, None)

    async def one(self, tenant_id: str, key_id: str) -> KeyRow:
        """Raises KeyNotFound, DatabaseUnavailable."""
        return row_of(await self._keys.get(tenant_id, key_id), await self._names(tenant_id))

    async def projects(self, tenant_id: str) -> list[Project]:
        """That a key can be made for, the default one first."""
        found = await self._projects.list(tenant_id, limit=MAX_PROJECTS, newest_first=False)
        return sorted(found, key=lambda project: not project.is_default)

    async def _names(self, tenant_id: str) -> dict[str, str]:
        found = await self._projects.list(tenant_id, with_archived=True, limit=MAX_PROJECTS)
        return {project.id: project.name for project in found}


def _sort_value(row: KeyRow, column: str) -> Any:
    if column == "status":
        return row.state.word
    found = getattr(row, column)
    return found.casefold() if isinstance(found, str) else found


def scope_choices(scopes: Collection[str]) -> list[tuple[str, str]]:
    """(scope, what it lets a key do), in an order to read."""
    return [(scope, scope_words(scope)) for scope in sorted(scopes, key=lambda scope: (_thing(scope), scope))]


def scope_words(scope: str) -> str:
    if scope in _WORDS:
        return _WORDS[scope]
    *_, thing, verb = ["", *scope.split(".")]
    return f"{'Manage' if verb == 'write' else 'View'} {_THINGS.get(thing, thing)}"


def read_restrictions(form: Mapping[str, str], scopes: Collection[str]) -> KeyRestrictions:
    """What the form asks for; `scopes` are those of the key's kind. Raises Refused."""
    return KeyRestrictions(
        scopes=read_scopes(form, scopes),
        models=frozenset(_pieces(form.get("models", ""))),
        networks=tuple(_pieces(form.get("networks", ""))),
        origins=tuple(_pieces(form.get("origins", ""))),
        expires_at=read_end(form.get("expires_at", "")),
    )


def fields_of(key_row: KeyRow) -> dict[str, str]:
    """The form of a key as it is."""
    fields = {
        "name": key_row.name,
        "all_scopes": "no" if key_row.scopes else "yes",
        "models": "\n".join(key_row.models),
        "networks": "\n".join(key_row.networks),
        "origins": "\n".join(key_row.origins),
        "expires_at": ""
        if key_row.expires_at is None
        else key_row.expires_at.astimezone(UTC).date().isoformat(),
    }
    return fields | {f"{SCOPE_FIELD}{scope}": "on" for scope in key_row.scopes}


def read_changes(form: Mapping[str, str], key_row: KeyRow, scopes: Collection[str]) -> KeyChanges:
    """What the form asks for, where that is not as it is already. Raises Refused."""
    before = fields_of(key_row)
    chosen = read_scopes(form, frozenset(scopes) | frozenset(key_row.scopes))
    ends = form.get("expires_at", "").strip()
    return KeyChanges(
        name=_changed(form, before, "name", form.get("name", "")),
        scopes=None if chosen == frozenset(key_row.scopes) else chosen,
        models=_changed(form, before, "models", frozenset(_pieces(form.get("models", "")))),
        networks=_changed(form, before, "networks", tuple(_pieces(form.get("networks", "")))),
        origins=_changed(form, before, "origins", tuple(_pieces(form.get("origins", "")))),
        expires_at=KEEP if ends == before["expires_at"] else read_end(ends),
    )


def read_scopes(form: Mapping[str, str], scopes: Collection[str]) -> frozenset[str]:
    """Empty: everything. Raises Refused."""
    chosen = frozenset(name.removeprefix(SCOPE_FIELD) for name in form if name.startswith(SCOPE_FIELD))
    if form.get("all_scopes") == "no" and not chosen:
        raise FieldError("scopes", "Choose at least one permission, or All.")
    if not chosen <= frozenset(scopes):
        raise FieldError("scopes", "One of these permissions isn't available for this key type.")
    return chosen if form.get("all_scopes") == "no" else frozenset()


def _changed(form: Mapping[str, str], before: Mapping[str, str], field: str, value: T) -> T | None:
    """None where the field is missing, or is as it was."""
    return None if field not in form or form[field].split() == before[field].split() else value


def read_grace(form: Mapping[str, str]) -> timedelta:
    """How long the old key works on. Raises Refused."""
    seconds = form.get("grace", "")
    if seconds not in {str(one) for one, _ in GRACES}:
        raise FieldError("grace", "Choose when the old key expires.")
    return timedelta(seconds=int(seconds))


def read_end(written: str) -> datetime | None:
    """The end of the day that is written; None where none is. Raises Refused."""
    if not written.strip():
        return None
    try:
        day = date.fromisoformat(written.strip())
    except ValueError:
        raise FieldError("expires_at", "Enter a date such as 2030-12-31.") from None
    if day < datetime.now(UTC).date():
        raise FieldError("expires_at", "Choose today or a later date.")
    return datetime.combine(day, time(23, 59, 59), UTC)


def _pieces(written: str) -> list[str]:
    return [piece for piece in _PIECES.split(written) if piece]


def _thing(scope: str) -> str:
    return "" if scope == "model.request" else scope.rpartition(".")[0]


def row_of(found: ShownKey, projects: Mapping[str, str]) -> KeyRow:
    key, user, account = found
    now = datetime.now(UTC)
    live = key.revoked_at is None and (key.expires_at is None or key.expires_at > now)
    return KeyRow(
        id=key.id,
        name=key.name,
        prefix=key.prefix,
        kind=key.kind,  # type: ignore[arg-type]
        project_id=key.project_id,
        project=None if key.project_id is None else projects.get(key.project_id, key.project_id),
        whose=user.email if user is not None else account.name if account is not None else None,
        scopes=[*key.scopes],
        models=[*key.models],
        networks=[str(network) for network in key.networks],
        origins=[*key.origins],
        created_at=key.created_at,
        last_used_at=key.last_used_at,
        expires_at=key.expires_at,
        state=_state(key, user, now),
        is_live=live,
        may_rotate=live and key.replaced_by is None,
        replaced_by=key.replaced_by,
    )


def _state(key: ApiKey, user: User | None, now: datetime) -> Badge:
    if key.revoked_at is not None:
        return Badge("Revoked", "off")
    if key.expires_at is not None and key.expires_at <= now:
        return Badge("Expired", "off")
    if user is not None and user.disabled_at is not None:
        return Badge("Owner suspended", "off")
    if key.replaced_by is not None:
        return Badge("Rotating", "warn")
    if key.expires_at is not None and key.expires_at <= now + _SOON:
        return Badge("Expires soon", "warn")
    return Badge("Active", "good")


def checked_kind(written: str) -> KeyKind:
    """Raises Refused."""
    if written == "inference" or written == "admin":
        return written  # type: ignore[return-value]
    raise FieldError("kind", "Choose inference or admin.")
