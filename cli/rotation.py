"""Rotates the secrets of a service, for `rootstock rotate`: the steps, and what is still to be done."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.datadir import DataDir
from cli.errors import CliError
from cli.service_access import KEY_SECRET, PREVIOUS_KEY_SECRET, Services, key_secrets

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenants.rotation.resealing import Resealed
    from tenants.rotation.service import RotationReport, SecretRotation

SECRET = "key-secret"  # noqa: S105  its name
GUIDE = f"""To rotate the key secret of processes that get it from their environment:
1. Make the new one: `openssl rand -hex 32`. Set it as {PREVIOUS_KEY_SECRET} of all API processes,
   workers with jobs and operator's commands, and restart them one by one. With one API process, skip this
   step.
2. Exchange both: the new one is {KEY_SECRET}, the old one {PREVIOUS_KEY_SECRET}. Restart again.
3. `rootstock rotate reseal`, then `rootstock rotate status` until nothing waits for the old secret.
4. `rootstock rotate finish`, remove {PREVIOUS_KEY_SECRET}, and restart again."""


def rotation_of(services: Services) -> SecretRotation:
    from billing.request_metadata.sealed_columns import SEALED as METADATA
    from conversations.sealed_columns import SEALED as STATE
    from tenants.rotation.sealed_columns import SEALED as FACTORS
    from tenants.rotation.service import SecretRotation

    secrets = key_secrets(services.environment)
    return SecretRotation(services.database, secrets, (*FACTORS, *STATE, *METADATA))


async def begin_in(services: Services, data: Path) -> None:
    """Makes a new key secret in a data directory, for the next start of `up`. Raises `CliError`."""
    directory = DataDir(data)
    if directory.previous_key_secret() is not None:
        raise CliError(
            f"a rotation has begun in {data}: end it with `rootstock rotate finish --data {data}` first"
        )
    if directory.secret("key_secret") != services.environment[KEY_SECRET]:
        raise CliError(
            f"{KEY_SECRET} is set where `rootstock up` was started, so it does not use the secret in {data}: "
            "rotate it there (`rootstock rotate key-secret` without --data prints the steps)"
        )
    await rotation_of(services).record("rotation_begun", SECRET)
    directory.begin_key_rotation()


async def reseal(services: Services, progress: Callable[[str, int], None], batch_size: int) -> list[Resealed]:
    """Reseals all rows under the current secret. Raises `CliError` if the service has only one secret."""
    rotation = rotation_of(services)
    _require_two(services)
    results = await rotation.resealer.run(progress, batch_size=batch_size)
    details = {
        "num_resealed": sum(result.num_resealed for result in results),
        "num_unreadable": sum(result.num_unreadable for result in results),
    }
    await rotation.record("resealed", SECRET, details)
    return results


async def finish(services: Services, data: Path | None, *, loses: bool) -> int:
    """Ends the rotation; returns how many credentials and values are lost with the old secret.

    Raises `CliError` if there are any, unless `loses`; and while a worker has yet to store what was sealed
    under the old secret.
    """
    from adapters.imports.repository import imports_behind
    from billing.request_metadata.sealed_columns import is_stream_behind

    _require_two(services)
    rotation = rotation_of(services)
    report = await rotation.report()
    if report.num_waiting and not loses:
        raise CliError(
            f"{report.num_waiting} credentials and values would be lost with the old secret (`rootstock "
            "rotate status` lists them): run `rootstock rotate reseal`, wait for keys to be used, replace "
            "those that are not, or give them up with --anyway"
        )
    secrets = key_secrets(services.environment)
    importing = await imports_behind(services.database, secrets)
    if importing and not loses:
        raise CliError(
            f"{len(importing)} imports of adapters hold credentials that are sealed under the old secret "
            f"({', '.join(importing[:3])}): wait until they have ended, or give them up with --anyway"
        )
    if await is_stream_behind(services.redis, secrets):
        raise CliError(
            "Redis has metadata of requests that is sealed under the old secret: let a worker store it, then "
            "reseal again"
        )
    num_lost = report.num_waiting + len(importing)
    await rotation.record("rotated", SECRET, {"num_lost": num_lost})
    if data is not None:
        DataDir(data).end_key_rotation()
    return num_lost


def _require_two(services: Services) -> None:
    if key_secrets(services.environment).other is None:
        raise CliError(
            f"the service has one key secret: nothing is being rotated. With {PREVIOUS_KEY_SECRET}, or after "
            "`rootstock rotate key-secret --data DIR` and a restart, it has two"
        )


def rows_of(report: RotationReport) -> list[tuple[str, ...]]:
    """Returns the lines of the report's table."""
    hashed = [
        (use.what, str(use.num_current), str(use.num_other), str(use.num_unknown)) for use in report.hashed
    ]
    return [*hashed, *((what, "", str(num), "") for what, num in report.sealed.items())]


def verdict(report: RotationReport) -> str:
    if not report.is_rotating:
        return "The service has one key secret. `rootstock rotate key-secret` begins a rotation."
    if report.num_waiting:
        return (
            f"{report.num_waiting} credentials and values need the old secret, or may need it. `rootstock "
            "rotate reseal` reseals values; keys and tokens change at their next use."
        )
    return "Nothing needs the old secret: `rootstock rotate finish` ends the rotation."


def as_json(report: RotationReport) -> dict[str, Any]:
    return {
        "rotating": report.is_rotating,
        "waiting": report.num_waiting,
        "hashed": [asdict(use) for use in report.hashed],
        "sealed_under_another": report.sealed,
        "keys_not_used": [
            {"tenant": tenant, "id": key_id, "prefix": prefix} for tenant, key_id, prefix in report.keys
        ],
    }
