"""Looks up the names of keys, users, service accounts and projects by the ids that usage is recorded under.

Deleted ones are found too: invoices and usage reports outlive them.
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

ObjectKind = Literal["key", "user", "service_account", "project"]


@dataclass(frozen=True, slots=True)
class NamedObject:
    kind: ObjectKind
    name: str
    """A user's email address; otherwise the name."""
    is_gone: bool = False
    """Whether it is revoked, removed, deleted or archived."""


class NameService:
    """Looks up names of one tenant's objects at a time."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def of(self, tenant_id: str, ids: Collection[str]) -> Mapping[str, NamedObject]:
        """Returns names by id, for ids of any kind; ids without a row are left out. Raises
        DatabaseUnavailable.
        """
        if not ids:
            return {}
        async with self._database.read(tenant_id) as session:
            return await NameRepository(session, tenant_id).of(sorted(set(ids)))


class NameRepository(TenantRepository):
    async def of(self, ids: Collection[str]) -> Mapping[str, NamedObject]:
        """Looks for each id among all kinds: requests of signed-in users are recorded under the user's id."""
        rows = (await self.execute_own(_named(), ids=list(ids))).all()
        return {id_: NamedObject(kind, name, is_gone) for kind, id_, name, is_gone in rows}


@cache
def _named() -> CompoundSelect[Any]:
    """Builds the query with the ids as one array parameter, so that any number of them is the same
    statement.
    """
    kinds: tuple[tuple[ObjectKind, Any, Any, Any], ...] = (
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
