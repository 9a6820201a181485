"""Connects the operator's commands to a running service and packs adapters; turns errors into one line.

The service is a data directory's running `up`, or the one that ROOTSTOCK_* settings name. `cli.accounts` has
the commands on tenants, keys and users.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import structlog

from cli.datadir import read_json
from cli.errors import CliError

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from adapters.bases import Bases
    from adapters.service import AdapterService
    from adapters.storage import ObjectStore
    from db.session import Database
    from engine.protocol import AdapterRef
    from tenants.key_secrets import KeySecrets
    from tenants.service import AccountServices

T = TypeVar("T")
KEY_SECRET = "ROOTSTOCK_TENANTS_KEY_SECRET"  # noqa: S105  the setting's name
PREVIOUS_KEY_SECRET = "ROOTSTOCK_TENANTS_PREVIOUS_KEY_SECRET"  # noqa: S105
_ENGINE_ANSWER_S = 10.0


def environment_of(data: Path | None) -> Mapping[str, str]:
    """Returns the settings of the `up` that serves from `data`; without `data`, this process's environment.

    Raises `CliError` when nothing serves from there.
    """
    if data is None:
        return os.environ
    # An explicit directory takes precedence over the shell's settings.
    return {**os.environ, **served_settings(data)}


def served_settings(data: Path) -> Mapping[str, str]:
    """Returns all ROOTSTOCK_* settings of the `up` that serves from `data`. Raises `CliError` when
    none does.
    """
    serving = read_json(data / "serving.json")
    if serving is None:
        raise CliError(f"nothing serves from {data}: start `rootstock up --data {data}` first")
    settings: dict[str, str] = serving["environment"]
    return settings


def setting(environment: Mapping[str, str], name: str) -> str:
    """Returns a required setting. Raises `CliError` naming it if it is not set."""
    value = environment.get(name)
    if not value:
        raise CliError(f"{name} is not set: set it, or name a running service with --data DIR")
    return value


def key_secrets(environment: Mapping[str, str]) -> KeySecrets:
    """Returns the server's key secrets. Raises `CliError`."""
    from tenants.key_secrets import KeySecrets

    current = setting(environment, KEY_SECRET)
    try:
        return KeySecrets(current, environment.get(PREVIOUS_KEY_SECRET) or None)
    except ValueError as error:
        raise CliError(f"{KEY_SECRET}, {PREVIOUS_KEY_SECRET}: {error}") from None


def object_store(environment: Mapping[str, str]) -> ObjectStore:
    """Returns the object store that the settings name. Raises `CliError`."""
    from adapters.storage import StorageSettings, open_store
    from cli.processes import settings_from_environment

    setting(environment, "ROOTSTOCK_STORAGE_URL")
    own = {name: value for name, value in environment.items() if name.startswith("ROOTSTOCK_STORAGE_")}
    os.environ |= own  # settings are read from there alone
    return open_store(settings_from_environment(StorageSettings))


@dataclass(frozen=True)
class BaseAccess:
    """Where a base model is found."""

    engine_endpoint: str
    """Of its engines, separated by commas; empty if they are not known here."""
    path: Path


@dataclass
class Services:
    """The services that an operator's command calls."""

    environment: Mapping[str, str]
    database: Database
    redis: Redis
    accounts: AccountServices

    @property
    def base_models(self) -> dict[str, BaseAccess]:
        """The service's base models by name, the default one first."""
        from adapters.served_bases import further_bases

        known = self.environment
        endpoint = known.get("ROOTSTOCK_API_ENGINE_ENDPOINT")  # of a cluster, no engine has the other
        endpoint = endpoint or known.get("ROOTSTOCK_ENGINE_ENDPOINT", "")
        name = setting(known, "ROOTSTOCK_ENGINE_BASE_NAME")
        further = {base.name: BaseAccess(base.engine_endpoint, base.path) for base in further_bases(known)}
        return {name: BaseAccess(endpoint, Path(known.get("ROOTSTOCK_ENGINE_BASE", "")))} | further

    @property
    def bases(self) -> Bases:
        from adapters.bases import Bases

        return Bases(*self.base_models)

    def adapters(self) -> AdapterService:
        from adapters.service import AdapterService

        return AdapterService(self.database, self.redis, self.bases)


@asynccontextmanager
async def open_services(environment: Mapping[str, str]) -> AsyncIterator[Services]:
    """Connects to the service's database and Redis for a few calls."""
    from redis.asyncio import Redis

    from db.session import Database
    from tenants.service import account_services

    database = Database(setting(environment, "ROOTSTOCK_DB_URL"))
    redis = Redis.from_url(setting(environment, "ROOTSTOCK_REDIS_URL"))
    try:
        accounts = account_services(database, redis, key_secrets(environment))
        yield Services(environment, database, redis, accounts)
    finally:
        await redis.aclose()
        await database.close()


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turns the services' errors into `CliError`: their messages are written for users."""
    from redis.exceptions import RedisError
    from sqlalchemy.exc import OperationalError, ProgrammingError

    from adapters.errors import AdapterError
    from billing.invoices.errors import InvoiceNotFound
    from db.errors import DatabaseUnavailable
    from db.roles import RoleMissing
    from db.schema import MigrationFailed, SchemaMismatch
    from tenants.errors import TenantError

    try:
        yield
    except (
        TenantError,
        AdapterError,
        InvoiceNotFound,
        SchemaMismatch,
        MigrationFailed,
        RoleMissing,
        ValueError,
    ) as error:
        raise CliError(str(error)) from error
    except (OperationalError, DatabaseUnavailable) as error:
        raise CliError(f"PostgreSQL does not answer: {_first_line(error)}") from error
    except ProgrammingError as error:
        raise CliError(
            f"the database lacks this version's schema, run `rootstock migrate`: {_first_line(error)}"
        ) from error
    except RedisError as error:
        raise CliError(f"Redis does not answer: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]


def silence_logs() -> None:
    """Keeps the services' logs out of a command's output: what matters is raised as an error."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def call(data: Path | None, work: Callable[[Services], Awaitable[T]]) -> T:
    """Runs `work` on the service and returns its result. Raises `CliError`."""

    async def run() -> T:
        async with open_services(environment_of(data)) as services:
            return await work(services)

    silence_logs()
    with plain_errors():
        return asyncio.run(run())


def upgrade_schema(owner_url: str, serving_url: str | None = None) -> str:
    """Migrates a database to this version's schema and grants rights to the serving role, if one is named;
    returns its revision.
    """
    from db import schema

    with plain_errors():
        schema.upgrade(owner_url, serving_url)
        return schema.expected_revision()


def migrate(data: Path | None) -> str:
    environment = environment_of(data)
    return upgrade_schema(
        setting(environment, "ROOTSTOCK_DB_OWNER_URL"), setting(environment, "ROOTSTOCK_DB_URL")
    )


def add_adapters(
    data: Path | None, tenant: str, directories: Mapping[str, Path], drafter: Path | None = None
) -> list[str]:
    """Packs PEFT directories, by adapter name or `base:name`, and activates them; returns the pinned model
    names. `drafter`: the directory of a draft adapter that guesses for them.
    """
    from adapters.errors import InvalidAdapter
    from adapters.model_names import check_new_name
    from cli.packed_adapters import publish_packed

    for name, directory in directories.items():
        try:
            check_new_name(name.rpartition(":")[2])
        except InvalidAdapter as error:
            raise CliError(f"{name!r} is not a valid adapter name: {error.reason}") from None
        except ValueError:
            raise CliError(f"{name!r} is not a valid adapter name: use 1 to 64 of a-z 0-9 . _ -") from None
        if not directory.is_dir():
            raise CliError(f"adapter {name}: there is no directory {directory}")

    async def work(services: Services) -> list[str]:
        owner = await services.accounts.tenants.find_tenant(tenant)
        added = []
        for name, directory in directories.items():
            base, _, adapter = name.rpartition(":")
            base = base or services.bases.default
            model = services.base_models.get(base)
            if model is None:
                raise CliError(f"no base model is called {base!r}: use one of {', '.join(services.bases)}")
            endpoint = model.engine_endpoint or setting(services.environment, "ROOTSTOCK_ENGINE_ENDPOINT")
            digest = await served_base_digest(endpoint)
            refs = pack_adapters(services.environment, digest, {adapter: directory}, model.path)
            packed = [*refs.values()]
            if drafter is not None:
                packed.append(
                    note_drafter(services.environment, digest, refs[adapter].digest, drafter, model.path)
                )
            await publish_packed(services.environment, packed)
            added += await register_adapters(services, owner.id, refs, digest, base)
        return added

    return call(data, work)


async def register_adapters(
    services: Services,
    tenant_id: str,
    refs: Mapping[str, AdapterRef],
    base_digest: str,
    base: str | None = None,
) -> list[str]:
    """Makes packed adapters the active versions of their names on `base` (default: the default base); returns
    the pinned model names.
    """
    from cli.signatures import sign_registered

    adapters, names = services.adapters(), []
    for name, ref in refs.items():
        made = await adapters.register_version(tenant_id, name, ref, base=base, base_digest=base_digest)
        await sign_registered(services, tenant_id, made.adapter_id, made.version)
        names.append(made.name)
    return names


async def served_base_digest(endpoint: str) -> str:
    """Returns the digest of the engine's base model, which adapters are packed for. Raises `CliError`."""
    from routing.endpoints import parse_endpoints
    from routing.replica_set import ReplicaSet

    client = ReplicaSet(parse_endpoints(endpoint), "operator")
    await client.start()
    try:
        async with asyncio.timeout(_ENGINE_ANSWER_S):
            return (await client.wait_ready()).base_digest
    except TimeoutError:
        raise CliError(f"no engine answers at {endpoint}: start it, then repeat the command") from None
    finally:
        await client.close()


def pack_adapters(
    environment: Mapping[str, str],
    base_digest: str,
    directories: Mapping[str, Path],
    base_dir: Path | None = None,
) -> dict[str, AdapterRef]:
    """Packs PEFT directories into the engine's artifact folder, for the base in `base_dir` (default: that of
    the engine's setting). Loads torch. Raises `CliError` naming the
    adapter.
    """
    from adapters.arithmetic_threads import bound_arithmetic_threads
    from adapters.packing import PackingError, pack
    from engine.model.config import load_config

    try:
        bound_arithmetic_threads(environment=environment)
    except ValueError as error:
        raise CliError(str(error)) from error
    config = load_config(base_dir or Path(setting(environment, "ROOTSTOCK_ENGINE_BASE")))
    out_dir = Path(setting(environment, "ROOTSTOCK_ENGINE_ARTIFACTS_DIR"))
    refs = {}
    for name, directory in directories.items():
        try:
            # Exact for every training dtype; the engine converts to the type it computes in.
            refs[name] = pack(directory, config, base_digest, out_dir, dtype="float32")
        except PackingError as error:
            raise CliError(f"adapter {name} cannot be served: {error}") from error
    return refs


def note_drafter(
    environment: Mapping[str, str], base_digest: str, adapter_digest: str, drafter: Path, base: Path
) -> AdapterRef:
    """Packs a draft adapter into the engine's artifact folder, and notes there that it guesses for an
    adapter. Returns what it is loaded by. Raises `CliError`.
    """
    from cli.draft_adapters import pack_drafter
    from engine.lora.draft_adapters import write_note

    artifacts_dir = Path(setting(environment, "ROOTSTOCK_ENGINE_ARTIFACTS_DIR"))
    try:
        found = pack_drafter(drafter, base, base_digest, artifacts_dir)
    except ValueError as error:
        raise CliError(str(error)) from error
    write_note(artifacts_dir, adapter_digest, found)
    return found.ref


def minute(moment: datetime | None, absent: str = "never") -> str:
    """Formats a time for lists, in UTC."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M") if moment else absent
