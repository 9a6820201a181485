"""What 0003 makes of accounts that were there before it, and of its own when it is undone."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, pool, text

from db import schema

BEFORE = (
    "INSERT INTO tenants (id, name) VALUES ('tnt_one', 'one'), ('tnt_two', 'two')",
    "INSERT INTO users (id, tenant_id, email, password_hash, role) VALUES"
    " ('usr_ann', 'tnt_one', 'ann@example.com', 'x', 'admin'),"
    " ('usr_bob', 'tnt_one', 'bob@example.com', 'x', 'developer')",
    "INSERT INTO api_keys (id, tenant_id, digest, prefix, name, kind) VALUES"
    " ('key_ask', 'tnt_one', sha256('a'), 'rs_', 'ask', 'inference'),"
    " ('key_run', 'tnt_one', sha256('b'), 'rs_', 'run', 'admin'),"
    " ('key_two', 'tnt_two', sha256('c'), 'rs_', 'two', 'inference')",
)
SINCE = (
    "UPDATE api_keys SET networks = '{10.0.0.0/8}' WHERE id = 'key_ask'",
    "UPDATE users SET role = 'owner' WHERE id = 'usr_ann'",
    "UPDATE users SET removed_at = now() WHERE id = 'usr_bob'",
    "INSERT INTO users (id, tenant_id, email, password_hash, role) VALUES"
    " ('usr_new', 'tnt_one', 'bob@example.com', 'x', 'developer'),"
    " ('usr_eye', 'tnt_one', 'eye@example.com', 'x', 'viewer')",
)


def rows(connection: Connection, query: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in connection.execute(text(query))]


@pytest.fixture
def old_url(owner_url: str) -> str:
    """A database as of 0002, with accounts in it."""
    schema.downgrade(owner_url, "0002")
    engine = create_engine(owner_url, poolclass=pool.NullPool)
    with engine.begin() as connection:
        for statement in BEFORE:
            connection.execute(text(statement))
    return owner_url


def test_accounts_of_before_get_projects_and_undoing_it_lets_nobody_in_who_was_kept_out(old_url: str) -> None:
    schema.upgrade(old_url)
    engine = create_engine(old_url, poolclass=pool.NullPool)
    with engine.begin() as connection:
        assert rows(
            connection,
            "SELECT p.id, t.name, p.name, p.is_default, p.created_at = t.created_at"
            " FROM projects p JOIN tenants t ON t.id = p.tenant_id ORDER BY p.id",
        ) == [
            ("proj_one", "one", "Default", True, True),
            ("proj_two", "two", "Default", True, True),
        ]
        assert rows(connection, "SELECT id, project_id FROM api_keys ORDER BY id") == [
            ("key_ask", "proj_one"),
            ("key_run", None),
            ("key_two", "proj_two"),
        ]
        assert rows(connection, "SELECT id, role FROM users ORDER BY id") == [
            ("usr_ann", "admin"),
            ("usr_bob", "developer"),
        ]
        for statement in SINCE:
            connection.execute(text(statement))
    schema.downgrade(old_url, "0002")
    with engine.connect() as connection:
        # Code of before knows no networks: it would let the key in from anywhere.
        assert rows(connection, "SELECT id FROM api_keys WHERE revoked_at IS NOT NULL") == [("key_ask",)]
        assert rows(connection, "SELECT id, role FROM users ORDER BY id") == [
            ("usr_ann", "admin"),
            ("usr_new", "developer"),
        ]
