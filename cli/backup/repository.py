"""Reads what a backup records of a database: tables, row counts, and the objects that rows name."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

# The tables' owner is bound by row-level security too. Without limits: a backup may take hours.
_SETTINGS = text("""
    SELECT set_config('rootstock.tenant', '*', true), set_config('statement_timeout', '0', true),
           set_config('idle_in_transaction_session_timeout', '0', true), set_config('timezone', 'UTC', true)
""")
_SNAPSHOT = text("""
    SELECT pg_export_snapshot() AS snapshot, pg_current_wal_lsn()::text AS wal_position,
           current_setting('server_version_num')::integer AS server_version,
           (SELECT version_num FROM alembic_version) AS revision
""")
# Partitions are counted through their tables.
_TABLES = text("""
    SELECT quote_ident(relname) FROM pg_class WHERE relnamespace = current_schema()::regnamespace
    AND relkind IN ('r', 'p') AND NOT relispartition ORDER BY 1
""")
# Objects of what is being deleted go before their rows.
_NAMED = text("""
    SELECT object_key AS key, sha256 FROM files
    UNION SELECT object_key, sha256 FROM upload_parts AS part
        JOIN uploads ON uploads.id = part.upload_id AND uploads.status = 'pending'
    UNION SELECT source.value ->> 'key', source.value ->> 'sha256'
        FROM adapter_versions, jsonb_each(sources) AS source WHERE state <> 'deleting'
    UNION SELECT format('tenants/%s/adapters/%s/%s/%s.rsa', tenant_id, adapter_id, version, artifact.key),
               artifact.value ->> 'digest'
        FROM adapter_versions, jsonb_each(artifacts) AS artifact WHERE state <> 'deleting'
    UNION SELECT input_key, '' FROM batches WHERE input_key IS NOT NULL
""")
_ARTIFACTS = text("SELECT DISTINCT digest FROM adapter_versions WHERE state = 'ready' AND digest IS NOT NULL")
_SERVER_VERSION = text("SELECT current_setting('server_version_num')::integer")
_NUM_TABLES = text("""
    SELECT count(*) FROM pg_class
    WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p')
""")
# Sums without rows are wrong too.
_USAGE_SPAN = text("""
    SELECT (SELECT count(*) FROM usage_records) AS num_rows, min(at) AS first, max(at) AS last
    FROM (SELECT min(submitted_at) AS at FROM usage_records
          UNION ALL SELECT max(submitted_at) FROM usage_records
          UNION ALL SELECT min(day) FROM usage_rollup_days
          UNION ALL SELECT max(day) FROM usage_rollup_days) AS moments
""")


class Snapshot(NamedTuple):
    """A consistent view of the database, for as long as its transaction is open."""

    name: str
    """For pg_dump."""
    wal_position: str
    server_version: int
    revision: str


class BackupRepository:
    """Reads all tenants' rows, as the tables' owner. `connection` is in one transaction."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def open(self) -> None:
        """Lets the transaction read every tenant's rows, for as long as that takes. Call it first."""
        await self._connection.execute(_SETTINGS)

    async def snapshot(self) -> Snapshot:
        found = (await self._connection.execute(_SNAPSHOT)).one()
        return Snapshot(found.snapshot, found.wal_position, found.server_version, found.revision)

    async def row_counts(self) -> dict[str, int]:
        """Returns the number of rows of each table."""
        tables = (await self._connection.execute(_TABLES)).scalars().all()
        return {
            table: (await self._connection.execute(text(f"SELECT count(*) FROM {table}"))).scalar_one()
            for table in tables
        }

    async def named_objects(self) -> dict[str, str]:
        """Returns the keys of the objects that rows name, and their SHA-256; empty where rows have none."""
        return {row.key: row.sha256 or "" for row in await self._connection.execute(_NAMED)}

    async def served_artifacts(self) -> set[str]:
        """Returns the digests of the packed adapters that requests can name."""
        return set((await self._connection.execute(_ARTIFACTS)).scalars())

    async def server_version(self) -> int:
        """Returns PostgreSQL's version, as 150004."""
        return int((await self._connection.execute(_SERVER_VERSION)).scalar_one())

    async def num_tables(self) -> int:
        return int((await self._connection.execute(_NUM_TABLES)).scalar_one())

    async def usage_span(self) -> tuple[int, datetime | None, datetime | None]:
        """Returns the number of the ledger's rows, and the first and last moment of rows and sums; None
        without any.
        """
        found = (await self._connection.execute(_USAGE_SPAN)).one()
        return found.num_rows, found.first, found.last
