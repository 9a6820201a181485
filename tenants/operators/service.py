"""Operators: users of the service's own, who sign in as everybody does and see every tenant.

They are users whose tenant is the service itself (`OPERATOR_TENANT`), so passwords, second factors and
sessions are those of all users, and what they do to each other is in the chain of entries that is no one
tenant's. Owns who is one. Refuses to know pages.
"""

from __future__ import annotations

import redis.asyncio

from db.session import Database
from tenants.accounts import UserAccounts
from tenants.actors import OPERATOR, Actor
from tenants.errors import UserNotFound
from tenants.members.account import Membership
from tenants.members.service import MemberService
from tenants.models import OPERATOR_TENANT, User
from tenants.roles import Role

EVERYTHING = 1000
"""More operators than any service has."""


class OperatorAccounts:
    """Who is an operator. One that only looks on has the role `viewer`, all others are `owner`."""

    def __init__(self, database: Database, redis_client: redis.asyncio.Redis) -> None:
        self._users = UserAccounts(database)
        self._members = MemberService(database, redis_client)

    async def add(
        self, email: str, password: str, *, name: str = "", looks_on: bool = False, actor: Actor = OPERATOR
    ) -> Membership:
        """Raises NameTaken for an email in use, by a tenant's user too; ValueError naming the field."""
        role: Role = "viewer" if looks_on else "owner"
        return await self._users.create(OPERATOR_TENANT, email, password, role=role, name=name, actor=actor)

    async def list(self) -> list[User]:
        """The first one first."""
        return await self._members.list(OPERATOR_TENANT, limit=EVERYTHING, newest_first=False)

    async def find(self, email: str) -> User:
        """Raises UserNotFound."""
        found = await self._members.list(OPERATOR_TENANT, emails=[email])
        if not found:
            raise UserNotFound(email)
        return found[0]

    async def remove(self, email: str, actor: Actor = OPERATOR) -> None:
        """Signed out at once, out of tenants' consoles too. Raises UserNotFound, LastOwner."""
        await self._members.remove(OPERATOR_TENANT, (await self.find(email)).id, actor)
