"""Provisions users for a tenant's identity provider: creates, changes, disables and removes them.

Every method is one transaction. A user who is not active, or is deleted, is out within a second in every
process: their console sessions have ended and their keys are refused. Keys of an inactive user work again
once the user is active; those of a deleted user are revoked for good.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import redis.asyncio
from sqlalchemy.exc import IntegrityError

from db.session import Database, WriteSession
from tenants.actors import Actor
from tenants.errors import NameTaken, UserNotFound
from tenants.members.account import new_user
from tenants.members.changes import MemberChanges
from tenants.models import User
from tenants.provisioning.filters import Filter
from tenants.provisioning.profiles import ProvisionedUser, UserProfile, profile_of, provisioned_user
from tenants.provisioning.repository import ProvisioningRepository
from tenants.roles import Role
from tenants.scim.models import ScimUser

ROLE_OF_NEW: Role = "viewer"
"""The role of a user whom no group gives another."""


class UserProvisioning:
    """Provisioned users of all tenants. Every member of a tenant is one, however they joined."""

    def __init__(self, database: Database, redis_client: redis.asyncio.Redis) -> None:
        self._database = database
        self._redis = redis_client

    async def list(
        self, tenant_id: str, condition: Filter | None, *, offset: int, limit: int
    ) -> tuple[int, Sequence[ProvisionedUser]]:
        """Returns how many users match, and some of them in order of creation. Raises InvalidFilter."""
        async with self._database.read(tenant_id) as session:
            repository = ProvisioningRepository(session, tenant_id)
            total, rows = await repository.users(condition, offset, limit)
            groups = await repository.groups_of([user.id for user, _ in rows])
        return total, [provisioned_user(user, row, groups.get(user.id, ())) for user, row in rows]

    async def get(self, tenant_id: str, user_id: str) -> ProvisionedUser:
        """Raises UserNotFound."""
        async with self._database.read(tenant_id) as session:
            repository = ProvisioningRepository(session, tenant_id)
            found = await repository.user(user_id)
            if found is None:
                raise UserNotFound(user_id)
            groups = await repository.groups_of([user_id])
        return provisioned_user(*found, groups.get(user_id, ()))

    async def create(self, tenant_id: str, profile: UserProfile, actor: Actor) -> ProvisionedUser:
        """Creates a user without a password. Raises NameTaken if a user has the name or, in any tenant, the
        address; ValueError naming the attribute.
        """
        profile.check()
        user = new_user(tenant_id, profile.email.lower(), None, ROLE_OF_NEW, profile.shown_name)
        if not profile.active:
            user.disabled_at = user.created_at
        try:
            async with self._database.write(tenant_id) as session:
                changes = MemberChanges(session, self._redis, tenant_id, actor)
                repository = ProvisioningRepository(session, tenant_id)
                if await repository.user_name_taken(profile.user_name):
                    raise NameTaken("userName", profile.user_name)
                repository.add_own(user)
                await session.flush()
                row = _new_row(user, profile, is_created_here=True)
                repository.add_own(row)
                await session.flush()
                details = {"email": user.email, "role": user.role, "active": profile.active}
                await changes.record(user, "user.added", details)
        except IntegrityError as error:
            raise NameTaken("userName or email address", profile.user_name) from error
        return provisioned_user(user, row)

    async def update(
        self, tenant_id: str, user_id: str, edit: Callable[[UserProfile], UserProfile], actor: Actor
    ) -> ProvisionedUser:
        """Changes a user to what `edit` makes of their profile. Raises UserNotFound, NameTaken, LastOwner,
        ValueError naming the attribute.
        """
        try:
            async with self._database.write(tenant_id) as session:
                changes = MemberChanges(session, self._redis, tenant_id, actor)
                user = await changes.lock(user_id)
                repository = ProvisioningRepository(session, tenant_id)
                row = await repository.row(user_id)
                before = profile_of(user, row)
                after = edit(before)
                after.check()
                if after != before:
                    row = await self._write(session, changes, user, row, after)
                groups = await repository.groups_of([user_id])
        except IntegrityError as error:
            raise NameTaken("userName or email address", user_id) from error
        return provisioned_user(user, row, groups.get(user_id, ()))

    async def delete(self, tenant_id: str, user_id: str, actor: Actor) -> None:
        """Removes a user from the tenant. Raises UserNotFound, LastOwner."""
        async with self._database.write(tenant_id) as session:
            changes = MemberChanges(session, self._redis, tenant_id, actor)
            await changes.remove(await changes.lock(user_id))

    async def _write(
        self,
        session: WriteSession,
        changes: MemberChanges,
        user: User,
        row: ScimUser | None,
        after: UserProfile,
    ) -> ScimUser:
        repository = ProvisioningRepository(session, user.tenant_id)
        if await repository.user_name_taken(after.user_name, but=user.id):
            raise NameTaken("userName", after.user_name)
        changed: dict[str, object] = {}
        for field, value in (("email", after.email.lower()), ("name", after.shown_name or user.name)):
            if getattr(user, field) != value:
                changed[field] = value
                setattr(user, field, value)
        if row is None:
            row = _new_row(user, after, is_created_here=False)
            repository.add_own(row)
        elif row.user_name != after.user_name:
            changed["user_name"] = after.user_name
        row.user_name, row.external_id = after.user_name, after.external_id
        row.attributes, row.updated_at = after.attributes, datetime.now(UTC)
        await session.flush()
        if changed:
            await changes.record(user, "user.updated", changed)
        if after.active and user.disabled_at is not None:
            await changes.enable(user)
        elif not after.active:
            await changes.disable(user)
        return row


def _new_row(user: User, profile: UserProfile, *, is_created_here: bool) -> ScimUser:
    return ScimUser(
        user_id=user.id,
        tenant_id=user.tenant_id,
        user_name=profile.user_name,
        external_id=profile.external_id,
        attributes=profile.attributes,
        is_created_here=is_created_here,
        updated_at=datetime.now(UTC),
    )
