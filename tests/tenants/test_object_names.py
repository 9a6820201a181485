"""What ids are called, of things that are gone too, and of nobody else's."""

from __future__ import annotations

from db.session import Database
from tenants.actors import OPERATOR
from tenants.models import Tenant
from tenants.object_names import NamedObject, NameService
from tenants.service import AccountServices

PASSWORD = "correct horse battery"


async def test_whatever_had_an_id_is_named(
    database: Database, accounts: AccountServices, tenant: Tenant
) -> None:
    project = await accounts.projects.create(tenant.id, "Support", OPERATOR)
    user = await accounts.users.create(tenant.id, "ada@acme.example", PASSWORD)
    key = await accounts.keys.create(tenant.id, "laptop", OPERATOR)
    await accounts.keys.revoke(tenant.id, key.id, OPERATOR)
    robot = await accounts.service_accounts.create(tenant.id, project.id, "robot", OPERATOR)
    other = await accounts.tenants.create_tenant("birch")
    theirs = await accounts.keys.create(other.id, "theirs", OPERATOR)
    names = NameService(database)
    ids = [project.id, user.user_id, key.id, robot.id, theirs.id, "key_never", ""]
    assert await names.of(tenant.id, ids) == {
        project.id: NamedObject("project", "Support"),
        user.user_id: NamedObject("user", "ada@acme.example"),
        key.id: NamedObject("key", "laptop", is_gone=True),
        robot.id: NamedObject("service_account", "robot"),
    }
    assert await names.of(tenant.id, []) == {}
