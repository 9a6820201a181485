"""Real servers for tests: a private PostgreSQL and a private Redis per session, both empty for every test.

`redis_url` and `database_url`: emptied before each test; the database is at the current schema
(`tests.support.databases`). Both servers start at first use, so tests that need neither pay for neither, and
keep their data in memory where there is room (`tests.support.scratch`). Where tests run in several processes,
each has its own.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import signal
import sys
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
import redis
import redis.asyncio
import structlog
import typer.main
from hypothesis import HealthCheck, settings
from sqlalchemy import make_url

from cli.local.postgres import OWNER, serving_url
from cli.local.redis import start_redis
from cli.local.server import LocalServer
from tests.support.clusters import TEMPLATE, start_migrated
from tests.support.collecting import fork_test_processes, without_garbage_collection
from tests.support.databases import SharedDatabase
from tests.support.distribution import ByFile, rank
from tests.support.scratch import put_temporary_directories_in_memory, scratch_directory
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from xdist.remote import Producer

    from db.session import Database
    from tests.support.onboarding import Scene


# How long examples take to draw says how busy the machine is. The rest stays as in the profile so far.
settings.register_profile("any-machine", settings(), suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-machine")


def pytest_configure() -> None:
    put_temporary_directories_in_memory()


def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    fork_test_processes(config)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile | None:
    if config.getvalue("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False
    return ByFile(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    with without_garbage_collection():
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: rank(item.nodeid))


@pytest.fixture(scope="session", autouse=True)
def plain_tracebacks() -> None:
    """structlog's own default prints tracebacks with local variables in frames: a fifth of a second of CPU
    each.
    """
    renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], renderer])


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """What a test makes of the logs, as commands do that are called within it, ends with it."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture(scope="session", autouse=True)
def certificates_read_once() -> Iterator[None]:
    """Every HTTP client reads the certificates of all public authorities, also for plain HTTP: 25 ms of CPU
    each time.
    """
    with pytest.MonkeyPatch.context() as patch:
        for library in {"httpx", "httpx2"} & sys.modules.keys():
            transports = importlib.import_module(f"{library}._transports.default")
            patch.setattr(transports, "create_ssl_context", functools.cache(transports.create_ssl_context))
        yield


@pytest.fixture(scope="session", autouse=True)
def commands_built_once() -> Iterator[None]:
    """Typer builds the whole command line anew for each call: 30 ms of CPU."""
    with pytest.MonkeyPatch.context() as patch:
        if "cli.main" in sys.modules:
            build = functools.cache(typer.main.get_command)
            patch.setattr(typer.main, "get_command", build)
            patch.setattr("typer.testing._get_command", build)
        yield


@pytest.fixture(scope="session", autouse=True)
def routes_compiled_once() -> Iterator[None]:
    """Each application compiles the patterns of its hundreds of paths anew."""
    with pytest.MonkeyPatch.context() as patch:
        for library in {"starlette", "fastapi"} & sys.modules.keys():
            routing = importlib.import_module(f"{library}.routing")
            patch.setattr(routing, "compile_path", functools.cache(routing.compile_path))
        yield


@pytest.fixture(scope="session")
def servers_dir() -> Iterator[Path]:
    """Short, unlike pytest's own: a socket's path has 108 bytes."""
    with scratch_directory() as directory:
        yield directory


@pytest.fixture(scope="session")
def redis_server(servers_dir: Path) -> Iterator[LocalServer]:
    with start_redis(servers_dir, ephemeral=True) as server:
        yield server


@pytest.fixture(scope="session")
def redis_admin(redis_server: LocalServer) -> Iterator[redis.Redis]:
    """Empties the Redis between tests."""
    with redis.Redis.from_url(redis_server.url) as client:
        yield client


@pytest.fixture
def redis_url(redis_server: LocalServer, redis_admin: redis.Redis) -> str:
    """URL of an empty Redis."""
    redis_admin.flushall()
    return redis_server.url


@pytest.fixture
async def redis_client(redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    """An asyncio client of the empty Redis; answers are bytes."""
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture(scope="session")
def postgres_server(servers_dir: Path) -> Iterator[LocalServer]:
    from tests.support.engines import engines_that_share  # here: SQLAlchemy's asyncio half, as below

    with start_migrated(servers_dir) as server, engines_that_share():
        server.stop_signal = signal.SIGQUIT  # at once, without writing to disk what nobody will read
        yield server


@pytest.fixture(scope="session")
def postgres_admin(postgres_server: LocalServer) -> Iterator[psycopg.Connection]:
    """Creates and drops databases, from outside all of them."""
    url = make_url(postgres_server.url).set(drivername="postgresql", database="postgres")
    with psycopg.connect(url.render_as_string(hide_password=False), autocommit=True) as connection:
        yield connection


_serial = itertools.count()


@pytest.fixture(scope="session")
def shared_database(
    postgres_server: LocalServer, postgres_admin: psycopg.Connection
) -> Iterator[SharedDatabase]:
    """The database that the tests of one process share, one after the other."""
    opened = SharedDatabase(postgres_admin, postgres_server.url, TEMPLATE)
    yield opened
    opened.close()


@pytest.fixture
def database_url(shared_database: SharedDatabase) -> str:
    """SQLAlchemy URL of an empty database at the current schema, for the role that serves."""
    shared_database.empty()
    return serving_url(shared_database.url)


@pytest.fixture
async def place(
    shared_database: SharedDatabase,
    database: Database,
    redis_client: redis.asyncio.Redis,
    redis_url: str,
    tmp_path: Path,
) -> AsyncIterator[Scene]:
    """An adapter's way into service, with two tenants."""
    from tests.support.onboarding import scene  # here: most tests do without what it imports

    async with scene(database, redis_client, redis_url, tmp_path, shared=shared_database) as opened:
        yield opened


@pytest.fixture
def owner_url(database_url: str) -> str:
    """SQLAlchemy URL of the same database for a superuser, whom no row-level security holds."""
    return make_url(database_url).set(username=OWNER).render_as_string(hide_password=False)


@pytest.fixture
def empty_database_url(postgres_server: LocalServer, postgres_admin: psycopg.Connection) -> Iterator[str]:
    """SQLAlchemy URL, the owner's, of a database without any table."""
    name = f"empty_{next(_serial)}"
    postgres_admin.execute(f"CREATE DATABASE {name}")
    yield database_at(postgres_server, name)
    postgres_admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """The pool on a fresh database."""
    from db.session import Database  # here: tests without a database need not load SQLAlchemy's asyncio half

    opened = Database(database_url, prepared_statements=True)
    yield opened
    await close_when_unused(opened)


async def close_when_unused(database: Database) -> None:
    """Waits for what a test left running: a connection that is returned to a closed pool is never closed."""
    await eventually(lambda: not database.checked_out, 10)
    await database.close()


@pytest.fixture
async def owner_database(owner_url: str) -> AsyncIterator[Database]:
    """The same database for a superuser: what only the owner may do, or somebody who broke in."""
    from db.session import Database

    opened = Database(owner_url)
    yield opened
    await close_when_unused(opened)


def database_at(server: LocalServer, name: str) -> str:
    return make_url(server.url).set(database=name).render_as_string(hide_password=False)
