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

SearchedKind = Literal["key", "project"]
_SEARCHED: Mapping[SearchedKind, Any] = {"key": ApiKey, "project": Project}
_ENDED: Mapping[SearchedKind, Any] = {"key": ApiKey.revoked_at, "project": Project.archived_at}
CALIBRATION_KEY = "calibration"
"""Stands for the API key of requests by which the service measures a tenant's adapter. They have no price."""
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

    async def search(
        self, tenant_id: str, kind: SearchedKind, part: str, *, limit: int
    ) -> list[tuple[str, str]]:
        """Returns (id, name) of keys that are not revoked or projects that are not archived with `part` in
        their name in any case; names that begin with it come first. Raises DatabaseUnavailable.
        """
        async with self._database.read(tenant_id) as session:
            return await NameRepository(session, tenant_id).search(kind, part, limit)


class NameRepository(TenantRepository):
    async def of(self, ids: Collection[str]) -> Mapping[str, NamedObject]:
        """Looks for each id among all kinds: requests of signed-in users are recorded under the user's id."""
        rows = (await self.execute_own(_named(), ids=list(ids))).all()
        return {id_: NamedObject(kind, name, is_gone) for kind, id_, name, is_gone in rows}

    async def search(self, kind: SearchedKind, part: str, limit: int) -> list[tuple[str, str]]:
        model = _SEARCHED[kind]
        query = self.select_own(model, model.id, model.name).where(
            _ENDED[kind].is_(None), model.name.icontains(part, autoescape=True)
        )
        first = model.name.istartswith(part, autoescape=True).desc()
        rows = await self.session.execute(query.order_by(first, model.name, model.id).limit(limit))
        return [(id_, name) for id_, name in rows]


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
