"""Checks PostgreSQL, Redis and the object store: each answers, accepts writes and keeps them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from cli.checks.findings import Finding, Status

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from sqlalchemy import URL

    from adapters.storage.settings import StorageSettings
    from db.settings import DatabaseSettings

_ANSWER_S = 10.0
_TRANSFER_S = 30.0


async def check_postgres(settings: DatabaseSettings) -> list[Finding]:
    """Checks that PostgreSQL answers as a role that row-level security binds, at this version's schema."""
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError, SQLAlchemyError

    from db import schema
    from db.errors import DatabaseUnavailable, translated_errors
    from db.roles import PrivilegedRole
    from db.session import Database

    try:
        shown = _database_address(make_url(settings.url))
        database = Database(settings.url)
    except (ArgumentError, ImportError, SQLAlchemyError):  # the message may quote the URL with its password
        remedy = "write postgresql+psycopg://ROLE:PASSWORD@HOST:5432/DATABASE"
        return [Finding("PostgreSQL", Status.FAILED, f"ROOTSTOCK_DB_URL cannot be read: {remedy}")]
    try:
        async with asyncio.timeout(_ANSWER_S):
            with translated_errors():
                await schema.assert_fit_to_serve(database)
    except (schema.SchemaMismatch, PrivilegedRole) as error:
        return [Finding("PostgreSQL", Status.FAILED, f"{shown}: {error}")]
    except (DatabaseUnavailable, SQLAlchemyError, OSError, TimeoutError) as error:
        why = f"no answer within {_ANSWER_S:g} s" if isinstance(error, TimeoutError) else _first_line(error)
        remedy = "start it, or correct ROOTSTOCK_DB_URL"
        return [Finding("PostgreSQL", Status.FAILED, f"{shown} does not answer ({why}): {remedy}")]
    finally:
        await database.close()
    return [Finding("PostgreSQL", Status.OK, f"{shown}; schema {schema.expected_revision()}")]


async def check_redis(variable: str, url: str) -> list[Finding]:
    """Checks that Redis answers, accepts writes, and keeps them over a restart.

    Args:
        variable: the setting that holds `url`.
    """
    from redis.asyncio import Redis
    from redis.exceptions import RedisError

    from api.readiness import RedisWritable

    shown = redis_address(url)
    try:
        client = Redis.from_url(url, socket_connect_timeout=_ANSWER_S, socket_timeout=_ANSWER_S)
    except ValueError:
        remedy = "write redis://, rediss:// or unix://"
        return [Finding("Redis", Status.FAILED, f"{variable} cannot be read: {remedy}")]
    async with client:
        try:
            refusal = await RedisWritable(client).check()
        except (RedisError, OSError) as error:
            why = f"{shown} does not answer ({_first_line(error)})"
            return [Finding("Redis", Status.FAILED, f"{why}: start it, or correct {variable}")]
        if refusal is not None:
            return [Finding("Redis", Status.FAILED, f"{shown} {refusal}")]
        answers = Finding("Redis", Status.OK, f"{shown} takes writes")
        return [answers, await _persistence(client)]


async def _persistence(client: Redis) -> Finding:
    """Checks Redis's persistence: usage that is not in the ledger yet is only in Redis."""
    from redis.exceptions import RedisError

    try:
        info = await client.info()
    except (RedisError, OSError) as error:
        remedy = "verify that it has `appendonly yes` and `maxmemory-policy noeviction`"
        detail = f"cannot be read ({_first_line(error)}): {remedy}"
        return Finding("Redis persistence", Status.WARNING, detail)
    problems = []
    if not info.get("aof_enabled"):
        problems.append(
            "appendonly is no, a restart loses usage that is not billed yet: set `appendonly yes`"
        )
    elif info.get("aof_last_write_status", "ok") != "ok":
        problems.append("the append-only file cannot be written: make room on Redis's disk")
    policy = info.get("maxmemory_policy", "unknown")
    if policy != "noeviction":
        problems.append(
            f"maxmemory-policy is {policy}, a full Redis drops usage: set `maxmemory-policy noeviction`"
        )
    if problems:
        return Finding("Redis persistence", Status.WARNING, "; ".join(problems))
    return Finding("Redis persistence", Status.OK, "appendonly yes, maxmemory-policy noeviction")


async def check_storage(settings: StorageSettings) -> list[Finding]:
    """Checks that the object store writes, reads and deletes an object."""
    from adapters.storage import StorageError, open_store

    name = "object store"
    if _is_absent(settings.url):
        # Created by this command, it could belong to another account than the service's.
        detail = f"{settings.url} is not a directory yet: make it for the account of API and workers"
        return [Finding(name, Status.WARNING, f"{detail}, or the first upload does")]
    key, content = f"check/{token_hex(8)}", token_hex(16).encode()
    try:
        async with asyncio.timeout(_TRANSFER_S):
            store = open_store(settings)
            await store.put(key, content)
            try:
                found = b"".join([piece async for piece in store.get(key)])
            finally:
                await store.delete(key)
    except TimeoutError:
        detail = f"no answer within {_TRANSFER_S:g} s: correct ROOTSTOCK_STORAGE_URL or _ENDPOINT"
        return [Finding(name, Status.FAILED, f"{settings.url}: {detail}")]
    except (StorageError, ValueError) as error:
        remedy = "correct ROOTSTOCK_STORAGE_*, or the rights to write, read and delete there"
        return [Finding(name, Status.FAILED, f"{settings.url}: {_first_line(error)}: {remedy}")]
    if found != content:
        return [Finding(name, Status.FAILED, f"{settings.url} returned other bytes than were written")]
    return [Finding(name, Status.OK, f"{settings.url} writes, reads and deletes")]


def _is_absent(url: str) -> bool:
    """Returns whether the store is a directory that does not exist."""
    parts = urlsplit(url)
    return parts.scheme == "file" and not Path(unquote(parts.path)).is_dir()


def redis_address(url: str) -> str:
    """Returns `url` without user, password and options, even if they are not escaped correctly."""
    scheme, _, rest = url.partition("://")
    place, _, options = rest.partition("?")
    return f"{scheme}://..." if "@" in options else f"{scheme}://{place.rpartition('@')[2]}"


def _database_address(url: URL) -> str:
    """Returns database, server and role of `url`; not its options, which may contain a password."""
    host = url.host or url.query.get("host", "this machine")
    port = f":{url.port}" if url.port else ""
    return f"database {url.database} at {host}{port} as {url.username}"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:300] or type(error).__name__
