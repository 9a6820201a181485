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
from tenants.errors import ProjectNotFound, UserNotFound
from tenants.members.changes import MemberChanges
from tenants.members.repository import Member, MemberRepository, Membership
from tenants.models import ApiKey, ProjectMember, User
from tenants.projects.repository import ProjectRepository
from tenants.projects.service import live_project
from tenants.resolver import revoke_keys
from tenants.roles import ProjectRole, Role, checked_project_role, checked_role
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
        changed: dict[str, object] = {}
        if role is not None:
            changed["role"] = checked_role(role)
        if name is not None:
            changed["name"] = checked_name("name", name)
        async with self._database.write(tenant_id) as session:
            changes = MemberChanges(session, self._redis, tenant_id, actor)
            user = await changes.lock(user_id)
            revoked = [] if role is None else await changes.set_role(user, role)
            if name is not None:
                user.name = str(changed["name"])
            await changes.record(
                user, "user.updated", changed | ({"revoked_keys": revoked} if revoked else {})
            )
        return user

    async def disable(self, tenant_id: str, user_id: str, actor: Actor) -> User:
        """Disables a user until `enable`: their console sessions end for good, and their keys are refused
        meanwhile, in every process within a second. Roles and keys are kept. Repeating it changes nothing.

        Raises UserNotFound, OwnAccount, LastOwner, OwnersOnly.
        """
        async with self._database.write(tenant_id) as session:
            changes = MemberChanges(session, self._redis, tenant_id, actor)
            user = await changes.lock(user_id)
            await changes.disable(user)
        return user

    async def enable(self, tenant_id: str, user_id: str, actor: Actor) -> User:
        """Enables a disabled user, and their keys. Raises UserNotFound, OwnersOnly."""
        async with self._database.write(tenant_id) as session:
            changes = MemberChanges(session, self._redis, tenant_id, actor)
            user = await changes.lock(user_id)
            await changes.enable(user)
        return user

    async def remove(self, tenant_id: str, user_id: str, actor: Actor) -> None:
        """Removes a user from the tenant, its projects and the console, and revokes their keys, in every
        process within a second. Raises UserNotFound, LastOwner, OwnersOnly.
        """
        async with self._database.write(tenant_id) as session:
            changes = MemberChanges(session, self._redis, tenant_id, actor)
            await changes.remove(await changes.lock(user_id))

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
