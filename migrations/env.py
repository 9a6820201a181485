"""Runs migrations: each in its own transaction, one runner at a time, never waiting long for a lock.

A migration, its stamp, its compatibility with older releases and, with the last one, the rights of the
serving role are one transaction: a failure leaves the schema at the migration before it. A migration that
queues behind a long transaction makes every later query queue behind itself, so after LOCK_TIMEOUT it gives
up instead, and is run again at a better time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from alembic import context
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, create_engine, pool, text

from db import compatibility, roles
from db.settings import OwnerSettings
from migrations.metadata import metadata

LOCK_TIMEOUT = "5s"
RUNNER_TIMEOUT = "120s"
RUNNER_LOCK = 0x526F6F74  # "Root"; no other code takes this number


def run(connection: Connection, serving_role: str | None) -> None:
    # Two concurrent runners would both apply the same revision; the second waits here, then finds nothing to
    # do. It waits for as long as migrations may take, so the limit for locks within one is set afterwards.
    connection.execute(text("SET lock_timeout = 0"))
    connection.execute(text(f"SET statement_timeout = '{RUNNER_TIMEOUT}'"))
    connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": RUNNER_LOCK})
    connection.execute(text("SET statement_timeout = 0"))
    connection.execute(text(f"SET lock_timeout = '{LOCK_TIMEOUT}'"))
    # Row-level security applies to the owner, too.
    connection.execute(text("SET rootstock.tenant = '*'"))
    connection.commit()
    try:
        if serving_role is not None:
            roles.assert_exists(connection, serving_role)
            connection.commit()
        context.configure(
            connection=connection,
            target_metadata=metadata,
            transaction_per_migration=True,
            compare_server_default=True,
            on_version_apply=after_each(connection, serving_role),
        )
        with context.begin_transaction():
            context.run_migrations()
        if serving_role is not None:  # also without a migration, since the role may have changed
            roles.grant(connection, serving_role)
            connection.commit()
    finally:
        connection.rollback()
        connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": RUNNER_LOCK})
        connection.commit()


def after_each(connection: Connection, serving_role: str | None) -> Callable[..., None]:
    """Returns what alembic calls at the end of each migration's transaction."""
    head = context.script.get_current_head()

    def finish(*, heads: set[str], ctx: MigrationContext, **_: Any) -> None:
        revision = next(iter(heads), None)
        compatibility.record(connection, context.script, revision)
        if serving_role is not None and revision == head:
            roles.grant(connection, serving_role)

    return finish


if context.is_offline_mode():
    raise SystemExit("migrations need a database: offline SQL is not produced")

given: Connection | None = context.config.attributes.get("connection")
if given is not None:
    run(given, context.config.attributes.get("serving_role"))
else:
    engine = create_engine(OwnerSettings().owner_url, poolclass=pool.NullPool)  # type: ignore[call-arg]
    with engine.connect() as opened:
        run(opened, None)
    engine.dispose()
