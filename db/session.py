"""Opens database sessions: reads that cannot write, writes that commit once, jobs that run after the commit.

`ReadSession` and `WriteSession` are different types, so that a function's signature says which one it needs.
PostgreSQL enforces that a read session does not write, and confines both to the rows of their tenant.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import structlog
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from db.errors import translated_errors

log = structlog.get_logger(__name__)

AfterCommit = Callable[[], Awaitable[None]]

PREPARE_AFTER = 5
"""Executions of a statement on a connection before the server keeps it prepared."""
EVERY_TENANT = "*"
"""The scope of work that belongs to no single tenant: key look-up, metering, clean-up, the operator."""

# All in one statement, until the transaction ends. Row-level security reads the tenant. The others are not
# set for the connection: PgBouncer rejects that at start-up and may give each transaction another connection.
_SETTINGS = (
    "SELECT set_config('rootstock.tenant', :tenant, true), set_config('statement_timeout', :timeout, true), "
    "set_config('timezone', 'UTC', true)"
)
_WRITE = text(_SETTINGS)
_READ = text(f"{_SETTINGS}, set_config('transaction_read_only', 'on', true)")


class ReadSession(AsyncSession):
    """A read-only transaction."""


class WriteSession(AsyncSession):
    """A transaction that `Database.write` commits. Queue side effects with `after_commit`."""

    def after_commit(self, job: AfterCommit) -> None:
        """Runs `job` once this transaction is committed, never if it is rolled back.

        A job that fails is logged and does not fail the transaction, which is already committed: work that
        must not be lost belongs in a table (`db.outbox`).
        """
        self.info.setdefault("after_commit", []).append(job)


class Database:
    """Connections to one PostgreSQL, opened at first use. `close` it at the end of the process.

    Every use raises `db.errors.DatabaseUnavailable` when the server is away, overloaded, or took too long.

    Args:
        prepared_statements: lets the server keep statements that run often. Not behind a PgBouncer before
            1.21 that pools transactions: it may run a statement on a connection where it was not prepared.
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
        """Opens a read-only transaction over the rows of `tenant`; they stay readable after it ends."""
        with translated_errors():
            async with ReadSession(self.engine, expire_on_commit=False) as session:
                await session.execute(_READ, {"tenant": tenant, "timeout": self._timeout})
                yield session
                # By COMMIT: at a ROLLBACK psycopg has the server forget every prepared statement.
                session.expunge_all()
                await session.commit()

    @asynccontextmanager
    async def write(self, tenant: str) -> AsyncIterator[WriteSession]:
        """Opens a transaction over the rows of `tenant`: committed when the block ends, after which its jobs
        run; rolled back if the block raises.
        """
        with translated_errors():
            async with WriteSession(self.engine, expire_on_commit=False) as session, session.begin():
                await session.execute(_WRITE, {"tenant": tenant, "timeout": self._timeout})
                yield session
        for job in session.info.pop("after_commit", []):
            try:
                await job()
            except Exception:
                log.exception("a job queued for after the commit failed")

    @property
    def checked_out(self) -> int:
        """Returns the number of connections in use."""
        return self.engine.pool.checkedout()  # type: ignore[attr-defined]

    async def ping(self) -> None:
        """Raises DatabaseUnavailable unless PostgreSQL answers."""
        async with self.read(EVERY_TENANT):
            pass

    async def close(self) -> None:
        await self.engine.dispose()
