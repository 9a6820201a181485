"""Gives each test an empty database at the current schema: a process's tests share one, emptied between them.

Copying a database costs a tenth of a second, and every first connection to a copy plans with cold caches.
Deleting the few rows that a test wrote costs a hundredth. A test that changed the schema itself, or gathered
planner statistics, gets a fresh copy.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import psycopg
from psycopg import sql
from sqlalchemy import make_url

from tests.support.clusters import MIGRATOR
from tests.support.connections import end_kept, kept_processes

SMALL_BYTES = 256 << 10
"""Tables up to this size are emptied by DELETE, larger ones by TRUNCATE: dead rows would slow scans down."""

# Any change of the schema adds a row to one of these catalogs, or writes one anew with the largest xmin so
# far, or leaves one fewer. Ages are compared, which are cheap; 3 is the first xmin that has one. Conditions
# are for catalogs that are mostly the server's own rows: for others, an index takes longer than all rows.
_SCHEMA_STATE = b" UNION ALL ".join(
    b"SELECT count(*), age('3'::xid) - min(age(xmin)) FROM " + rows
    for rows in (
        b"pg_class",
        b"pg_attribute",
        b"pg_proc WHERE oid >= 16384",
        b"pg_trigger",
        b"pg_policy",
        b"pg_description WHERE objoid >= 16384",
        b"pg_constraint",
        b"pg_statistic WHERE starelid >= 16384",
    )
)
_SEQUENCES = "SELECT sequencename, start_value FROM pg_sequences WHERE schemaname = 'public'"
_TABLES = """
    SELECT relname FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' ORDER BY relname
"""

_LAST_NUMBERS = """
    SELECT sequencename, last_value FROM pg_sequences WHERE schemaname = 'public' AND last_value IS NOT NULL
"""

_serial = itertools.count()
T = TypeVar("T")


@dataclass(frozen=True)
class Content:
    """Of a database: all rows of its tables that are not empty, as COPY writes them, and of its sequences."""

    rows: dict[str, bytes]
    last_numbers: dict[str, int]


class SharedDatabase:
    """The database of tests that take turns. `empty` it before each test, `close` it after the last.

    Args:
        admin: an autocommit connection of a superuser to another database of the same server.
        owner_url: SQLAlchemy URL of any database of that server, for a superuser.
        template: the migrated database to copy; nothing may be connected to it.
    """

    def __init__(self, admin: psycopg.Connection, owner_url: str, template: str) -> None:
        self._admin = admin
        self._url = make_url(owner_url)
        self._template = template
        self._as_copied: list[tuple[Any, ...]]
        self._made: dict[Callable[..., Awaitable[Any]], tuple[Any, Content]] = {}
        self._create()

    @property
    def url(self) -> str:
        """SQLAlchemy URL, a superuser's."""
        return self._url.set(database=self.name).render_as_string(hide_password=False)

    def empty(self) -> None:
        """Make the database as it was when it was copied; end what is still connected to it."""
        self._end_other_connections()
        if self._connection.closed or self._schema_state() != self._as_copied:
            self.close()
            self._create()
            return
        with self._connection.transaction():
            sizes = dict(self._execute(self._dirty_tables).fetchall())
            now = self._seed_state()
            changed = [name for name in self._seeds if now[name] != self._as_seeded[name]]
            is_truncated = self._clear(sizes | {name: now[name][-1] for name in changed})
            for name in changed:
                self._copy(name, self._seeds[name])
            if changed:
                restored = self._seed_state()
                self._as_seeded |= {name: restored[name] for name in changed}
            self._execute(self._restart_sequences)
        if is_truncated:
            self._as_copied = self._schema_state()

    def content(self) -> Content:
        """All that was written since the database was emptied; the schema must be as it was."""
        assert self._schema_state() == self._as_copied
        dirty = dict(self._execute(self._dirty_tables).fetchall())
        return Content(
            {name: self._rows(name) for name in (*self._seeds, *dirty)},
            dict(self._connection.execute(_LAST_NUMBERS).fetchall()),
        )

    def put(self, content: Content) -> None:
        """Write into the empty database what `content` returned."""
        written = [(name, rows) for name, rows in content.rows.items() if rows != self._seeds.get(name)]
        with self._connection.transaction():
            self._clear({name: 0 for name, _ in written if name in self._seeds})
            for name, rows in written:
                self._copy(name, rows)
            for name, last in content.last_numbers.items():
                self._connection.execute("SELECT setval(format('public.%%I', %s::text), %s)", (name, last))

    async def once(self, make: Callable[..., Awaitable[T]], *arguments: object) -> T:
        """Returns what `make` returned for the first test of this process, and writes into the empty database
        what it wrote.
        """
        if make not in self._made:
            self._made[make] = await make(*arguments), self.content()
        else:
            self.put(self._made[make][1])
        return cast(T, self._made[make][0])

    def close(self) -> None:
        """Drop the database."""
        end_kept()
        self._connection.close()
        self._admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(self.name)))

    def _create(self) -> None:
        self.name = f"test_{next(_serial)}"
        # By files rather than page by page through the log; the only way before 15, which has no word for it.
        strategy = sql.SQL("STRATEGY FILE_COPY" if self._admin.info.server_version >= 150000 else "")
        self._admin.execute(
            sql.SQL("CREATE DATABASE {} OWNER {} TEMPLATE {} {}").format(
                sql.Identifier(self.name), sql.Identifier(MIGRATOR), sql.Identifier(self._template), strategy
            )
        )
        url = self._url.set(drivername="postgresql", database=self.name)
        # Without triggers and foreign keys: some tables refuse deletion, which is what tests prove. For the
        # whole connection, since each change of this setting discards all plans of prepared statements.
        self._connection = psycopg.connect(
            url.render_as_string(hide_password=False),
            autocommit=True,
            options="-c session_replication_role=replica",
        )
        tables = [name for (name,) in self._connection.execute(_TABLES).fetchall()]
        self._seeds = {name: rows for name in tables if (rows := self._rows(name))}
        self._dirty_tables = self._union(
            sql.SQL("(SELECT {0}, pg_relation_size({0}::regclass) FROM {1} LIMIT 1)").format(
                sql.Literal(name), sql.Identifier(name)
            )
            for name in tables
            if name not in self._seeds
        )
        self._restart_sequences = self._union(
            sql.SQL("(SELECT setval({}::regclass, {}, false) FROM {} WHERE is_called)").format(
                sql.Literal(f'public."{name}"'), sql.Literal(start), sql.Identifier(name)
            )
            for name, start in self._connection.execute(_SEQUENCES).fetchall()
        )
        # A row that was written or changed since has a larger xmin; fewer rows are fewer. Last, the size.
        self._seed_states = self._union(
            sql.SQL(
                "SELECT {0}, count(*), sum(xmin::text::bigint), pg_relation_size({0}::regclass) FROM {1}"
            ).format(sql.Literal(name), sql.Identifier(name))
            for name in self._seeds
        )
        self._as_seeded = self._seed_state()
        self._as_copied = self._schema_state()

    def _seed_state(self) -> dict[str, tuple[Any, ...]]:
        """What differs for a seeded table as soon as one of its rows is not as it was."""
        return {name: tuple(state) for name, *state in self._execute(self._seed_states).fetchall()}

    def _rows(self, table: str) -> bytes:
        """What COPY writes of a table: what migrations put there is put back from it."""
        with self._connection.cursor() as cursor:
            statement = sql.SQL("COPY {} TO STDOUT (FORMAT binary)").format(sql.Identifier(table))
            with cursor.copy(statement) as copied:
                content = b"".join(copied)
            return content if cursor.rowcount else b""

    def _clear(self, sizes: Mapping[str, int]) -> bool:
        """Empties tables of these sizes. Whether one was truncated, which changes the catalogs."""
        large = {name for name, size in sizes.items() if size > SMALL_BYTES}
        verbs = {True: sql.SQL("TRUNCATE {} CASCADE"), False: sql.SQL("DELETE FROM {}")}
        if sizes:
            each = [verbs[name in large].format(sql.Identifier(name)) for name in sizes]
            self._connection.execute(sql.SQL("; ").join(each))
        return bool(large)

    def _copy(self, table: str, rows: bytes) -> None:
        statement = sql.SQL("COPY {} FROM STDIN (FORMAT binary)").format(sql.Identifier(table))
        with self._connection.cursor() as cursor, cursor.copy(statement) as copied:
            copied.write(rows)

    def _schema_state(self) -> list[tuple[Any, ...]]:
        return self._execute(_SCHEMA_STATE).fetchall()

    def _union(self, queries: Iterable[sql.Composed]) -> bytes:
        """As it is sent: to put the parts together takes as long as to run it."""
        return sql.SQL(" UNION ALL ").join(queries).as_bytes(self._connection)

    def _execute(self, query: bytes) -> psycopg.Cursor[tuple[Any, ...]]:
        return self._connection.execute(query, prepare=True)

    def _end_other_connections(self) -> None:
        # A connection that a test left open may hold locks.
        ours = 0 if self._connection.closed else self._connection.info.backend_pid
        self._admin.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE datname = %s AND pid <> ALL (%s)",
            (self.name, [ours, *kept_processes()]),
        )
