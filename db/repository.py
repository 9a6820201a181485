"""The one door to rows that belong to a tenant.

A repository is made for one session and one tenant; every query it builds starts here and carries the tenant.
A list that forgets its tenant cannot be written without leaving this class.
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
    """SELECT rows of `model` of whichever tenant runs it, by `TenantRepository.execute_own`: for a statement
    that is made once, since putting one together can cost more than PostgreSQL takes.
    """
    return select(*(columns or (model,))).select_from(model).where(model.tenant_id == owner())


def owner() -> BindParameter[str]:
    """In such a statement, the id of its tenant."""
    return bindparam(_OWNER, type_=Text)


_OWNER = "owner_tenant_id"


class TenantRepository:
    """Base of repositories: queries of one tenant's rows in one session."""

    def __init__(self, session: AsyncSession, tenant_id: str) -> None:
        if not tenant_id:
            raise ValueError("tenant_id is empty")
        self.session = session
        self.tenant_id = tenant_id

    def select_own(self, model: type[Owned], *columns: Any) -> Select[Any]:
        """SELECT the tenant's rows of `model`: whole rows, or `columns` of it."""
        return select(*(columns or (model,))).select_from(model).where(model.tenant_id == self.tenant_id)

    async def execute_own(self, statement: Executable, **values: Any) -> Result[*tuple[Any, ...]]:
        """Run a statement made of `select_owned`, for the tenant; `values` are of its other parameters."""
        return await self.session.execute(statement, {_OWNER: self.tenant_id, **values})

    def update_own(self, model: type[Owned]) -> Update:
        return update(model).where(model.tenant_id == self.tenant_id)

    def delete_own(self, model: type[Owned]) -> Delete:
        return delete(model).where(model.tenant_id == self.tenant_id)

    async def hold_tenant(self, what: str) -> None:
        """Let no other transaction that also holds `what` of the tenant go on until this one ends: whoever
        counts rows before adding one.
        """
        lock = func.pg_advisory_xact_lock(func.hashtextextended(f"{what}:{self.tenant_id}", 0))
        await self.session.execute(select(lock))

    def add_own(self, row: Base) -> None:
        """Insert a row of this tenant. A row made for another is a bug, not a request."""
        assert isinstance(row, TenantOwned)
        assert row.tenant_id == self.tenant_id, "a row of another tenant"
        self.session.add(row)
