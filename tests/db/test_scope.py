from __future__ import annotations

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from adapters.models import Adapter
from db.repository import TenantRepository
from tenants.models import ApiKey, User


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
