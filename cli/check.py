"""Runs `rootstock check`: reports what a deployment lacks before it serves, and which features are off.

Orders the checks of `cli.checks` and prints them as a table or JSON; the exit status is 1 when anything
required is missing or failed.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote

from adapters.served_bases import FurtherBases
from adapters.storage.settings import StorageSettings
from api.settings import ApiSettings
from cli.checks.configuration import PREFIX, Configuration, read_configuration, variable_of
from cli.checks.features import check_features
from cli.checks.findings import Finding, Status
from cli.checks.process import Process
from cli.checks.serving import check_agreement, check_base, check_disks, check_engines, redis_urls
from cli.checks.stores import check_postgres, check_redis, check_storage
from cli.service_access import served_settings, silence_logs
from db.settings import DatabaseSettings
from engine.registry import RegistryAddress
from engine.settings import EngineSettings
from telemetry.disk import DiskSettings
from telemetry.tasks import gather_all
from worker.settings import JobsSettings, WorkerSettings

_SECRET_ENDINGS = ("_SECRET", "_KEY", "_PASSWORD")
_SHORTEST_SECRET = 4
"""Shorter values occur inside ordinary words."""
_NARROWEST_DETAIL = 40


def check(data: Path | None, processes: set[Process], *, as_json: bool) -> int:
    """Runs all checks and prints them; returns the command's exit status."""
    silence_logs()
    environment = _environment(data)
    secrets = _secrets(environment)
    findings = [
        Finding(found.name, found.status, _without(secrets, found.detail))
        for found in asyncio.run(find(environment, processes))
    ]
    print(_document(findings) if as_json else _table(findings))
    return 1 if any(finding.is_blocking for finding in findings) else 0


async def find(environment: Mapping[str, str], processes: set[Process]) -> list[Finding]:
    """Returns the findings on a deployment with these settings, required parts first."""
    configuration, found = read_configuration(environment, processes)
    found += check_agreement(configuration)
    found += await _networked(configuration)
    found += _local(configuration)
    found += check_features(configuration)
    return found


def _environment(data: Path | None) -> dict[str, str]:
    """Returns the settings of a running `up`, or of this process. With `data`, the shell's ROOTSTOCK_*
    settings do not count: the directory's are complete.
    """
    if data is None:
        return dict(os.environ)
    others = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    return others | dict(served_settings(data))


async def _networked(configuration: Configuration) -> list[Finding]:
    """Runs the checks that wait for servers, all at once."""
    checks: list[Awaitable[list[Finding]]] = []
    if (database := configuration.get(DatabaseSettings)) is not None:
        checks.append(check_postgres(database))
    variables = {url: variable for variable, url in reversed(redis_urls(configuration).items())}
    checks += [check_redis(variable, url) for url, variable in reversed(variables.items())]
    if (storage := configuration.get(StorageSettings)) is not None:
        checks.append(check_storage(storage))
    checks += [_engines(endpoints, base) for base, endpoints in _pools(configuration).items()]
    return [finding for group in await gather_all(*checks) for finding in group]


async def _engines(named: list[str], base_name: str | None) -> list[Finding]:
    from routing.endpoints import engines_at, registry_in

    if registry_in(named) is None:
        return await check_engines(named, base_name)
    found = await engines_at(named)
    if not found:
        detail = "the registry in Redis lists none: start `rootstock up --ray`, or look at its log"
        return [Finding("engines", Status.WARNING, detail)]
    return await check_engines(list(found), base_name)


def _pools(configuration: Configuration) -> dict[str | None, list[str]]:
    """Returns the endpoints of each base's engines, by base; without API and jobs, the base is not known."""
    name = next(iter(configuration.values("base_name", ApiSettings, JobsSettings).values()), None)
    settings = configuration.get(FurtherBases)
    further = {} if settings is None else {base.name: list(base.engines) for base in settings.further}
    others = {endpoint for endpoints in further.values() for endpoint in endpoints}
    first = [one for one in _engine_endpoints(configuration) if one not in others]
    pools: dict[str | None, list[str]] = {name: first}
    pools.update(further)
    return pools


def _engine_endpoints(configuration: Configuration) -> list[str]:
    """Returns the endpoints at which API and workers reach engines; an engine's own setting is the address it
    listens on.
    """
    found: list[str] = []
    if (api := configuration.get(ApiSettings)) is not None:
        found += api.engine_endpoints
    for settings in (configuration.get(JobsSettings), configuration.get(WorkerSettings)):
        found += settings.engines if settings is not None else ()
    registries = [RegistryAddress.parse(one) for one in found]
    if any(one is not None and one.base for one in registries):  # the worker's has the engines of all bases
        pairs = zip(found, registries, strict=True)
        found = [endpoint for endpoint, one in pairs if one is None or one.base]
    return [*dict.fromkeys(found)]


def _local(configuration: Configuration) -> Iterator[Finding]:
    """Runs the checks of this machine's files."""
    engine = configuration.get(EngineSettings)
    bases = configuration.values("base_path", ApiSettings, JobsSettings)
    bases |= configuration.values("base", EngineSettings)
    if (further := configuration.get(FurtherBases)) is not None:
        variable = variable_of(FurtherBases, "further")
        bases |= {f"{variable} {base.name}": str(base.path) for base in further.further}
    variables: dict[str, list[str]] = {}
    for variable, directory in bases.items():
        variables.setdefault(directory, []).append(variable)
    tokenizer_only = [variable_of(ApiSettings, "base_path")]
    for directory, named in variables.items():
        yield check_base(", ".join(named), Path(directory), needs_weights=named != tokenizer_only)
    if (disk := configuration.get(DiskSettings)) is not None:
        yield from check_disks(configuration.get(StorageSettings), engine, disk.min_free_bytes)


def _secrets(environment: Mapping[str, str]) -> list[str]:
    """Returns the values that no output may contain: secret settings, and passwords in URLs."""
    found = set()
    for name, value in environment.items():
        if not name.startswith(PREFIX):
            continue
        if name.endswith(_SECRET_ENDINGS):
            found.add(value)
        password = value.partition("://")[2].rpartition("@")[0].partition(":")[2]
        found |= {password, unquote(password)}
    return sorted((one for one in found if len(one) >= _SHORTEST_SECRET), key=len, reverse=True)


def _without(secrets: Sequence[str], text: str) -> str:
    """Masks secrets in `text`: servers and drivers may quote the settings they got."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def _document(findings: Sequence[Finding]) -> str:
    checks = [{"name": one.name, "status": one.status, "detail": one.detail} for one in findings]
    return json.dumps({"ok": not any(one.is_blocking for one in findings), "checks": checks}, indent=2)


def _table(findings: Sequence[Finding]) -> str:
    """Formats status, name and detail in columns, then a summary; wraps details to the terminal's width."""
    first = max(len(status) for status in Status)
    second = max(len(finding.name) for finding in findings)
    margin = first + second + 4
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    lines = []
    for one in findings:
        head, wide = f"{one.status:<{first}}  {one.name:<{second}}  ", max(width - margin, _NARROWEST_DETAIL)
        detail = textwrap.wrap(one.detail, wide, break_long_words=False, break_on_hyphens=False)
        lines.append(head + f"\n{' ' * margin}".join(detail))
    return "\n".join([*lines, "", _summary(findings)])


def _summary(findings: Sequence[Finding]) -> str:
    counts = Counter(finding.status for finding in findings)
    counted = ", ".join(f"{counts[status]} {status}" for status in Status if counts[status])
    if any(finding.is_blocking for finding in findings):
        return f"not ready to serve: {counted}"
    return f"ready to serve: {counted}"
