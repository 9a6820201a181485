from __future__ import annotations

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from adapters.models import Adapter
from db.repository import TenantRepository, select_owned
from db.session import EVERY_TENANT, Database
from tenants.models import ApiKey, Tenant, User


@pytest.fixture
def repository() -> TenantRepository:
    return TenantRepository(AsyncSession(), "tnt_a")


@pytest.mark.parametrize("model", [ApiKey, User, Adapter])
def test_every_query_carries_the_tenant(repository: TenantRepository, model: type) -> None:
    for query in (
        repository.select_own(model),
        repository.select_own(model, model.id),
        repository.update_own(model),
        repository.delete_own(model),
    ):
        compiled = query.compile()
        assert f"{model.__tablename__}.tenant_id = " in str(compiled)
        assert "tnt_a" in compiled.params.values()


def test_a_row_of_another_tenant_cannot_be_added(repository: TenantRepository) -> None:
    with pytest.raises(AssertionError, match="another tenant"):
        repository.add_own(Adapter(id="adp_1", tenant_id="tnt_b", base="sapling", name="x"))


def test_no_tenant_is_not_every_tenant() -> None:
    with pytest.raises(ValueError, match="tenant_id"):
        TenantRepository(AsyncSession(), "")


async def test_a_statement_made_once_finds_rows_of_the_tenant_that_runs_it_alone(database: Database) -> None:
    """By its own condition: no row-level security stands behind it here."""
    async with database.write(EVERY_TENANT) as session:
        for tenant in ("tnt_a", "tnt_b"):
            session.add(Tenant(id=tenant, name=tenant))
        await session.flush()
        for number, tenant in enumerate(("tnt_a", "tnt_a", "tnt_b")):
            session.add(Adapter(id=f"adp_{number}", tenant_id=tenant, base="sapling", name=f"n{number}"))
    whole, names = select_owned(Adapter), select_owned(Adapter, Adapter.name).order_by(Adapter.name)
    async with database.read(EVERY_TENANT) as session:
        for tenant, expected in (("tnt_a", ["n0", "n1"]), ("tnt_b", ["n2"]), ("tnt_c", [])):
            own = TenantRepository(session, tenant)
            assert [*(await own.execute_own(names)).scalars()] == expected
            rows = (await own.execute_own(whole)).scalars().all()
            assert sorted(row.name for row in rows) == expected
