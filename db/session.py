"""Opens database sessions: reads that cannot write, writes that commit once, jobs that run after the commit.

`ReadSession` and `WriteSession` are different types, so that a function's signature says which one it needs.
PostgreSQL enforces that a read session does not write, and confines both to the rows of their tenant.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import LiteralString

import psycopg
import structlog
from psycopg import sql
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from db.errors import translated_errors

log = structlog.get_logger(__name__)

AfterCommit = Callable[[], Awaitable[None]]

PREPARE_AFTER = 5
"""Executions of a statement on a connection before the server keeps it prepared."""
EVERY_TENANT = "*"
"""The scope of work that belongs to no single tenant: key look-up, metering, clean-up, the operator."""

# In one message with the start of the transaction, until whose end they hold. Row-level security reads the
# tenant. The others are not set for the connection: PgBouncer rejects that at start-up and may give each
# transaction another connection.
_SETTINGS: LiteralString = (
    "SET LOCAL rootstock.tenant = {tenant}; SET LOCAL statement_timeout = {timeout}; "
    "SET LOCAL idle_in_transaction_session_timeout = {idle}; SET LOCAL timezone = 'UTC'"
)
_WRITE: LiteralString = f"BEGIN; {_SETTINGS}"
_READ: LiteralString = f"BEGIN READ ONLY; {_SETTINGS}"


@functools.lru_cache(maxsize=4096)
def _filled(statements: LiteralString, tenant: str, timeout: int, idle: int) -> bytes:
    return sql.SQL(statements).format(tenant=tenant, timeout=timeout, idle=idle).as_bytes()


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
        statement_timeout: seconds after which PostgreSQL cancels a statement.
        idle_transaction_timeout: seconds without a statement after which PostgreSQL ends a transaction and
            its connection. Else a process that is stopped, or whose host is lost, would keep its row locks
            for hours.
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
        idle_transaction_timeout: float = 60.0,
        prepared_statements: bool = False,
    ) -> None:
        self._timeout = round(statement_timeout * 1000)
        self._idle_timeout = round(idle_transaction_timeout * 1000)
        self.engine: AsyncEngine = create_async_engine(
            url,
            pool_size=pool_size,
            max_overflow=pool_overflow,
            pool_timeout=pool_timeout,
            connect_args={
                "autocommit": True,  # transactions start in `_begin`
                "connect_timeout": 5,
                "prepare_threshold": PREPARE_AFTER if prepared_statements else None,
            },
        )

    @asynccontextmanager
    async def read(self, tenant: str) -> AsyncIterator[ReadSession]:
        """Opens a read-only transaction over the rows of `tenant`; they stay readable after it ends."""
        with translated_errors():
            async with ReadSession(self.engine, expire_on_commit=False) as session:
                await self._begin(session, _READ, tenant)
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
            async with WriteSession(self.engine, expire_on_commit=False) as session:
                await self._begin(session, _WRITE, tenant)
                yield session
                await session.commit()
        for job in session.info.pop("after_commit", []):
            try:
                await job()
            except Exception:
                log.exception("a job queued for after the commit failed")

    async def _begin(self, session: AsyncSession, statements: LiteralString, tenant: str) -> None:
        """Starts a transaction, on another connection if the server has closed the one that was kept."""
        filled = _filled(statements, tenant, self._timeout, self._idle_timeout)
        while True:
            connection = await session.connection()
            driver = connection.sync_connection.connection.driver_connection  # type: ignore[union-attr]
            assert isinstance(driver, psycopg.AsyncConnection)
            was_used = connection.info.setdefault("was_used", False)
            connection.info["was_used"] = True
            try:
                await driver.execute(filled, prepare=False)
                return
            except psycopg.Error:
                if not driver.closed:
                    raise
                await connection.invalidate()
                if not was_used:
                    raise
            await session.rollback()

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
