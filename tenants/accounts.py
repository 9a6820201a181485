"""Creates console users without an invitation, and authenticates them by email and password.

Changing and removing users is in `tenants.members`; counting failed attempts is in the console.
"""

from __future__ import annotations

import asyncio

from sqlalchemy.exc import IntegrityError

from db.session import EVERY_TENANT, Database
from tenants import passwords
from tenants.actors import OPERATOR, Actor
from tenants.audit.service import AuditLog
from tenants.errors import NameTaken, TenantNotFound
from tenants.members.account import Membership, account_of, new_user
from tenants.members.repository import MemberRepository
from tenants.repository import TenantDirectory
from tenants.roles import ROLES, Role
from tenants.validation import checked_email, is_email
from tenants.views import STANDARD, plan_view

__all__ = ["Membership", "UserAccounts"]


class UserAccounts:
    """Console users of every tenant."""

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
    ) -> Membership:
        """Creates a user without an invitation, which only the operator may do. Raises TenantNotFound,
        NameTaken if the email is in use, ValueError naming the field.
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

    async def authenticate(self, email: str, password: str) -> Membership | None:
        """Returns the account if email and password are right and neither user nor tenant is disabled, else
        None. Takes the same time either way. A user with a second factor still has to pass it.
        """
        found = None
        if is_email(email):
            async with self._database.read(EVERY_TENANT) as session:
                found = await TenantDirectory(session).user_by_email(email)
        stored = found[0].password_hash if found is not None else None
        right = await asyncio.to_thread(passwords.verify_password, stored, password)
        if found is None or not right:
            return None
        user, tenant, factor_since = found
        if user.disabled_at is not None or tenant.disabled_at is not None:
            return None
        assert user.password_hash is not None, "no password is right where there is none"
        fresh = await asyncio.to_thread(passwords.rehash, user.password_hash, password)
        if fresh is not None:
            async with self._database.write(tenant.id) as session:
                await MemberRepository(session, tenant.id).set_password_hash(user.id, fresh)
        return account_of(user, tenant, has_second_factor=factor_since is not None)

    async def record_sign_in(
        self, account: Membership, how: str, *, address: str | None = None, request_id: str | None = None
    ) -> None:
        """Records a successful sign-in in the audit log, with the method `how`. Failed attempts are not
        recorded: the time it takes would reveal which addresses have accounts.
        """
        actor = account.actor(address, request_id)
        async with self._database.write(account.tenant_id) as session:
            target = ("user", account.user_id)
            await AuditLog.record(session, account.tenant_id, actor, "login.succeeded", target, {"by": how})

    async def find(self, user_id: str, tenant_id: str) -> Membership | None:
        """Returns the account as it is now; None if the user or the tenant is deleted or disabled."""
        async with self._database.read(tenant_id) as session:
            found = await MemberRepository(session, tenant_id).signed_in(user_id)
        if found is None:
            return None
        user, tenant, plan, factor_since = found
        if tenant.disabled_at is not None:
            return None
        if user.disabled_at is not None:
            return None
        view = STANDARD if plan is None else plan_view(plan)
        return account_of(user, tenant, view, has_second_factor=factor_since is not None)
