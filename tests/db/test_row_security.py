"""What PostgreSQL itself keeps apart, whatever a query forgets."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine, make_url, pool, text
from sqlalchemy.exc import DBAPIError

from cli.local.postgres import SERVING_ROLE
from db import roles, schema
from db.base import Base
from db.repository import TenantOwned
from db.session import EVERY_TENANT, Database
from migrations.metadata import metadata
from tenants.models import OPERATOR_TENANT
from tests.support.clusters import MIGRATOR

OWNED = sorted(table.name for table in metadata.sorted_tables if "tenant_id" in table.columns)


@pytest.fixture
def two_tenants(owner_url: str) -> None:
    """`ten_a` and `ten_b`, each with a project and a key."""
    with create_engine(owner_url, poolclass=pool.NullPool).begin() as connection:
        for name in ("a", "b"):
            connection.execute(text(f"INSERT INTO tenants (id, name) VALUES ('ten_{name}', '{name}')"))
            connection.execute(
                text(f"INSERT INTO projects (id, tenant_id, name) VALUES ('proj_{name}', 'ten_{name}', 'p')")
            )
            key = f"'key_{name}', 'ten_{name}', decode(repeat('{name * 2}', 32), 'hex'), 'rs', 'k', 'admin'"
            connection.execute(
                text(f"INSERT INTO api_keys (id, tenant_id, digest, prefix, name, kind) VALUES ({key})")
            )


async def seen(database: Database, tenant: str, query: str) -> list[object]:
    async with database.read(tenant) as session:
        return list((await session.execute(text(query))).scalars())


def test_every_table_of_tenants_is_secured(owner_url: str) -> None:
    """Partitions too: a query may name one. A table made by a later migration must call the function."""
    query = """
        SELECT relname, relrowsecurity AND relforcerowsecurity AND EXISTS (
            SELECT FROM pg_policy WHERE polrelid = pg_class.oid AND polname = 'tenant_rows')
        FROM pg_class WHERE relkind IN ('r', 'p') AND relnamespace = 'public'::regnamespace
          AND (relname = 'tenants' OR EXISTS (
            SELECT FROM pg_attribute WHERE attrelid = pg_class.oid AND attname = 'tenant_id'))
    """
    with create_engine(owner_url, poolclass=pool.NullPool).connect() as connection:
        found = dict(connection.execute(text(query)).tuples().all())
    assert {*OWNED, "tenants"} <= found.keys()
    assert any(name.startswith("usage_records_y") for name in found)
    assert [name for name, secured in found.items() if not secured] == []


def test_what_belongs_to_a_tenant_says_so() -> None:
    """What has a tenant_id goes through the repositories' door."""
    mapped = {mapper.local_table.name: mapper.class_ for mapper in Base.registry.mappers}
    assert [name for name in OWNED if not issubclass(mapped[name], TenantOwned)] == []


@pytest.mark.usefixtures("two_tenants")
async def test_a_query_without_a_condition_sees_one_tenants_rows(database: Database) -> None:
    for table, column in (("tenants", "id"), ("projects", "tenant_id"), ("api_keys", "tenant_id")):
        query = f"SELECT {column} FROM {table} ORDER BY 1"
        assert await seen(database, "ten_a", query) == ["ten_a"]
        service = [OPERATOR_TENANT] if table == "tenants" else []
        assert await seen(database, EVERY_TENANT, query) == [*service, "ten_a", "ten_b"]
        assert await seen(database, "", query) == []


@pytest.mark.usefixtures("two_tenants")
async def test_a_connection_that_was_told_no_tenant_sees_nothing(database: Database) -> None:
    await seen(database, "ten_a", "SELECT 1")  # the pool's connection has served somebody before
    async with database.engine.connect() as connection:
        for table in (*OWNED, "tenants"):
            assert (await connection.execute(text(f"SELECT count(*) FROM {table}"))).scalar_one() == 0


@pytest.mark.usefixtures("two_tenants")
async def test_rows_of_others_cannot_be_written(database: Database) -> None:
    async with database.write("ten_a") as session:
        changed = await session.execute(text("UPDATE projects SET name = 'mine' RETURNING id"))
        assert list(changed.scalars()) == ["proj_a"]
        removed = await session.execute(text("DELETE FROM api_keys RETURNING id"))
        assert list(removed.scalars()) == ["key_a"]
    insert = "INSERT INTO projects (id, tenant_id, name) VALUES ('proj_c', 'ten_b', 'theirs')"
    hand_over = "UPDATE projects SET tenant_id = 'ten_b'"
    for statement in (insert, hand_over):
        with pytest.raises(DBAPIError, match="row-level security"):
            async with database.write("ten_a") as session:
                await session.execute(text(statement))


@pytest.mark.usefixtures("two_tenants")
async def test_a_partition_named_directly_shows_no_more(database: Database, owner_url: str) -> None:
    row = """
        INSERT INTO usage_records (submitted_at, request_id, tenant_id, key_id, model, endpoint, service_tier,
            prompt_tokens, cached_tokens, completion_tokens, num_choices, preemptions, engine_id, recorded_at)
        VALUES (now(), 'r', 'ten_b', 'key_b', 'm', 'completions', 'default', 1, 0, 1, 1, 0, 'e', now())
        RETURNING tableoid::regclass::text
    """
    with create_engine(owner_url, poolclass=pool.NullPool).begin() as connection:
        partition = connection.execute(text(row)).scalar_one()
    assert partition != "usage_records"
    for table in (partition, "usage_records"):
        query = f"SELECT request_id FROM {table}"
        assert await seen(database, "ten_a", query) == []
        assert await seen(database, "ten_b", query) == ["r"]


async def test_later_months_are_secured_too_and_made_by_the_serving_role(
    database: Database, owner_url: str
) -> None:
    async with database.write(EVERY_TENANT) as session:
        made = await session.execute(text("SELECT ensure_usage_partitions('2031-01-01', 2)"))
        assert made.scalar_one() == 2
    query = """
        SELECT relforcerowsecurity, relowner::regrole::text
        FROM pg_class WHERE relname ~ '_y2031m' AND relkind = 'r'
    """
    with create_engine(owner_url, poolclass=pool.NullPool).connect() as connection:
        secured = connection.execute(text(query)).all()
    assert [tuple(row) for row in secured] == [(True, MIGRATOR)] * 2


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE api_keys DISABLE ROW LEVEL SECURITY",
        "DROP POLICY tenant_rows ON api_keys",
        "CREATE TABLE mine (x int)",
        "UPDATE alembic_version SET version_num = '0001'",
        "UPDATE audit_log SET type = 'x'",
        "DELETE FROM audit_log",
        "TRUNCATE api_keys",
        "SELECT secure_tenant_rows('api_keys')",
        f"ALTER ROLE {SERVING_ROLE} BYPASSRLS",
    ],
)
async def test_the_serving_role_cannot_loosen_its_own_bonds(database: Database, statement: str) -> None:
    with pytest.raises(DBAPIError, match=r"must be (owner|superuser)|permission denied"):
        async with database.write(EVERY_TENANT) as session:
            await session.execute(text(statement))


async def test_the_serving_role_is_let_serve(database: Database) -> None:
    await schema.assert_fit_to_serve(database)


async def test_mightier_roles_are_not_let_serve(owner_url: str) -> None:
    mighty = {
        "superuser_role": ("SUPERUSER", "superuser"),
        "bypassing_role": ("BYPASSRLS", "bypasses"),
        "owning_role": (f"IN ROLE {MIGRATOR}", "owns the tables"),
    }
    url = make_url(owner_url)
    for role, (attributes, why) in mighty.items():
        owner = create_engine(owner_url, poolclass=pool.NullPool, isolation_level="AUTOCOMMIT")
        with owner.connect() as connection:
            connection.execute(text(f"CREATE ROLE {role} LOGIN {attributes}"))
        database = Database(url.set(username=role).render_as_string(hide_password=False))
        try:
            with pytest.raises(roles.PrivilegedRole, match=why):
                await schema.assert_fit_to_serve(database)
        finally:
            await database.close()
            with owner.connect() as connection:
                connection.execute(text(f"DROP ROLE {role}"))


def test_a_missing_role_is_named(owner_url: str) -> None:
    url = make_url(owner_url).set(username="nobody_made_this")
    with pytest.raises(roles.RoleMissing, match="nobody_made_this"):
        schema.upgrade(owner_url, url.render_as_string(hide_password=False))
