"""Changes and removes users within a transaction: their role, whether they can sign in, their membership.

Each change reaches every process within a second of the commit. An organization keeps an owner.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime

import redis.asyncio

from db.session import WriteSession
from tenants.actors import Actor
from tenants.audit.service import AuditLog
from tenants.errors import LastOwner, OwnAccount, OwnersOnly, RightsNotHeld, UserNotFound
from tenants.members.repository import MemberRepository
from tenants.models import ApiKey, User
from tenants.repository import KeyRepository
from tenants.resolver import publish_key_changes, revoke_keys
from tenants.retention.errors import OnLegalHold
from tenants.retention.holds import holds_of
from tenants.retention.requests import Removed, record_request
from tenants.roles import RIGHTS_OF, Role, admin_scopes


class MemberChanges:
    """The changes that `actor` makes to users of one tenant in one transaction.

    Lock all users that are to change before the first change: the audit log's lock comes last.
    """

    def __init__(
        self, session: WriteSession, redis_client: redis.asyncio.Redis, tenant_id: str, actor: Actor
    ) -> None:
        self._session = session
        self._redis = redis_client
        self._tenant_id = tenant_id
        self._actor = actor
        self.members = MemberRepository(session, tenant_id)
        self._owners: set[str] = set()
        """Owners that are not disabled."""

    async def lock(self, user_id: str) -> User:
        """Locks the owners and a user until the transaction ends; returns the user. Raises UserNotFound."""
        found = await self.lock_all([user_id])
        if not found:
            raise UserNotFound(user_id)
        return found[user_id]

    async def lock_all(self, user_ids: Collection[str]) -> dict[str, User]:
        """Locks the owners and those of the users that are members; returns the users by id."""
        self._owners = await self.members.hold_owners()
        return {user.id: user for user in await self.members.lock_all(user_ids)}

    async def set_role(self, user: User, role: Role) -> list[str]:
        """Gives the user a role; returns the ids of the admin keys that are revoked because it has fewer
        rights. The caller writes the audit log. Raises LastOwner, OwnersOnly, RightsNotHeld.
        """
        if role == user.role:
            return []
        await require_may_appoint(self.members, self._actor, user.role, role)
        self._require_another_owner(user)
        revoked: list[str] = []
        if not RIGHTS_OF[user.role] <= RIGHTS_OF[role]:  # type: ignore[index]
            admins = (ApiKey.user_id == user.id, ApiKey.kind == "admin")
            revoked = await revoke_keys(self._session, self._redis, self._tenant_id, *admins)
        user.role = role
        self._owners.discard(user.id)
        if role == "owner" and user.disabled_at is None:
            self._owners.add(user.id)
        return revoked

    async def disable(self, user: User) -> None:
        """Ends the user's console sessions for good; their keys are refused until `enable`.

        Raises OwnAccount, LastOwner, OwnersOnly.
        """
        await require_may_appoint(self.members, self._actor, user.role)
        if self._actor.user_id == user.id:
            raise OwnAccount(user.id)
        self._require_another_owner(user)
        if user.disabled_at is None:
            user.disabled_at = user.sessions_from = datetime.now(UTC)
            self._owners.discard(user.id)
            await self.members.forget_resets(user.id)
            await self._record_access(user, "user.disabled")

    async def enable(self, user: User) -> None:
        """Lets the user sign in again, and their keys work. Raises OwnersOnly."""
        await require_may_appoint(self.members, self._actor, user.role)
        if user.disabled_at is not None:
            user.disabled_at = None
            if user.role == "owner":
                self._owners.add(user.id)
            await self._record_access(user, "user.enabled")

    async def remove(self, user: User) -> None:
        """Removes the user from the tenant, its projects and the console, and revokes their keys. Raises
        LastOwner, OwnersOnly; OnLegalHold if the user is on hold: they can be disabled.
        """
        await require_may_appoint(self.members, self._actor, user.role)
        self._require_another_owner(user)
        hold = (await holds_of(self._session, self._tenant_id)).by_object.get(user.id)
        if hold is not None:
            raise OnLegalHold(f"user {user.id}", hold, "disable the user, or lift the hold first")
        user.removed_at = datetime.now(UTC)
        self._owners.discard(user.id)
        await self._session.flush()
        removed = [
            *await self.members.leave(user.id),
            *await self.members.forget_ways_in(user.id),
            *await self.members.forget_provisioning(user.id),
        ]
        target = ("user", user.id)
        rows = [Removed(table, num) for table, num in removed]
        await record_request(self._session, self._tenant_id, self._actor, target, rows)
        revoked = await revoke_keys(self._session, self._redis, self._tenant_id, ApiKey.user_id == user.id)
        details = {"email": user.email, "role": user.role, "revoked_keys": revoked}
        await self.record(user, "user.deleted", details)

    async def record(self, user: User, type: str, details: Mapping[str, object]) -> None:
        """Writes a change of the user to the audit log."""
        target = ("user", user.id)
        await AuditLog.record(self._session, self._tenant_id, self._actor, type, target, details)

    async def _record_access(self, user: User, type: str) -> None:
        """Records that a user was disabled or enabled, and invalidates their keys in the caches."""
        keys = KeyRepository(self._session, self._tenant_id)
        digests = await keys.digests(ApiKey.user_id == user.id)
        self._session.after_commit(lambda: publish_key_changes(self._redis, digests))
        await self.record(user, type, {"email": user.email, "role": user.role, "keys": len(digests)})

    def _require_another_owner(self, user: User) -> None:
        if self._owners == {user.id}:
            raise LastOwner(user.id)


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
