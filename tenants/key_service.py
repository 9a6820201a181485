"""Manages API keys: creates, lists, changes, rotates and revokes them.

Every method is one transaction. Resolver caches are invalidated after the commit, within a second.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import redis.asyncio
from sqlalchemy import ColumnElement

from db.base import new_id
from db.session import Database, WriteSession
from tenants import keys
from tenants.actors import Actor
from tenants.audit.service import AuditLog
from tenants.context import KEY_KINDS, KeyKind
from tenants.errors import (
    KeyNotActive,
    KeyNotFound,
    ProjectArchived,
    ProjectNotFound,
    RightsNotHeld,
    ServiceAccountNotFound,
    TenantNotFound,
    UserNotFound,
)
from tenants.key_restrictions import (
    KEEP,
    Keep,
    KeyChanges,
    KeyRestrictions,
    changed_columns,
    columns_of,
    require_held,
)
from tenants.key_secrets import KeySecrets
from tenants.limits.repository import LimitRepository
from tenants.members.repository import MemberRepository
from tenants.models import ApiKey, Project
from tenants.projects.repository import ProjectRepository
from tenants.repository import KeyRepository, ShownKey, TenantDirectory
from tenants.resolver import publish_key_change
from tenants.validation import checked_name

__all__ = ["KEEP", "CreatedKey", "Keep", "KeyChanges", "KeyRestrictions", "KeyService", "ShownKey"]

DEFAULT_GRACE = timedelta(days=1)
MAX_GRACE = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class CreatedKey:
    """A new key. The plaintext is shown once and never stored."""

    id: str
    plaintext: str = field(repr=False)
    prefix: str
    kind: KeyKind
    expires_at: datetime | None
    row: ApiKey = field(repr=False)


class KeyService:
    """API keys of all tenants, stored as HMACs under `secret`, which is the server's."""

    def __init__(
        self, database: Database, redis_client: redis.asyncio.Redis, secret: str | KeySecrets
    ) -> None:
        self._database = database
        self._redis = redis_client
        self._hasher = keys.KeyHasher(secret)

    async def create(
        self,
        tenant_id: str,
        name: str,
        actor: Actor,
        *,
        kind: KeyKind = "inference",
        project_id: str | None = None,
        user_id: str | None = None,
        service_account_id: str | None = None,
        restrictions: KeyRestrictions | None = None,
        federation_rule_id: str | None = None,
    ) -> CreatedKey:
        """Creates a key. Only the returned object has its plaintext.

        An inference key belongs to a project: the given one, else its service account's, else the default. A
        key is revoked with its user or service account. An admin key belongs to the user who creates it.

        Raises:
            TenantNotFound, ProjectNotFound, ProjectArchived, UserNotFound, ServiceAccountNotFound
            RightsNotHeld: the admin key would have more scopes than `actor`, or act for another user.
            ValueError: naming the field.
        """
        if kind not in KEY_KINDS:
            raise ValueError(f"kind must be one of {', '.join(KEY_KINDS)}, not {kind!r}")
        if kind == "admin" and (project_id is not None or service_account_id is not None):
            raise ValueError("kind: an admin key is the organization's, not a project's")
        restrictions = restrictions or KeyRestrictions()
        row = ApiKey(
            tenant_id=tenant_id,
            name=checked_name("name", name),
            kind=kind,
            user_id=user_id,
            service_account_id=service_account_id,
            federation_rule_id=federation_rule_id,
            **columns_of(restrictions, kind, actor),
        )
        async with self._database.write(tenant_id) as session:
            if await TenantDirectory(session).tenant(tenant_id) is None:
                raise TenantNotFound(tenant_id)
            if kind == "inference":
                row.project_id = await self._project_of_new(session, row, project_id)
            else:
                row.user_id = user_id = user_id or actor.user_id
                await _require_own(session, row, actor)
            if user_id is not None and await MemberRepository(session, tenant_id).hold(user_id) is None:
                raise UserNotFound(user_id)
            made = self._add(session, row)
            await AuditLog.record(
                session,
                tenant_id,
                actor,
                "api_key.created",
                ("api_key", row.id),
                _described(row),
                project_id=row.project_id,
            )
        return _created(row, made)

    async def list(
        self,
        tenant_id: str,
        *,
        kind: KeyKind | None = None,
        project_id: str | None = None,
        user_id: str | None = None,
        service_account_id: str | None = None,
        with_revoked: bool = False,
        after: str | None = None,
        limit: int = 20,
        newest_first: bool = True,
    ) -> list[ShownKey]:
        """Returns keys after the one with the id `after`, in order of creation."""
        chosen: list[ColumnElement[bool]] = [
            column == wanted
            for column, wanted in (
                (ApiKey.kind, kind),
                (ApiKey.project_id, project_id),
                (ApiKey.user_id, user_id),
                (ApiKey.service_account_id, service_account_id),
            )
            if wanted is not None
        ]
        async with self._database.read(tenant_id) as session:
            page = await KeyRepository(session, tenant_id).page(
                *chosen, with_revoked=with_revoked, after=after, limit=limit, newest_first=newest_first
            )
        return [*page]

    async def get(self, tenant_id: str, key_id: str, *, kind: KeyKind | None = None) -> ShownKey:
        """Returns a key, also if it is revoked. Raises KeyNotFound, also if the key is of another kind."""
        async with self._database.read(tenant_id) as session:
            found = await KeyRepository(session, tenant_id).find(key_id)
        if found is None or (kind is not None and found[0].kind != kind):
            raise KeyNotFound(key_id)
        return found

    async def update(
        self,
        tenant_id: str,
        key_id: str,
        changes: KeyChanges,
        actor: Actor,
        *,
        kind: KeyKind | None = None,
        project_id: str | None = None,
    ) -> ShownKey:
        """Changes a key in every process within a second. Raises KeyNotFound, also if it is not of `kind` or
        in `project_id`; KeyNotActive, RightsNotHeld, ValueError naming the field.
        """
        async with self._database.write(tenant_id) as session:
            row = await _locked(session, tenant_id, key_id, kind, project_id)
            if row.revoked_at is not None:
                raise KeyNotActive(key_id, "revoked")
            changed = changed_columns(row, changes, actor)
            for name, value in changed.items():
                setattr(row, name, value)
            await AuditLog.record(
                session,
                tenant_id,
                actor,
                "api_key.updated",
                ("api_key", key_id),
                {name: _described(row).get(name) for name in changed},
                project_id=row.project_id,
            )
            self._invalidate(session, row.digest)
            found = await KeyRepository(session, tenant_id).find(key_id)
            assert found is not None
        return found

    async def rotate(
        self,
        tenant_id: str,
        key_id: str,
        actor: Actor,
        *,
        grace: timedelta = DEFAULT_GRACE,
        kind: KeyKind | None = None,
        project_id: str | None = None,
    ) -> CreatedKey:
        """Replaces a key by a new one with the same restrictions, lifetime and limits; the old one keeps
        working until `grace` ends.

        Raises KeyNotFound; KeyNotActive if it is revoked, expired or already rotated; RightsNotHeld,
        ValueError.
        """
        if not timedelta(0) <= grace <= MAX_GRACE:
            raise ValueError(f"grace must be from 0 to {MAX_GRACE.total_seconds():.0f} seconds")
        async with self._database.write(tenant_id) as session:
            old = await _locked(session, tenant_id, key_id, kind, project_id)
            now = datetime.now(UTC)
            _require_active(old, now)
            if old.kind == "admin":
                require_held("key", frozenset(old.scopes), actor)
                await _require_own(session, old, actor)
            row = ApiKey(
                tenant_id=tenant_id,
                **{name: getattr(old, name) for name in _CARRIED_OVER},
                expires_at=None if old.expires_at is None else now + (old.expires_at - old.created_at),
            )
            made = self._add(session, row)
            await session.flush()
            await LimitRepository(session, tenant_id).carry_over(old.id, row.id)
            ends = now + grace
            old.rotated_at, old.replaced_by = now, row.id
            old.expires_at = ends if old.expires_at is None else min(ends, old.expires_at)
            await AuditLog.record(
                session,
                tenant_id,
                actor,
                "api_key.rotated",
                ("api_key", key_id),
                {"replaced_by": row.id, "expires_at": old.expires_at.isoformat()},
                project_id=old.project_id,
            )
            self._invalidate(session, old.digest)
        return _created(row, made)

    async def revoke(
        self,
        tenant_id: str,
        key_id: str,
        actor: Actor,
        *,
        kind: KeyKind | None = None,
        project_id: str | None = None,
    ) -> None:
        """Revokes a key in every process within a second. Revoking it again changes nothing. Raises
        KeyNotFound.
        """
        async with self._database.write(tenant_id) as session:
            row = await _locked(session, tenant_id, key_id, kind, project_id)
            if row.revoked_at is None:
                await KeyRepository(session, tenant_id).revoke(ApiKey.id == key_id)
                await AuditLog.record(
                    session,
                    tenant_id,
                    actor,
                    "api_key.deleted",
                    ("api_key", key_id),
                    project_id=row.project_id,
                )
            self._invalidate(session, row.digest)

    async def _project_of_new(self, session: WriteSession, row: ApiKey, project_id: str | None) -> str:
        projects = ProjectRepository(session, row.tenant_id)
        if row.service_account_id is not None:
            account = await projects.hold_account(row.service_account_id)
            if account is None or project_id not in (None, account.project_id):
                raise ServiceAccountNotFound(row.service_account_id)
            project_id = account.project_id
        project: Project | None
        if project_id is None:
            project = await projects.default()
        else:
            project = await projects.hold(project_id)
        if project is None:
            raise ProjectNotFound(project_id or "default")
        if project.archived_at is not None:
            raise ProjectArchived(project.id)
        return project.id

    def _add(self, session: WriteSession, row: ApiKey) -> keys.NewKey:
        """Generates the key's plaintext, completes `row` and adds it."""
        made = keys.generate(row.kind)  # type: ignore[arg-type]
        row.id, row.digest, row.prefix = new_id("key"), self._hasher.digest(made.plaintext), made.prefix
        row.secret_id = self._hasher.secret_id
        row.created_at = datetime.now(UTC)
        KeyRepository(session, row.tenant_id).add_own(row)
        return made

    def _invalidate(self, session: WriteSession, digest: bytes) -> None:
        session.after_commit(lambda: publish_key_change(self._redis, digest))


_CARRIED_OVER = (
    *("name", "kind", "project_id", "user_id", "service_account_id"),
    *("scopes", "models", "networks", "origins"),
)
"""Columns that a rotation copies to the new key."""


async def _locked(
    session: WriteSession, tenant_id: str, key_id: str, kind: KeyKind | None, project_id: str | None
) -> ApiKey:
    row = await KeyRepository(session, tenant_id).lock(key_id)
    if (
        row is None
        or (kind is not None and row.kind != kind)
        or (project_id is not None and row.project_id != project_id)
    ):
        raise KeyNotFound(key_id)
    return row


async def _require_own(session: WriteSession, row: ApiKey, actor: Actor) -> None:
    """Checks that only owners manage admin keys that act for another user or for no user: such a key can do
    what only that user may. Raises RightsNotHeld.
    """
    if actor.user_id is None or actor.user_id == row.user_id:
        return
    person = await MemberRepository(session, row.tenant_id).find(actor.user_id)
    if person is None or person.role != "owner":
        raise RightsNotHeld("user_id", {"a key of another user"})


def _require_active(row: ApiKey, now: datetime) -> None:
    if row.revoked_at is not None:
        raise KeyNotActive(row.id, "revoked")
    if row.replaced_by is not None:
        raise KeyNotActive(row.id, "already rotated")
    if row.expires_at is not None and row.expires_at <= now:
        raise KeyNotActive(row.id, "expired")


def _described(row: ApiKey) -> dict[str, Any]:
    """Returns the fields that the audit log records."""
    return {
        "name": row.name,
        "kind": row.kind,
        "user_id": row.user_id,
        "service_account_id": row.service_account_id,
        "scopes": [*row.scopes],
        "models": [*row.models],
        "networks": [str(network) for network in row.networks],
        "origins": [*row.origins],
        "expires_at": None if row.expires_at is None else row.expires_at.isoformat(),
        **({} if row.federation_rule_id is None else {"federation_rule_id": row.federation_rule_id}),
    }


def _created(row: ApiKey, made: keys.NewKey) -> CreatedKey:
    return CreatedKey(row.id, made.plaintext, made.prefix, row.kind, row.expires_at, row)  # type: ignore[arg-type]
