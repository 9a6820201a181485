"""What the ledger's ids are called: keys, people, service accounts and projects of a tenant, those that are
gone too. A bill names its causes longer than they live.

Owns what stands for what. Refuses to know why somebody asks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from sqlalchemy import ARRAY, CompoundSelect, Text, any_, bindparam, literal, union_all

from db.repository import TenantRepository, select_owned
from db.session import Database
from tenants.models import ApiKey, Project, ServiceAccount, User

ThingKind = Literal["key", "user", "service_account", "project"]


@dataclass(frozen=True, slots=True)
class Named:
    kind: ThingKind
    name: str
    """Of a person, the email address."""
    is_gone: bool = False
    """Revoked, removed, deleted or archived."""


class NameService:
    """Of one tenant at a time."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def of(self, tenant_id: str, ids: Collection[str]) -> Mapping[str, Named]:
        """By id, whatever it is the id of. What the tenant never had, or has no more row of, is not there.
        Raises DatabaseUnavailable.
        """
        if not ids:
            return {}
        async with self._database.read(tenant_id) as session:
            return await NameRepository(session, tenant_id).of(sorted(set(ids)))


class NameRepository(TenantRepository):
    async def of(self, ids: Collection[str]) -> Mapping[str, Named]:
        """A person who signed in stands where a key would, so an id is looked for among all kinds."""
        rows = (await self.execute_own(_named(), ids=list(ids))).all()
        return {id_: Named(kind, name, is_gone) for kind, id_, name, is_gone in rows}


@cache
def _named() -> CompoundSelect[Any]:
    """The ids are one parameter: one for each would be another statement for every number of them."""
    kinds: tuple[tuple[ThingKind, Any, Any, Any], ...] = (
        ("key", ApiKey, ApiKey.name, ApiKey.revoked_at),
        ("user", User, User.email, User.removed_at),
        ("service_account", ServiceAccount, ServiceAccount.name, ServiceAccount.deleted_at),
        ("project", Project, Project.name, Project.archived_at),
    )
    ids = bindparam("ids", type_=ARRAY(Text))
    return union_all(
        *(
            select_owned(model, literal(kind), model.id, name, ended.is_not(None)).where(
                model.id == any_(ids)
            )
            for kind, model, name, ended in kinds
        )
    )
