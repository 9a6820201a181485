"""Grants rights to the PostgreSQL role that serves, and rejects roles that row-level security does not bind.

There are two roles: the tables' owner migrates; the serving role only reads and writes rows, and only one
tenant's rows at a time (row-level security, set up by the migrations). A superuser, a role with BYPASSRLS or
the tables' owner would work too, but without that protection, so each process checks its role before it
serves.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, text

from db.errors import UnusableDatabase

READ_ONLY = ("alembic_version",)
APPEND_ONLY = ("audit_log", "charges", "incident_notes", "reversals")
OWNER_FUNCTIONS = ("secure_tenant_rows", "ensure_month_partitions")

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


class PrivilegedRole(UnusableDatabase):
    """Row-level security does not confine the role to one tenant's rows."""

    def __init__(self, role: str, why: str) -> None:
        super().__init__(
            f"the database role {role} {why}, so row-level security does not hold it: serve as another role "
            "(ROOTSTOCK_DB_URL), and migrate as this one (ROOTSTOCK_DB_OWNER_URL)"
        )
        self.role = role


class MissingGrants(UnusableDatabase):
    """The serving role lacks grants that it needs: the tables belong to another application, or were migrated
    for another role.
    """

    def __init__(self, role: str, tables: Sequence[str]) -> None:
        named = ", ".join(tables[:3]) + (", ..." if len(tables) > 3 else "")
        super().__init__(
            f"the database role {role} may not read {len(tables)} tables ({named}): run `rootstock migrate` "
            "with this role in ROOTSTOCK_DB_URL"
        )
        self.role = role


class RoleMissing(RuntimeError):
    """The role that should serve does not exist."""

    def __init__(self, role: str) -> None:
        super().__init__(
            f"the database role {role} does not exist: make it first (CREATE ROLE ... LOGIN PASSWORD ...)"
        )
        self.role = role


def assert_exists(connection: Connection, role: str) -> None:
    """Raises RoleMissing if there is no such role."""
    if connection.execute(text("SELECT FROM pg_roles WHERE rolname = :role"), {"role": role}).first() is None:
        raise RoleMissing(role)


def grant(connection: Connection, role: str) -> None:
    """Lets the existing `role` read and write rows, and nothing more. The owner calls it after migrations."""
    found = connection.execute(
        text("SELECT quote_ident(rolname), rolname = current_user FROM pg_roles WHERE rolname = :role"),
        {"role": role},
    ).one()
    quoted, is_owner = found
    if is_owner:
        return  # the owner may do all that already; it is rejected when it tries to serve
    schema = connection.execute(text("SELECT quote_ident(current_schema())")).scalar_one()
    for statement in (
        f"REVOKE CREATE ON SCHEMA {schema} FROM PUBLIC",  # granted to PUBLIC before PostgreSQL 15
        f"GRANT USAGE ON SCHEMA {schema} TO {quoted}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {quoted}",
        f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {quoted}",
        f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO {quoted}",
        *(f"REVOKE INSERT, UPDATE, DELETE ON {table} FROM {quoted}" for table in READ_ONLY),
        *(f"REVOKE UPDATE, DELETE ON {table} FROM {quoted}" for table in APPEND_ONLY),
        *(f"REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC, {quoted}" for function in OWNER_FUNCTIONS),
    ):
        connection.execute(text(statement))


def current_role(connection: Connection) -> str:
    return str(connection.execute(text("SELECT current_user")).scalar_one())


def assert_confined(connection: Connection) -> None:
    """Raises PrivilegedRole unless row-level security binds the role of this connection."""
    might = connection.execute(_MIGHT).one()
    for is_so, why in (
        (might.superuser, "is a superuser"),
        (might.bypasses, "bypasses row-level security"),
        (might.owns, "owns the tables"),
    ):
        if is_so:
            raise PrivilegedRole(might.role, why)


def unreadable_tables(connection: Connection) -> list[str]:
    """Returns the tables on which the role of this connection lacks SELECT."""
    return list(connection.execute(_UNREADABLE).scalars())
