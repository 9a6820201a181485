"""People who sign in to the console: creating them, and telling whether they are who they say."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

from sqlalchemy.exc import IntegrityError

from db.base import new_id
from db.session import Database
from tenants import passwords
from tenants.errors import NameTaken, TenantNotFound
from tenants.models import Tenant, User
from tenants.repository import TenantAccounts, TenantDirectory
from tenants.roles import ROLES, Role
from tenants.views import STANDARD, PlanView, plan_view

_EMAIL = re.compile(r"[^@\s\x00]{1,64}@[^@\s\x00]{1,189}")


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


class UserAccounts:
    """Every tenant's users. Counting failed attempts is the console's business."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, tenant_id: str, email: str, password: str, *, role: Role = "admin") -> Account:
        """Raises TenantNotFound, NameTaken for an email in use, ValueError naming the field."""
        if _EMAIL.fullmatch(email) is None:
            raise ValueError("email: not an address")
        if role not in ROLES:
            raise ValueError(f"role must be one of {', '.join(ROLES)}, not {role!r}")
        password_hash = await asyncio.to_thread(passwords.hash_password, password)
        user = User(
            id=new_id("usr"), tenant_id=tenant_id, email=email.lower(), password_hash=password_hash, role=role
        )
        try:
            async with self._database.write() as session:
                tenant = await TenantDirectory(session).tenant(tenant_id)
                if tenant is None:
                    raise TenantNotFound(tenant_id)
                TenantAccounts(session, tenant_id).add_own(user)
        except IntegrityError as error:
            raise NameTaken("email", email.lower()) from error
        return _account(user, tenant)

    async def authenticate(self, email: str, password: str) -> Account | None:
        """The account, when email and password are right and neither user nor tenant is disabled; as slow
        when not.
        """
        found = None
        if _EMAIL.fullmatch(email) is not None:
            async with self._database.read() as session:
                found = await TenantDirectory(session).user_by_email(email)
        stored = found[0].password_hash if found is not None else None
        right = await asyncio.to_thread(passwords.verify_password, stored, password)
        if found is None or not right:
            return None
        user, tenant = found
        if user.disabled_at is not None or tenant.disabled_at is not None:
            return None
        fresh = await asyncio.to_thread(passwords.rehash, user.password_hash, password)
        if fresh is not None:
            async with self._database.write() as session:
                await TenantAccounts(session, tenant.id).set_password_hash(user.id, fresh)
        return _account(user, tenant)

    async def find(self, user_id: str, tenant_id: str) -> Account | None:
        """The account as it is now; None when the user or the tenant is gone or disabled."""
        async with self._database.read() as session:
            tenant = await TenantDirectory(session).tenant(tenant_id)
            plan = await TenantDirectory(session).plan_of(tenant_id)
            user = await TenantAccounts(session, tenant_id).user(user_id)
        if tenant is None or user is None or tenant.disabled_at is not None or user.disabled_at is not None:
            return None
        return _account(user, tenant, STANDARD if plan is None else plan_view(plan))


def _account(user: User, tenant: Tenant, plan: PlanView = STANDARD) -> Account:
    return Account(user.id, user.email, user.role, tenant.id, tenant.name, plan)  # type: ignore[arg-type]
