"""Reads and writes tenants and their API keys.

`TenantDirectory` runs the queries that are not scoped to a tenant, such as finding the tenant of a key, an
email address or a name. All others go through tenant-scoped repositories: keys here, users in `members`,
projects in `projects`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    LargeBinary,
    Row,
    Select,
    Text,
    any_,
    bindparam,
    func,
    or_,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncSession

from db.cursors import fetch_page
from db.repository import TenantRepository
from tenants.limits.repository import limits_of_key
from tenants.models import (
    OPERATOR_TENANT,
    ApiKey,
    Identity,
    Invite,
    PasswordReset,
    Plan,
    Project,
    SecondFactor,
    ServiceAccount,
    Tenant,
    User,
)

LAST_USED_PRECISION = timedelta(minutes=1)
_ID = re.compile(r"[a-z_]{1,16}_[0-9A-Za-z]{1,40}")
# The most frequent query: built once, SQLAlchemy finds its compiled form without traversing it each time.
_KEYS = (
    select(
        ApiKey,
        Tenant,
        Plan,
        Project,
        limits_of_key(ApiKey.tenant_id, ApiKey.project_id, ApiKey.id),  # type: ignore[arg-type]
    )
    .join(Tenant, Tenant.id == ApiKey.tenant_id)
    .join(Plan, Plan.id == Tenant.plan_id)
    .outerjoin(Project, Project.id == ApiKey.project_id)
    .outerjoin(User, User.id == ApiKey.user_id)
    .where(User.disabled_at.is_(None))
)
_KEYS_BY_DIGEST = _KEYS.where(ApiKey.digest == any_(bindparam("digests", type_=ARRAY(LargeBinary))))
_KEY_BY_ID = _KEYS.where(ApiKey.id == bindparam("key_id"), ApiKey.tenant_id == bindparam("tenant_id"))
_SIGNING_IN = (
    select(User, Tenant, SecondFactor.confirmed_at)
    .join(Tenant, Tenant.id == User.tenant_id)
    .outerjoin(SecondFactor, SecondFactor.user_id == User.id)
    .where(User.removed_at.is_(None))
)


def is_id(given: str) -> bool:
    """Returns whether this has the form of an id. Other strings match no row, and may contain characters that
    the database rejects.
    """
    return _ID.fullmatch(given) is not None


class TenantDirectory:
    """Finds tenants, and the tenant that a credential belongs to. Not scoped to a tenant."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    def add(self, tenant: Tenant) -> None:
        self.session.add(tenant)

    async def tenant(self, tenant_id: str) -> Tenant | None:
        return await self.session.get(Tenant, tenant_id)

    async def tenant_by_name(self, name: str) -> Tenant | None:
        query = select(Tenant).where(Tenant.name == name, Tenant.id != OPERATOR_TENANT)
        return (await self.session.execute(query)).scalar_one_or_none()

    async def tenants(self) -> list[Tenant]:
        """Returns all tenants, oldest first, for the operator."""
        query = select(Tenant).where(Tenant.id != OPERATOR_TENANT).order_by(Tenant.id)
        return list((await self.session.execute(query)).scalars())

    async def names(self, tenant_ids: Collection[str]) -> dict[str, str]:
        """Returns names by id; unknown and malformed ids are left out."""
        known = [tenant_id for tenant_id in tenant_ids if is_id(tenant_id)]
        query = select(Tenant.id, Tenant.name).where(Tenant.id.in_(known))
        return {row.id: row.name for row in (await self.session.execute(query)).all()}

    async def plans(self) -> list[Plan]:
        """All of them, oldest first."""
        return list((await self.session.execute(select(Plan).order_by(Plan.created_at, Plan.id))).scalars())

    async def plan(self, name: str) -> Plan | None:
        return (await self.session.execute(select(Plan).where(Plan.name == name))).scalar_one_or_none()

    async def plan_by_id(self, plan_id: str) -> Plan | None:
        query = select(Plan).where(Plan.id == plan_id)
        return (await self.session.execute(query)).scalar_one_or_none() if is_id(plan_id) else None

    async def tenants_by_plan(self) -> dict[str, int]:
        """Returns the number of tenants by plan id; plans without tenants are left out."""
        query = select(Tenant.plan_id, func.count()).where(Tenant.id != OPERATOR_TENANT)
        return {row[0]: row[1] for row in await self.session.execute(query.group_by(Tenant.plan_id))}

    async def plan_of(self, tenant_id: str) -> Plan | None:
        query = select(Plan).join(Tenant, Tenant.plan_id == Plan.id).where(Tenant.id == tenant_id)
        return (await self.session.execute(query)).scalar_one_or_none()

    async def lock_plan(self, name: str) -> Plan | None:
        """Locks the plan for writing until the transaction ends, and returns it."""
        query = select(Plan).where(Plan.name == name).with_for_update()
        return (await self.session.execute(query)).scalar_one_or_none()

    async def keys_by_digest(
        self, digests: Sequence[bytes]
    ) -> Sequence[Row[ApiKey, Tenant, Plan, Project | None, Any]]:
        """Returns keys by the HMACs of their plaintexts, each with its tenant, plan, project and limit rows.
        One query by a unique index; unknown keys and keys of disabled users are left out.
        """
        return (await self.session.execute(_KEYS_BY_DIGEST, {"digests": digests})).all()

    async def key_by_id(
        self, tenant_id: str, key_id: str
    ) -> Row[ApiKey, Tenant, Plan, Project | None, Any] | None:
        """Returns a tenant's key with its tenant, plan, project and limit rows; None for an unknown key, or
        of a disabled user.
        """
        return (
            await self.session.execute(_KEY_BY_ID, {"tenant_id": tenant_id, "key_id": key_id})
        ).one_or_none()

    async def user_by_email(self, email: str) -> Row[User, Tenant, datetime | None] | None:
        """Returns the user with this email, their tenant, and when their second factor was confirmed."""
        query = _SIGNING_IN.where(User.email == email.lower())
        return (await self.session.execute(query)).one_or_none()

    async def user_by_identity(self, issuer: str, subject: str) -> Row[User, Tenant, datetime | None] | None:
        """Returns the user with this external identity, their tenant, and when their second factor was
        confirmed.
        """
        query = _SIGNING_IN.join(Identity, Identity.user_id == User.id).where(
            Identity.issuer == issuer, Identity.subject == subject
        )
        return (await self.session.execute(query)).one_or_none()

    async def reset(self, digests: Collection[bytes]) -> tuple[str, bytes] | None:
        """Returns tenant and digest of the password reset token with one of these, whatever its state."""
        query = select(PasswordReset.tenant_id, PasswordReset.digest).where(PasswordReset.digest.in_(digests))
        found = (await self.session.execute(query)).one_or_none()
        return None if found is None else (found[0], bytes(found[1]))

    async def invite(self, digests: Collection[bytes]) -> tuple[str, bytes] | None:
        """Returns tenant and digest of the invitation with one of these, whatever its state."""
        query = select(Invite.tenant_id, Invite.digest).where(Invite.digest.in_(digests))
        found = (await self.session.execute(query)).one_or_none()
        return None if found is None else (found[0], bytes(found[1]))

    async def set_disabled(self, tenant_id: str, disabled: bool) -> bool | None:
        """Disables or enables a tenant. Returns whether that changed anything; None if there is no such
        tenant.
        """
        tenant = await self.session.get(Tenant, tenant_id, with_for_update=True)
        if tenant is None:
            return None
        if (tenant.disabled_at is not None) == disabled:
            return False
        await self.session.execute(
            update(Tenant).where(Tenant.id == tenant_id).values(disabled_at=func.now() if disabled else None)
        )
        return True

    async def rehash_key(self, digest: bytes, new_digest: bytes, secret_id: str) -> None:
        """Stores a key, of any tenant, under another digest; does nothing if it has another one already."""
        rehashing = update(ApiKey).where(ApiKey.digest == digest)
        await self.session.execute(
            rehashing.values(digest=new_digest, secret_id=secret_id),
            execution_options={"synchronize_session": False},
        )

    async def note_keys_used(self, key_ids: Collection[str], secret_id: str) -> None:
        """Sets `last_used_at` of keys, of any tenants, unless it was set within the last minute. `secret_id`:
        of the secret that their digests were found under.
        """
        due = or_(ApiKey.last_used_at.is_(None), ApiKey.last_used_at < func.now() - LAST_USED_PRECISION)
        # The same order in every process, so that two of them with the same keys cannot deadlock.
        held = (
            select(ApiKey.id)
            .where(ApiKey.id == any_(bindparam("key_ids", type_=ARRAY(Text))), due)
            .order_by(ApiKey.id)
            .with_for_update(skip_locked=True)
        )
        noting = (
            update(ApiKey).where(ApiKey.id.in_(held)).values(last_used_at=func.now(), secret_id=secret_id)
        )
        # One array parameter and no returned rows: the event loop serves requests meanwhile.
        await self.session.execute(
            noting, {"key_ids": list(key_ids)}, execution_options={"synchronize_session": False}
        )


ShownKey = Row[ApiKey, User | None, ServiceAccount | None]
"""A key, and the user or service account it belongs to."""


class KeyRepository(TenantRepository):
    """API keys of one tenant."""

    async def find(self, key_id: str) -> ShownKey | None:
        if not is_id(key_id):
            return None
        return (await self.session.execute(self._shown().where(ApiKey.id == key_id))).one_or_none()

    async def lock(self, key_id: str) -> ApiKey | None:
        """Locks the key for writing until the transaction ends, and returns it."""
        if not is_id(key_id):
            return None
        query = self.select_own(ApiKey).where(ApiKey.id == key_id).with_for_update()
        return (await self.session.execute(query)).scalar_one_or_none()

    async def page(
        self,
        *conditions: ColumnElement[bool],
        with_revoked: bool,
        after: str | None,
        limit: int,
        newest_first: bool,
    ) -> Sequence[ShownKey]:
        listed = self._shown().where(*conditions)
        is_current = or_(ApiKey.federation_rule_id.is_(None), ApiKey.expires_at > func.now())
        filters = () if with_revoked else (ApiKey.revoked_at.is_(None), is_current)
        page = await fetch_page(
            self.session, listed, ApiKey.id, *filters, after=after, limit=limit, newest_first=newest_first
        )
        return page.all()

    async def revoke(self, *conditions: ColumnElement[bool]) -> Sequence[Row[str, bytes]]:
        """Revokes matching keys that are not revoked yet. Returns their ids and digests."""
        query = (
            self.update_own(ApiKey)
            .where(ApiKey.revoked_at.is_(None), *conditions)
            .values(revoked_at=func.now())
            .returning(ApiKey.id, ApiKey.digest)
        )
        return (await self.session.execute(query)).all()

    async def digests(self, *conditions: ColumnElement[bool]) -> Sequence[bytes]:
        """Returns the digests, by which caches know them, of matching keys that are not revoked."""
        query = self.select_own(ApiKey, ApiKey.digest).where(ApiKey.revoked_at.is_(None), *conditions)
        return (await self.session.execute(query)).scalars().all()

    def _shown(self) -> Select[Any]:
        return (
            self.select_own(ApiKey, ApiKey, User, ServiceAccount)
            .outerjoin(User, User.id == ApiKey.user_id)
            .outerjoin(ServiceAccount, ServiceAccount.id == ApiKey.service_account_id)
        )
