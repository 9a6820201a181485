"""Scopes every query of a repository to one tenant's rows.

A repository is made for one session and one tenant; its queries are built by this class, which adds the
tenant, so that a query without a tenant cannot be written by oversight.
"""

from __future__ import annotations

from typing import Any, TypeVar

from sqlalchemy import (
    BindParameter,
    Delete,
    Executable,
    Result,
    Select,
    Text,
    Update,
    bindparam,
    delete,
    func,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, declarative_mixin, mapped_column

from db.base import Base


@declarative_mixin
class TenantOwned:
    """A row that belongs to one tenant."""

    tenant_id: Mapped[str] = mapped_column(Text)


Owned = TypeVar("Owned", bound=TenantOwned)


def select_owned(model: type[Owned], *columns: Any) -> Select[Any]:
    """Returns a SELECT of `model`'s rows for the tenant that `TenantRepository.execute_own` is called for.
    The statement is built once: building it can cost more than PostgreSQL takes to run it.
    """
    return select(*(columns or (model,))).select_from(model).where(model.tenant_id == owner())


def owner() -> BindParameter[str]:
    """Returns the parameter that holds the tenant's id in such a statement."""
    return bindparam(_OWNER, type_=Text)


_OWNER = "owner_tenant_id"


class TenantRepository:
    """Base of repositories: builds queries of one tenant's rows in one session."""

    def __init__(self, session: AsyncSession, tenant_id: str) -> None:
        if not tenant_id:
            raise ValueError("tenant_id is empty")
        self.session = session
        self.tenant_id = tenant_id

    def select_own(self, model: type[Owned], *columns: Any) -> Select[Any]:
        """Returns a SELECT of the tenant's rows of `model`: whole rows, or only `columns`."""
        return select(*(columns or (model,))).select_from(model).where(model.tenant_id == self.tenant_id)

    async def execute_own(self, statement: Executable, **values: Any) -> Result[*tuple[Any, ...]]:
        """Runs a statement made by `select_owned` for the tenant; `values` are its other parameters."""
        return await self.session.execute(statement, {_OWNER: self.tenant_id, **values})

    def update_own(self, model: type[Owned]) -> Update:
        return update(model).where(model.tenant_id == self.tenant_id)

    def delete_own(self, model: type[Owned]) -> Delete:
        return delete(model).where(model.tenant_id == self.tenant_id)

    async def advisory_lock(self, what: str) -> None:
        """Blocks other transactions that hold `what` of the tenant until this one ends. Call it before
        counting rows to decide whether one may be added.
        """
        lock = func.pg_advisory_xact_lock(func.hashtextextended(f"{what}:{self.tenant_id}", 0))
        await self.session.execute(select(lock))

    def add_own(self, row: Base) -> None:
        """Inserts a row of this tenant. A row of another tenant is a bug, not a user's mistake."""
        assert isinstance(row, TenantOwned)
        assert row.tenant_id == self.tenant_id, "a row of another tenant"
        self.session.add(row)
