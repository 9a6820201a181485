"""Provisions groups for a tenant's identity provider, and gives their members roles.

An owner maps a group to a role. A member of mapped groups has the first of these roles in the order of
`ROLES`; who leaves the last mapped group becomes a viewer. A role that was set by hand stays until the groups
of the member change. Every method is one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime

import redis.asyncio
from sqlalchemy.exc import IntegrityError

from db.base import new_id
from db.session import Database, WriteSession
from tenants.actors import Actor
from tenants.audit.service import AuditLog
from tenants.errors import NameTaken
from tenants.members.changes import MemberChanges, require_may_appoint
from tenants.members.repository import MemberRepository
from tenants.models import User
from tenants.provisioning.errors import GroupNotFound, NotAMember
from tenants.provisioning.filters import Filter
from tenants.provisioning.profiles import GroupProfile, ProvisionedGroup, provisioned_group
from tenants.provisioning.repository import ProvisioningRepository
from tenants.provisioning.users import ROLE_OF_NEW
from tenants.roles import ROLES, Role, checked_role
from tenants.scim.models import ScimGroup, ScimGroupMember


class GroupProvisioning:
    """Groups of all tenants."""

    def __init__(self, database: Database, redis_client: redis.asyncio.Redis) -> None:
        self._database = database
        self._redis = redis_client

    async def list(
        self,
        tenant_id: str,
        condition: Filter | None = None,
        *,
        offset: int = 0,
        limit: int,
        with_members: bool = False,
    ) -> tuple[int, Sequence[ProvisionedGroup]]:
        """Returns how many groups match, and some of them in order of creation. Raises InvalidFilter."""
        async with self._database.read(tenant_id) as session:
            repository = ProvisioningRepository(session, tenant_id)
            total, rows = await repository.groups(condition, offset, limit)
            found = await _described(repository, [row for (row,) in rows], with_members)
        return total, found

    async def page(
        self, tenant_id: str, *, after: str | None = None, limit: int = 20, newest_first: bool = True
    ) -> Sequence[ProvisionedGroup]:
        """Returns groups after the one with the id `after`, without their members. Raises UnknownCursor."""
        async with self._database.read(tenant_id) as session:
            repository = ProvisioningRepository(session, tenant_id)
            rows = await repository.group_page(after=after, limit=limit, newest_first=newest_first)
            return await _described(repository, rows, False)

    async def get(self, tenant_id: str, group_id: str, *, with_members: bool = True) -> ProvisionedGroup:
        """Raises GroupNotFound."""
        async with self._database.read(tenant_id) as session:
            repository = ProvisioningRepository(session, tenant_id)
            row = await repository.group(group_id)
            if row is None:
                raise GroupNotFound(group_id)
            (found,) = await _described(repository, [row], with_members)
        return found

    async def create(
        self, tenant_id: str, profile: GroupProfile, actor: Actor, *, by_hand: bool = False
    ) -> ProvisionedGroup:
        """Creates a group. `by_hand`: an owner adds it, so that sign-ins can name it. Raises NameTaken,
        NotAMember, ValueError naming the attribute; by hand also OwnersOnly, RightsNotHeld.
        """
        profile.check()
        now = datetime.now(UTC)
        row = ScimGroup(
            id=new_id("group"),
            tenant_id=tenant_id,
            display_name=profile.display_name,
            external_id=profile.external_id,
            is_added_by_hand=by_hand,
            created_at=now,
            updated_at=now,
        )
        try:
            async with self._database.write(tenant_id) as session:
                repository = ProvisioningRepository(session, tenant_id)
                if by_hand:
                    await require_may_appoint(MemberRepository(session, tenant_id), actor, "owner")
                if await repository.group_name_taken(profile.display_name):
                    raise NameTaken("displayName", profile.display_name)
                repository.add_own(row)
                await session.flush()
                _require_all(await repository.hold_users(profile.member_ids), profile.member_ids)
                _add_members(repository, row, profile.member_ids)
                details = {"name": row.display_name, "members": len(profile.member_ids)}
                await _record(session, actor, "group.created", row, details)
        except IntegrityError as error:
            raise NameTaken("displayName", profile.display_name) from error
        return provisioned_group(row, profile.member_ids, len(profile.member_ids))

    async def update(
        self, tenant_id: str, group_id: str, edit: Callable[[GroupProfile], GroupProfile], actor: Actor
    ) -> ProvisionedGroup:
        """Changes a group to what `edit` makes of it, and its members' roles with it. Raises GroupNotFound,
        NotAMember, NameTaken, LastOwner, ValueError naming the attribute.
        """
        try:
            async with self._database.write(tenant_id) as session:
                repository = ProvisioningRepository(session, tenant_id)
                row = await self._locked(repository, group_id)
                members = (await repository.member_ids([group_id])).get(group_id, frozenset())
                before = GroupProfile(row.display_name, row.external_id, members)
                after = edit(before)
                after.check()
                if after != before:
                    await self._write(session, row, before, after, actor)
        except IntegrityError as error:
            raise NameTaken("displayName", group_id) from error
        return provisioned_group(row, after.member_ids, len(after.member_ids))

    async def delete(self, tenant_id: str, group_id: str, actor: Actor, *, by_hand: bool = False) -> None:
        """Deletes a group; its members lose the role that it gave them. Raises GroupNotFound, LastOwner; by
        hand also OwnersOnly, RightsNotHeld.
        """
        async with self._database.write(tenant_id) as session:
            repository = ProvisioningRepository(session, tenant_id)
            row = await self._locked(repository, group_id)
            roles = await self._affected(session, repository, actor, group_id)
            if by_hand:
                await require_may_appoint(roles.changes.members, actor, "owner")
            await repository.delete_group(group_id)
            await _record(session, actor, "group.deleted", row, {"name": row.display_name})
            await roles.apply()

    async def set_role(
        self, tenant_id: str, group_id: str, role: str | None, actor: Actor
    ) -> ProvisionedGroup:
        """Maps a group to a role, or with None to no role, and changes its members' roles accordingly. Raises
        GroupNotFound, OwnersOnly, RightsNotHeld, LastOwner, ValueError.
        """
        wanted = None if role is None else checked_role(role)
        async with self._database.write(tenant_id) as session:
            repository = ProvisioningRepository(session, tenant_id)
            row = await self._locked(repository, group_id)
            roles = await self._affected(session, repository, actor, group_id)
            await require_may_appoint(roles.changes.members, actor, "owner")
            if row.role != wanted:
                row.role = wanted
                await session.flush()
                await _record(session, actor, "group.updated", row, {"role": wanted})
                await roles.apply()
        return provisioned_group(row, frozenset(roles.users), len(roles.users))

    async def set_groups_of(self, tenant_id: str, user_id: str, names: Collection[str], actor: Actor) -> None:
        """Has a user be in those groups that have one of these names, or ids of the identity provider, and in
        no other; names of no group are ignored. Changes the user's role accordingly. Raises LastOwner.
        """
        async with self._database.write(tenant_id) as session:
            repository = ProvisioningRepository(session, tenant_id)
            wanted, current = await repository.named_groups(names, user_id)
            if wanted == current:
                return
            changes = MemberChanges(session, self._redis, tenant_id, actor)
            roles = await _RoleChanges.of(changes, repository, [user_id])
            if user_id not in roles.users:
                return
            for group_id in sorted(wanted ^ current):
                row = await self._locked(repository, group_id)
                is_joining = group_id in wanted
                if is_joining:
                    _add_members(repository, row, [user_id])
                else:
                    await repository.remove_members(group_id, [user_id])
                row.updated_at = datetime.now(UTC)
                joined, left = ([user_id], []) if is_joining else ([], [user_id])
                details = {"name": row.display_name, "joined": joined, "left": left}
                await _record(session, actor, "group.updated", row, details)
            await session.flush()
            await roles.apply()

    async def _write(
        self, session: WriteSession, row: ScimGroup, before: GroupProfile, after: GroupProfile, actor: Actor
    ) -> None:
        repository = ProvisioningRepository(session, row.tenant_id)
        if await repository.group_name_taken(after.display_name, but=row.id):
            raise NameTaken("displayName", after.display_name)
        joined, left = after.member_ids - before.member_ids, before.member_ids - after.member_ids
        changes = MemberChanges(session, self._redis, row.tenant_id, actor)
        roles = await _RoleChanges.of(changes, repository, joined | left)
        _require_all(roles.users, joined)
        row.display_name, row.external_id = after.display_name, after.external_id
        row.updated_at = datetime.now(UTC)
        await repository.remove_members(row.id, left)
        _add_members(repository, row, joined)
        await session.flush()
        details = {"name": row.display_name, "joined": sorted(joined), "left": sorted(left)}
        await _record(session, actor, "group.updated", row, details)
        await roles.apply()

    async def _locked(self, repository: ProvisioningRepository, group_id: str) -> ScimGroup:
        row = await repository.group(group_id, lock=True)
        if row is None:
            raise GroupNotFound(group_id)
        return row

    async def _affected(
        self, session: WriteSession, repository: ProvisioningRepository, actor: Actor, group_id: str
    ) -> _RoleChanges:
        members = (await repository.member_ids([group_id])).get(group_id, frozenset())
        changes = MemberChanges(session, self._redis, repository.tenant_id, actor)
        return await _RoleChanges.of(changes, repository, members)


class _RoleChanges:
    """Users whose groups change in this transaction: locked, with the roles that groups gave them before."""

    def __init__(
        self,
        changes: MemberChanges,
        repository: ProvisioningRepository,
        users: Mapping[str, User],
        before: Mapping[str, set[str]],
    ) -> None:
        self.changes = changes
        self.users = users
        self._repository = repository
        self._before = before

    @classmethod
    async def of(
        cls, changes: MemberChanges, repository: ProvisioningRepository, user_ids: Collection[str]
    ) -> _RoleChanges:
        users = await changes.lock_all(user_ids)
        return cls(changes, repository, users, await repository.mapped_roles(users))

    async def apply(self) -> None:
        """Gives the users the roles of the groups that they are in now. Raises LastOwner."""
        now = await self._repository.mapped_roles(self.users)
        wanted = {user_id: role_given(self._before[user_id], now[user_id]) for user_id in sorted(self.users)}
        # Owners are appointed before others stop being owners: the last one may be among these.
        for user_id in sorted(wanted, key=lambda one: wanted[one] != "owner"):
            role, user = wanted[user_id], self.users[user_id]
            if role is not None and role != user.role:
                revoked = await self.changes.set_role(user, role)
                details: dict[str, object] = {"role": role, "by": "groups"}
                await self.changes.record(
                    user, "user.updated", details | ({"revoked_keys": revoked} if revoked else {})
                )


def role_given(before: Collection[str], now: Collection[str]) -> Role | None:
    """Returns the role of a user, from the roles that their groups gave them before and give them now. None:
    groups say nothing of it.
    """
    if now:
        return next(role for role in ROLES if role in now)
    return ROLE_OF_NEW if before else None


def _require_all(found: Collection[str], wanted: Collection[str]) -> None:
    for missing in sorted(set(wanted) - set(found)):
        raise NotAMember(missing)


def _add_members(repository: ProvisioningRepository, row: ScimGroup, user_ids: Collection[str]) -> None:
    for user_id in sorted(user_ids):
        repository.add_own(ScimGroupMember(group_id=row.id, user_id=user_id, tenant_id=row.tenant_id))


async def _described(
    repository: ProvisioningRepository, rows: Sequence[ScimGroup], with_members: bool
) -> list[ProvisionedGroup]:
    ids = [row.id for row in rows]
    if with_members:
        members = await repository.member_ids(ids)
        return [
            provisioned_group(row, found, len(found))
            for row, found in ((row, members.get(row.id, frozenset())) for row in rows)
        ]
    counts = await repository.num_members(ids)
    return [provisioned_group(row, frozenset(), counts.get(row.id, 0)) for row in rows]


async def _record(
    session: WriteSession, actor: Actor, type: str, row: ScimGroup, details: Mapping[str, object]
) -> None:
    await AuditLog.record(session, row.tenant_id, actor, type, ("group", row.id), details)
