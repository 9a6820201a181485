"""Second factors in the database: asked for once they are confirmed, and each code good once."""

from __future__ import annotations

import base64
from datetime import UTC, datetime

import pytest

from db.session import Database
from tenants.accounts import Membership
from tenants.actors import OPERATOR
from tenants.errors import NoSecondFactor, WrongCode
from tenants.identities import codes
from tenants.identities.second_factors import SecondFactors
from tenants.models import Tenant
from tenants.service import AccountServices
from tests.tenants.conftest import SECRET

pytestmark = pytest.mark.usefixtures("cheap_passwords")


@pytest.fixture
def factors(database: Database) -> SecondFactors:
    return SecondFactors(database, SECRET)


@pytest.fixture
async def ann(accounts: AccountServices, tenant: Tenant) -> Membership:
    return await accounts.users.create(tenant.id, "ann@example.com", "correct horse battery", role="owner")


async def test_a_factor_lets_nobody_in_before_it_is_confirmed(
    factors: SecondFactors, ann: Membership
) -> None:
    enrolment = await factors.begin(ann)
    secret = base64.b32decode(enrolment.secret)
    code = codes.code_at(secret, codes.step_of(datetime.now(UTC)))
    with pytest.raises(NoSecondFactor):
        await factors.verify(ann.tenant_id, ann.user_id, code)
    assert await factors.find(ann) is None
    recovery = await factors.confirm(ann, code, OPERATOR)
    with pytest.raises(WrongCode):
        await factors.verify(ann.tenant_id, ann.user_id, code)
    following = codes.code_at(secret, codes.step_of(datetime.now(UTC)) + 1)
    assert await factors.verify(ann.tenant_id, ann.user_id, following) == "totp"
    with pytest.raises(WrongCode):
        await factors.verify(ann.tenant_id, ann.user_id, following)
    assert await factors.verify(ann.tenant_id, ann.user_id, recovery[3]) == "recovery code"
    with pytest.raises(WrongCode):
        await factors.verify(ann.tenant_id, ann.user_id, recovery[3])
    view = await factors.find(ann)
    assert view is not None
    assert view.num_recovery == codes.NUM_RECOVERY - 1
