"""Sessions: reads that cannot write, writes committed once at the edge, jobs sent only after the commit.

Knows no table. A `ReadSession` and a `WriteSession` are different types, so that a function's signature says
which it needs; PostgreSQL holds a read session to it, and either to the rows of the tenant it was opened for.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from db.errors import unavailable_when_unreachable

logger = logging.getLogger(__name__)

AfterCommit = Callable[[], Awaitable[None]]

PREPARE_AFTER = 5
"""Times a statement is run on a connection before the server keeps it prepared."""
EVERY_TENANT = "*"
"""The scope of work that is no one tenant's: finding whose a key is, metering, sweeping, the operator."""

# Until the transaction ends, and all in one statement. Row-level security reads the tenant. The others are
# not set for the connection: PgBouncer refuses that at start-up and may give each transaction another one.
_SETTINGS = (
    "SELECT set_config('rootstock.tenant', :tenant, true), set_config('statement_timeout', :timeout, true), "
    "set_config('timezone', 'UTC', true)"
)
_WRITE = text(_SETTINGS)
_READ = text(f"{_SETTINGS}, set_config('transaction_read_only', 'on', true)")


class ReadSession(AsyncSession):
    """A read-only transaction."""


class WriteSession(AsyncSession):
    """A transaction that `Database.write` commits. Work for others is queued with `after_commit`."""

    def after_commit(self, job: AfterCommit) -> None:
        """Run `job` once this transaction is committed, never if it is rolled back.

        Nothing is told of rows that may still vanish. A job that fails is logged and does not fail the
        transaction, which is done: what must not be lost belongs in a table.
        """
        self.info.setdefault("after_commit", []).append(job)


class Database:
    """Connections to one PostgreSQL, made at first use. `close` it at the end of the process.

    Every use raises `db.errors.DatabaseUnavailable` when the server is away, too busy, or took too long.

    Args:
        prepared_statements: let the server keep statements that are run again and again. Not behind a
            PgBouncer before 1.21 that pools transactions: it gives a statement to a connection without it.
    """

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = 5,
        pool_overflow: int = 5,
        pool_timeout: float = 5.0,
        statement_timeout: float = 30.0,
        prepared_statements: bool = False,
    ) -> None:
        self._timeout = str(round(statement_timeout * 1000))
        self.engine: AsyncEngine = create_async_engine(
            url,
            pool_size=pool_size,
            max_overflow=pool_overflow,
            pool_timeout=pool_timeout,
            pool_pre_ping=True,
            connect_args={
                "connect_timeout": 5,
                "prepare_threshold": PREPARE_AFTER if prepared_statements else None,
            },
        )

    @asynccontextmanager
    async def read(self, tenant: str) -> AsyncIterator[ReadSession]:
        """A read-only transaction over the rows of `tenant`; they stay readable after it ends."""
        with unavailable_when_unreachable():
            async with ReadSession(self.engine, expire_on_commit=False) as session:
                await session.execute(_READ, {"tenant": tenant, "timeout": self._timeout})
                yield session
                # By COMMIT: at a ROLLBACK psycopg has the server forget every prepared statement.
                session.expunge_all()
                await session.commit()

    @asynccontextmanager
    async def write(self, tenant: str) -> AsyncIterator[WriteSession]:
        """A transaction over the rows of `tenant`, committed when the block ends, after which its jobs are
        sent; rolled back when it raises.
        """
        with unavailable_when_unreachable():
            async with WriteSession(self.engine, expire_on_commit=False) as session, session.begin():
                await session.execute(_WRITE, {"tenant": tenant, "timeout": self._timeout})
                yield session
        for job in session.info.pop("after_commit", []):
            try:
                await job()
            except Exception:
                logger.exception("a job queued for after the commit failed")

    @property
    def checked_out(self) -> int:
        """Connections in use now."""
        return self.engine.pool.checkedout()  # type: ignore[attr-defined]

    async def ping(self) -> None:
        """Raise DatabaseUnavailable unless PostgreSQL answers."""
        async with self.read(EVERY_TENANT):
            pass

    async def close(self) -> None:
        await self.engine.dispose()
