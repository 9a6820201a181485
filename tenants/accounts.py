"""People who sign in to the console: making the first ones, and telling whether they are who they say.

What becomes of them afterwards is `members`'.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy.exc import IntegrityError

from db.base import new_id
from db.session import EVERY_TENANT, Database
from tenants import passwords
from tenants.actors import OPERATOR, Actor
from tenants.audit.service import AuditLog
from tenants.errors import NameTaken, TenantNotFound
from tenants.fields import MAX_NAME_LEN, checked_email, is_email
from tenants.members.repository import MemberRepository
from tenants.models import Tenant, User
from tenants.repository import TenantDirectory
from tenants.roles import ROLES, Right, Role, admin_scopes, may
from tenants.views import STANDARD, PlanView, plan_view


@dataclass(frozen=True, slots=True)
class Account:
    """A user and the tenant they belong to."""

    user_id: str
    email: str
    role: Role
    tenant_id: str
    tenant_name: str
    plan: PlanView = STANDARD
    """As of when it was looked up by `find`."""

    def may(self, right: Right) -> bool:
        return may(self.role, right)

    def actor(self, address: str | None = None, request_id: str | None = None) -> Actor:
        """As the audit log names them, and bounded by their role."""
        scopes = admin_scopes(self.role)
        return Actor("user", self.user_id, address, request_id, scopes, self.user_id, self.email)


class UserAccounts:
    """Every tenant's users. Counting failed attempts is the console's business."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(
        self,
        tenant_id: str,
        email: str,
        password: str,
        *,
        role: Role = "owner",
        name: str = "",
        actor: Actor = OPERATOR,
    ) -> Account:
        """A user without an invitation: for the operator. Raises TenantNotFound, NameTaken for an email in
        use, ValueError naming the field.
        """
        email = checked_email(email)
        if role not in ROLES:
            raise ValueError(f"role must be one of {', '.join(ROLES)}, not {role!r}")
        password_hash = await asyncio.to_thread(passwords.hash_password, password)
        user = new_user(tenant_id, email, password_hash, role, name)
        try:
            async with self._database.write(tenant_id) as session:
                tenant = await TenantDirectory(session).tenant(tenant_id)
                if tenant is None:
                    raise TenantNotFound(tenant_id)
                MemberRepository(session, tenant_id).add_own(user)
                details = {"email": email, "role": role}
                await AuditLog.record(session, tenant_id, actor, "user.added", ("user", user.id), details)
        except IntegrityError as error:
            raise NameTaken("email", email) from error
        return account_of(user, tenant)

    async def authenticate(
        self, email: str, password: str, *, address: str | None = None, request_id: str | None = None
    ) -> Account | None:
        """The account, when email and password are right and neither user nor tenant is disabled; as slow
        when not. The audit log tells of those who came in: telling of others would take time that
        tells which addresses are known.
        """
        found = None
        if is_email(email):
            async with self._database.read(EVERY_TENANT) as session:
                found = await TenantDirectory(session).user_by_email(email)
        stored = found[0].password_hash if found is not None else None
        right = await asyncio.to_thread(passwords.verify_password, stored, password)
        if found is None or not right:
            return None
        user, tenant = found
        if user.disabled_at is not None or tenant.disabled_at is not None:
            return None
        fresh = await asyncio.to_thread(passwords.rehash, user.password_hash, password)
        account = account_of(user, tenant)
        async with self._database.write(tenant.id) as session:
            if fresh is not None:
                await MemberRepository(session, tenant.id).set_password_hash(user.id, fresh)
            actor = account.actor(address, request_id)
            await AuditLog.record(session, tenant.id, actor, "login.succeeded", ("user", user.id))
        return account

    async def find(self, user_id: str, tenant_id: str) -> Account | None:
        """The account as it is now; None when the user or the tenant is gone or disabled."""
        async with self._database.read(tenant_id) as session:
            tenant = await TenantDirectory(session).tenant(tenant_id)
            plan = await TenantDirectory(session).plan_of(tenant_id)
            user = await MemberRepository(session, tenant_id).find(user_id)
        if tenant is None or user is None or tenant.disabled_at is not None or user.disabled_at is not None:
            return None
        return account_of(user, tenant, STANDARD if plan is None else plan_view(plan))


def new_user(tenant_id: str, email: str, password_hash: str, role: str, name: str) -> User:
    """A row. Raises ValueError naming the field."""
    if len(name) > MAX_NAME_LEN or (name and not name.isprintable()):
        raise ValueError(f"name must have at most {MAX_NAME_LEN} printable characters")
    return User(
        id=new_id("usr"),
        tenant_id=tenant_id,
        email=email,
        name=name.strip(),
        password_hash=password_hash,
        role=role,
        created_at=datetime.now(UTC),
    )


def account_of(user: User, tenant: Tenant, plan: PlanView = STANDARD) -> Account:
    return Account(user.id, user.email, user.role, tenant.id, tenant.name, plan)  # type: ignore[arg-type]
