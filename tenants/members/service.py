"""Manages a tenant's users and their roles in projects: lists, changes, disables and removes them.

Every method is one transaction. Resolver caches are invalidated after the commit, within a second.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime

import redis.asyncio

from db.session import Database, WriteSession
from tenants.actors import Actor
from tenants.audit.service import AuditLog
from tenants.errors import LastOwner, OwnAccount, OwnersOnly, ProjectNotFound, RightsNotHeld, UserNotFound
from tenants.members.repository import Member, MemberRepository, Membership
from tenants.models import ApiKey, ProjectMember, User
from tenants.projects.repository import ProjectRepository
from tenants.projects.service import live_project
from tenants.repository import KeyRepository
from tenants.resolver import publish_key_changes, revoke_keys
from tenants.roles import (
    RIGHTS_OF,
    ProjectRole,
    Role,
    admin_scopes,
    checked_project_role,
    checked_role,
)
from tenants.validation import checked_name

__all__ = ["Member", "MemberService", "Membership"]


class MemberService:
    """Users of all tenants. They are created by invitation (`InviteService`), or by the operator
    (`UserAccounts`).
    """

    def __init__(self, database: Database, redis_client: redis.asyncio.Redis) -> None:
        self._database = database
        self._redis = redis_client

    async def list(
        self,
        tenant_id: str,
        *,
        emails: Collection[str] = (),
        after: str | None = None,
        limit: int = 20,
        newest_first: bool = True,
    ) -> list[User]:
        """Returns users after the one with the id `after`, in order of creation; with `emails`, only
        those.
        """
        async with self._database.read(tenant_id) as session:
            page = await MemberRepository(session, tenant_id).page(
                emails=emails, after=after, limit=limit, newest_first=newest_first
            )
        return [*page]

    async def get(self, tenant_id: str, user_id: str) -> User:
        """Returns a user. Raises UserNotFound."""
        async with self._database.read(tenant_id) as session:
            found = await MemberRepository(session, tenant_id).find(user_id)
        if found is None:
            raise UserNotFound(user_id)
        return found

    async def update(
        self,
        tenant_id: str,
        user_id: str,
        actor: Actor,
        *,
        role: Role | None = None,
        name: str | None = None,
    ) -> User:
        """Changes a user. A user who loses rights also loses their admin keys, in every process within a
        second.

        Raises UserNotFound, LastOwner, OwnersOnly, ValueError.
        """
        changes = {
            "role": None if role is None else checked_role(role),
            "name": None if name is None else checked_name("name", name),
        }
        async with self._database.write(tenant_id) as session:
            members = MemberRepository(session, tenant_id)
            owners, user = await _locked(members, user_id)
            revoked: Sequence[str] = []
            if role is not None and role != user.role:
                await require_may_appoint(members, actor, user.role, role)
                if owners == {user_id}:
                    raise LastOwner(user_id)
                if not RIGHTS_OF[user.role] <= RIGHTS_OF[role]:  # type: ignore[index]
                    admins = (ApiKey.user_id == user_id, ApiKey.kind == "admin")
                    revoked = await revoke_keys(session, self._redis, tenant_id, *admins)
            changed = {field: value for field, value in changes.items() if value is not None}
            for field, value in changed.items():
                setattr(user, field, value)
            details = changed | ({"revoked_keys": revoked} if revoked else {})
            await AuditLog.record(session, tenant_id, actor, "user.updated", ("user", user_id), details)
        return user

    async def disable(self, tenant_id: str, user_id: str, actor: Actor) -> User:
        """Disables a user until `enable`: their console sessions end for good, and their keys are refused
        meanwhile, in every process within a second. Roles and keys are kept. Repeating it changes nothing.

        Raises UserNotFound, OwnAccount, LastOwner, OwnersOnly.
        """
        async with self._database.write(tenant_id) as session:
            members = MemberRepository(session, tenant_id)
            owners, user = await _locked(members, user_id)
            await require_may_appoint(members, actor, user.role)
            if actor.user_id == user_id:
                raise OwnAccount(user_id)
            if owners == {user_id}:
                raise LastOwner(user_id)
            if user.disabled_at is None:
                user.disabled_at = user.sessions_from = datetime.now(UTC)
                await members.forget_resets(user_id)
                await self._record_access(session, user, actor, "user.disabled")
        return user

    async def enable(self, tenant_id: str, user_id: str, actor: Actor) -> User:
        """Enables a disabled user, and their keys. Raises UserNotFound, OwnersOnly."""
        async with self._database.write(tenant_id) as session:
            members = MemberRepository(session, tenant_id)
            _, user = await _locked(members, user_id)
            await require_may_appoint(members, actor, user.role)
            if user.disabled_at is not None:
                user.disabled_at = None
                await self._record_access(session, user, actor, "user.enabled")
        return user

    async def _record_access(self, session: WriteSession, user: User, actor: Actor, type: str) -> None:
        """Records that a user was disabled or enabled, and invalidates their keys in the caches."""
        digests = await KeyRepository(session, user.tenant_id).digests(ApiKey.user_id == user.id)
        session.after_commit(lambda: publish_key_changes(self._redis, digests))
        details = {"email": user.email, "role": user.role, "keys": len(digests)}
        await AuditLog.record(session, user.tenant_id, actor, type, ("user", user.id), details)

    async def remove(self, tenant_id: str, user_id: str, actor: Actor) -> None:
        """Removes a user from the tenant, its projects and the console, and revokes their keys, in every
        process within a second. Raises UserNotFound, LastOwner, OwnersOnly.
        """
        async with self._database.write(tenant_id) as session:
            members = MemberRepository(session, tenant_id)
            owners, user = await _locked(members, user_id)
            await require_may_appoint(members, actor, user.role)
            if owners == {user_id}:
                raise LastOwner(user_id)
            user.removed_at = datetime.now(UTC)
            await members.leave(user_id)
            await members.forget_ways_in(user_id)
            revoked = await revoke_keys(session, self._redis, tenant_id, ApiKey.user_id == user_id)
            details = {"email": user.email, "role": user.role, "revoked_keys": revoked}
            await AuditLog.record(session, tenant_id, actor, "user.deleted", ("user", user_id), details)

    # Project members --------------------------------------------------------------------------------------

    async def memberships(self, tenant_id: str, user_ids: Collection[str]) -> Sequence[Membership]:
        """Returns the memberships of these users in projects that are not archived."""
        async with self._database.read(tenant_id) as session:
            return [*await MemberRepository(session, tenant_id).memberships(user_ids)]

    async def project_members(
        self,
        tenant_id: str,
        project_id: str,
        *,
        after: str | None = None,
        limit: int = 20,
        newest_first: bool = True,
    ) -> Sequence[Member]:
        """Returns members after the user with the id `after`. Raises ProjectNotFound."""
        async with self._database.read(tenant_id) as session:
            if await ProjectRepository(session, tenant_id).find(project_id) is None:
                raise ProjectNotFound(project_id)
            page = await MemberRepository(session, tenant_id).member_page(
                project_id, after=after, limit=limit, newest_first=newest_first
            )
        return [*page]

    async def project_member(self, tenant_id: str, project_id: str, user_id: str) -> Member:
        """Returns a member. Raises UserNotFound if the project or the user does not exist."""
        async with self._database.read(tenant_id) as session:
            found = await MemberRepository(session, tenant_id).member(project_id, user_id)
        if found is None:
            raise UserNotFound(user_id)
        return found

    async def add_to_project(
        self, tenant_id: str, project_id: str, user_id: str, role: ProjectRole, actor: Actor
    ) -> Member:
        """Adds a user to a project, or changes the role of an existing member. Raises ProjectNotFound,
        ProjectArchived, UserNotFound, ValueError.
        """
        checked_project_role(role)
        async with self._database.write(tenant_id) as session:
            await live_project(session, tenant_id, project_id)
            members = MemberRepository(session, tenant_id)
            if await members.hold(user_id) is None:
                raise UserNotFound(user_id)
            found = await members.member(project_id, user_id, lock=True)
            if found is None:
                members.add_own(new_member(tenant_id, project_id, user_id, role))
            else:
                found[0].role = role
            await self._record_place(session, tenant_id, actor, "created", project_id, user_id, role)
            member = await members.member(project_id, user_id)
            assert member is not None
        return member

    async def update_in_project(
        self, tenant_id: str, project_id: str, user_id: str, role: ProjectRole, actor: Actor
    ) -> Member:
        """Changes a member's role. Raises ProjectNotFound, ProjectArchived, UserNotFound, ValueError."""
        checked_project_role(role)
        async with self._database.write(tenant_id) as session:
            await live_project(session, tenant_id, project_id)
            member = await MemberRepository(session, tenant_id).member(project_id, user_id, lock=True)
            if member is None:
                raise UserNotFound(user_id)
            member[0].role = role
            await self._record_place(session, tenant_id, actor, "created", project_id, user_id, role)
        return member

    async def remove_from_project(self, tenant_id: str, project_id: str, user_id: str, actor: Actor) -> None:
        """Removes a user from a project and revokes their keys of it, in every process within a second.
        Raises UserNotFound.
        """
        async with self._database.write(tenant_id) as session:
            members = MemberRepository(session, tenant_id)
            member = await members.member(project_id, user_id, lock=True)
            if member is None:
                raise UserNotFound(user_id)
            role = member[0].role
            await members.leave(user_id, project_id)
            theirs = (ApiKey.user_id == user_id, ApiKey.project_id == project_id)
            await revoke_keys(session, self._redis, tenant_id, *theirs)
            await self._record_place(session, tenant_id, actor, "deleted", project_id, user_id, role)

    async def _record_place(
        self,
        session: WriteSession,
        tenant_id: str,
        actor: Actor,
        what: str,
        project_id: str,
        user_id: str,
        role: str,
    ) -> None:
        await AuditLog.record(
            session,
            tenant_id,
            actor,
            f"role.assignment.{what}",
            ("user", user_id),
            {"role": role},
            project_id=project_id,
        )


def new_member(tenant_id: str, project_id: str, user_id: str, role: str) -> ProjectMember:
    return ProjectMember(
        tenant_id=tenant_id,
        project_id=project_id,
        user_id=user_id,
        role=role,
        added_at=datetime.now(UTC),
    )


async def _locked(members: MemberRepository, user_id: str) -> tuple[set[str], User]:
    """Locks the owners, and a user to change, until the transaction ends; returns both. Raises
    UserNotFound.
    """
    owners = await members.hold_owners()
    user = await members.lock(user_id)
    if user is None:
        raise UserNotFound(user_id)
    return owners, user


async def require_may_appoint(members: MemberRepository, actor: Actor, *roles: str) -> None:
    """Checks that `actor` can grant and take away these roles. Keys without a user act for the organization;
    a restricted key cannot grant or take away roles with more rights than its own. Raises OwnersOnly,
    RightsNotHeld.
    """
    if actor.kind == "api_key" and actor.scopes:
        for role in roles:
            scopes = admin_scopes(role)  # type: ignore[arg-type]
            more = scopes - actor.scopes if scopes else {"everything"}
            if more:
                raise RightsNotHeld("role", more)
    if "owner" not in roles or actor.user_id is None:
        return
    person = await members.find(actor.user_id)
    if person is None or person.role != "owner":
        raise OwnersOnly
