"""Manages operators, the service's own users who can see every tenant: adds, lists and removes them.

Operators are users of the tenant `OPERATOR_TENANT`, so they have passwords, second factors and sessions like
all users. Changes to operators are recorded in the service's own audit chain.
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
"""Page size that no service's number of operators reaches."""


class OperatorAccounts:
    """The service's operators. Read-only operators have the role `viewer`, all others `owner`."""

    def __init__(self, database: Database, redis_client: redis.asyncio.Redis) -> None:
        self._users = UserAccounts(database)
        self._members = MemberService(database, redis_client)

    async def add(
        self, email: str, password: str, *, name: str = "", looks_on: bool = False, actor: Actor = OPERATOR
    ) -> Membership:
        """Adds an operator. Raises NameTaken if any user has the email, a tenant's users included; ValueError
        naming the field.
        """
        role: Role = "viewer" if looks_on else "owner"
        return await self._users.create(OPERATOR_TENANT, email, password, role=role, name=name, actor=actor)

    async def list(self) -> list[User]:
        """Returns all operators, oldest first."""
        return await self._members.list(OPERATOR_TENANT, limit=EVERYTHING, newest_first=False)

    async def find(self, email: str) -> User:
        """Returns the operator with this email. Raises UserNotFound."""
        found = await self._members.list(OPERATOR_TENANT, emails=[email])
        if not found:
            raise UserNotFound(email)
        return found[0]

    async def remove(self, email: str, actor: Actor = OPERATOR) -> None:
        """Removes an operator and ends their sessions, impersonations included. Raises UserNotFound,
        LastOwner.
        """
        await self._members.remove(OPERATOR_TENANT, (await self.find(email)).id, actor)
