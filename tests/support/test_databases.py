"""Emptying the shared database puts back sequences and what migrations wrote, as in the copy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import make_url

from tests.support.databases import SharedDatabase

SEQUENCES = "SELECT sequencename, start_value FROM pg_sequences WHERE schemaname = 'public'"
SEEDED = ("document_numbers", "plans", "tenants")
"""Some of the tables in which migrations put rows."""


@contextmanager
def connected(database: SharedDatabase) -> Iterator[psycopg.Connection]:
    """A superuser's connection, without the triggers that refuse changes."""
    url = make_url(database.url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url, autocommit=True, options="-c session_replication_role=replica") as connection:
        yield connection


def content(database: SharedDatabase) -> dict[str, list[tuple[object, ...]]]:
    with connected(database) as connection:
        return {
            name: connection.execute(
                sql.SQL("SELECT * FROM {} ORDER BY 1").format(sql.Identifier(name))
            ).fetchall()
            for name in SEEDED
        }


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE plans SET id = id || 'x'",
        "DELETE FROM tenants",
        "UPDATE document_numbers SET kind = kind || 'x'",
        "UPDATE tenants SET name = 'other'; UPDATE tenants SET name = 'another'",
    ],
)
def test_what_migrations_wrote_is_put_back(shared_database: SharedDatabase, change: str) -> None:
    shared_database.empty()
    name, before = shared_database.name, content(shared_database)
    assert all(before.values())
    for _ in range(2):
        with connected(shared_database) as connection:
            connection.execute(change)
        assert content(shared_database) != before
        shared_database.empty()
        assert content(shared_database) == before
    assert shared_database.name == name, "it is emptied, not copied anew"


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE tenants ALTER COLUMN name DROP NOT NULL",
        "ALTER TABLE tenants ADD CHECK (name <> 'other')",
        "ALTER TABLE tenants DISABLE ROW LEVEL SECURITY",
        "ANALYZE tenants",
        "COMMENT ON TABLE tenants IS 'other'",
        "CREATE FUNCTION other() RETURNS int LANGUAGE sql RETURN 1",
        "CREATE POLICY other ON tenants",
        "CREATE TABLE other ()",
        "DROP TABLE plans CASCADE",
        "GRANT SELECT (name) ON tenants TO PUBLIC",
    ],
)
def test_after_a_change_of_the_schema_it_is_copied_anew(shared_database: SharedDatabase, change: str) -> None:
    shared_database.empty()
    name = shared_database.name
    with connected(shared_database) as connection:
        connection.execute(change)  # type: ignore[call-overload]
    shared_database.empty()
    assert shared_database.name != name
    name = shared_database.name
    shared_database.empty()
    assert shared_database.name == name


def test_sequences_begin_again(shared_database: SharedDatabase) -> None:
    shared_database.empty()
    with connected(shared_database) as connection:
        starts = dict(connection.execute(SEQUENCES).fetchall())
        assert starts
        for name in starts:
            connection.execute("SELECT nextval(%s::regclass)", (name,))
    shared_database.empty()
    with connected(shared_database) as connection:
        for name, start in starts.items():
            assert connection.execute("SELECT nextval(%s::regclass)", (name,)).fetchone() == (start,)


def test_what_was_written_can_be_put_back(shared_database: SharedDatabase) -> None:
    shared_database.empty()
    insert = "INSERT INTO projects (id, tenant_id, name) VALUES ('proj_a', 'ten_a', 'b')"
    with connected(shared_database) as connection:
        name, start = connection.execute(SEQUENCES).fetchall()[0]
        for _ in range(3):
            connection.execute("SELECT nextval(%s::regclass)", (name,))
        connection.execute(insert)
        connection.execute("UPDATE tenants SET name = 'other'")
    changed, kept = content(shared_database), shared_database.content()
    shared_database.empty()
    assert content(shared_database) != changed
    shared_database.put(kept)
    assert content(shared_database) == changed
    assert shared_database.content() == kept
    with connected(shared_database) as connection:
        assert connection.execute("SELECT id, name FROM projects").fetchall() == [("proj_a", "b")]
        assert connection.execute("SELECT nextval(%s::regclass)", (name,)).fetchone() == (start + 3,)
    shared_database.empty()
    assert "projects" not in shared_database.content().rows
