"""Runs migrations: each in its own transaction, one runner at a time, never waiting long for a lock.

A migration that queues behind a long transaction makes every later query queue behind itself: after
LOCK_TIMEOUT it gives up instead, and is run again at a better time.
"""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection, create_engine, pool, text

from db.settings import OwnerSettings
from migrations.metadata import metadata

LOCK_TIMEOUT = "5s"
RUNNER_TIMEOUT = "120s"
RUNNER_LOCK = 0x526F6F74  # "Root": any number that nobody else takes


def run(connection: Connection) -> None:
    # Two runners at once would both apply the same revision; the second waits here, then finds nothing to do.
    # It waits for as long as migrations may take, not for a lock within one: that limit is set afterwards.
    connection.execute(text("SET lock_timeout = 0"))
    connection.execute(text(f"SET statement_timeout = '{RUNNER_TIMEOUT}'"))
    connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": RUNNER_LOCK})
    connection.execute(text("SET statement_timeout = 0"))
    connection.execute(text(f"SET lock_timeout = '{LOCK_TIMEOUT}'"))
    # Row-level security holds the owner, too.
    connection.execute(text("SET rootstock.tenant = '*'"))
    connection.commit()
    context.configure(
        connection=connection,
        target_metadata=metadata,
        transaction_per_migration=True,
        compare_server_default=True,
    )
    try:
        with context.begin_transaction():
            context.run_migrations()
    finally:
        connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": RUNNER_LOCK})
        connection.commit()


if context.is_offline_mode():
    raise SystemExit("migrations need a database: offline SQL is not produced")

given: Connection | None = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    engine = create_engine(OwnerSettings().owner_url, poolclass=pool.NullPool)  # type: ignore[call-arg]
    with engine.connect() as opened:
        run(opened)
    engine.dispose()
