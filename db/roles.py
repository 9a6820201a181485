"""The PostgreSQL role that serves: what it is granted, and the refusal to serve as any mightier one.

Two roles: the owner of the tables migrates, the serving role only reads and writes rows, and those of one
tenant at a time (row-level security, made by the migrations). A superuser, a role that bypasses row-level
security or the tables' owner would serve as well and be held by none of it: so processes ask before they
serve. Knows no table but the few that need other grants than the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, text

from db.errors import UnusableDatabase

READ_ONLY = ("alembic_version",)
ADDED_TO_ONLY = ("audit_log", "charges", "incident_notes", "reversals")
OWNERS_FUNCTIONS = ("secure_tenant_rows", "ensure_month_partitions")

_MIGHT = text("""
SELECT current_user AS role, rolsuper AS superuser, rolbypassrls AS bypasses,
       EXISTS (SELECT FROM pg_class WHERE relnamespace = current_schema()::regnamespace
               AND relkind IN ('r', 'p') AND pg_has_role(relowner, 'USAGE')) AS owns
FROM pg_roles WHERE rolname = current_user
""")
# Partitions are read through their tables.
_UNREADABLE = text("""
SELECT relname::text FROM pg_class WHERE relnamespace = current_schema()::regnamespace
AND relkind IN ('r', 'p') AND NOT relispartition AND NOT has_table_privilege(oid, 'SELECT') ORDER BY relname
""")


class RoleTooMighty(UnusableDatabase):
    """The role is not held to the rows of one tenant."""

    def __init__(self, role: str, why: str) -> None:
        super().__init__(
            f"the database role {role} {why}, so row-level security does not hold it: serve as another role "
            "(ROOTSTOCK_DB_URL), and migrate as this one (ROOTSTOCK_DB_OWNER_URL)"
        )
        self.role = role


class RightsMissing(UnusableDatabase):
    """The role that serves was not granted what it needs: the tables are another application's, or were
    migrated for another role.
    """

    def __init__(self, role: str, tables: Sequence[str]) -> None:
        named = ", ".join(tables[:3]) + (", ..." if len(tables) > 3 else "")
        super().__init__(
            f"the database role {role} may not read {len(tables)} tables ({named}): run `rootstock migrate` "
            "with this role in ROOTSTOCK_DB_URL"
        )
        self.role = role


class RoleMissing(RuntimeError):
    """The role that is to serve does not exist."""

    def __init__(self, role: str) -> None:
        super().__init__(
            f"the database role {role} does not exist: make it first (CREATE ROLE ... LOGIN PASSWORD ...)"
        )
        self.role = role


def assert_exists(connection: Connection, role: str) -> None:
    """Raises RoleMissing."""
    if connection.execute(text("SELECT FROM pg_roles WHERE rolname = :role"), {"role": role}).first() is None:
        raise RoleMissing(role)


def grant(connection: Connection, role: str) -> None:
    """Let `role`, which exists, read and write rows, and no more; after migrations, by the owner."""
    found = connection.execute(
        text("SELECT quote_ident(rolname), rolname = current_user FROM pg_roles WHERE rolname = :role"),
        {"role": role},
    ).one()
    quoted, is_owner = found
    if is_owner:
        return  # it may all that already, and will be refused when it is to serve
    schema = connection.execute(text("SELECT quote_ident(current_schema())")).scalar_one()
    for statement in (
        f"REVOKE CREATE ON SCHEMA {schema} FROM PUBLIC",  # everybody's before PostgreSQL 15
        f"GRANT USAGE ON SCHEMA {schema} TO {quoted}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {quoted}",
        f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {quoted}",
        f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO {quoted}",
        *(f"REVOKE INSERT, UPDATE, DELETE ON {table} FROM {quoted}" for table in READ_ONLY),
        *(f"REVOKE UPDATE, DELETE ON {table} FROM {quoted}" for table in ADDED_TO_ONLY),
        *(f"REVOKE EXECUTE ON FUNCTION {function} FROM {quoted}" for function in OWNERS_FUNCTIONS),
    ):
        connection.execute(text(statement))


def current_role(connection: Connection) -> str:
    return str(connection.execute(text("SELECT current_user")).scalar_one())


def assert_confined(connection: Connection) -> None:
    """Raise RoleTooMighty unless row-level security holds the role of this connection."""
    might = connection.execute(_MIGHT).one()
    for is_so, why in (
        (might.superuser, "is a superuser"),
        (might.bypasses, "bypasses row-level security"),
        (might.owns, "owns the tables"),
    ):
        if is_so:
            raise RoleTooMighty(might.role, why)


def unreadable_tables(connection: Connection) -> list[str]:
    """Tables that the role of this connection was not granted."""
    return list(connection.execute(_UNREADABLE).scalars())
