"""Builds every settings class from an environment and reports variables that are missing, wrong or unknown.

The classes are built as the processes build them, from `os.environ`: the given environment replaces it for as
long as that takes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings, SettingsError

from adapters.imports.settings import ImportSettings
from adapters.published_artifacts.settings import ArtifactSource
from adapters.published_bases.settings import BaseSource
from adapters.served_bases import FurtherBases
from adapters.sharing.settings import SharingSettings
from adapters.signing.settings import SigningSettings
from adapters.storage.settings import StorageSettings
from admin.settings import ConsoleSettings
from api.batches.settings import BatchSettings
from api.settings import ApiSettings, ConnectionSettings
from billing.invoices.settings import InvoiceSettings
from billing.notifications.settings import NotificationSettings
from billing.payments.settings import StripeSettings
from cli.checks.findings import Finding, Status
from cli.checks.process import Process
from cli.cluster.programs import HOST_DATA
from cli.cluster.settings import HeadSettings, RaySettings
from db.settings import DatabaseSettings, OwnerSettings
from engine.settings import (
    ClusterSettings,
    DeviceSettings,
    EngineSettings,
    PrefillSettings,
    SchedulingSettings,
    moved_settings,
)
from engine.signing.settings import VerificationSettings
from telemetry.disk import DiskSettings
from tenants.retention.settings import RetentionSettings
from tenants.settings import TenantSettings
from worker.settings import JobsSettings, WorkerSettings

S = TypeVar("S", bound=BaseSettings)

PREFIX = "ROOTSTOCK_"
OPERATOR_REDIS_URL = "ROOTSTOCK_REDIS_URL"
_WITHOUT_CLASS = frozenset({OPERATOR_REDIS_URL, "ROOTSTOCK_DATA", "ROOTSTOCK_API_KEY", HOST_DATA})
"""Read by the command line itself, and by clients."""
_REMEDIES = {
    "ROOTSTOCK_TENANTS_KEY_SECRET": "at least 32 characters, the same in every process; "
    "`openssl rand -hex 32` makes one",
}


_API, _WORKER, _JOBS, _ENGINE = ({process} for process in Process)
_WORKERS = _WORKER | _JOBS
USERS: Mapping[type[BaseSettings], set[Process]] = {
    DatabaseSettings: _API | _WORKERS,
    TenantSettings: _API | _JOBS,
    ImportSettings: _API | _JOBS,
    SharingSettings: _API,
    SigningSettings: _JOBS,
    VerificationSettings: _API | _ENGINE,
    RetentionSettings: _API | _WORKERS,
    ApiSettings: _API,
    ConnectionSettings: _API,
    BatchSettings: _API,
    ConsoleSettings: _API,
    StorageSettings: _API | _JOBS,
    NotificationSettings: _API | _WORKERS,
    InvoiceSettings: _API | _WORKERS,
    StripeSettings: _API | _WORKERS,
    WorkerSettings: _WORKERS,
    JobsSettings: _JOBS,
    FurtherBases: _API | _JOBS,
    SchedulingSettings: _ENGINE,
    EngineSettings: _ENGINE,
    DeviceSettings: _ENGINE,
    ClusterSettings: _ENGINE,
    BaseSource: _ENGINE,
    ArtifactSource: _ENGINE,
    PrefillSettings: _ENGINE,
    DiskSettings: _API | _ENGINE,
    HeadSettings: set(),  # `rootstock up --ray` and its controller alone
    RaySettings: set(),
    OwnerSettings: set(),  # `rootstock migrate` alone, which says what it lacks
}
"""Every settings class, and which processes build it."""


@dataclass
class Configuration:
    """The settings that could be built, and the environment they came from."""

    environment: Mapping[str, str]
    built: dict[type[BaseSettings], BaseSettings] = field(default_factory=dict)

    def get(self, kind: type[S]) -> S | None:
        """Returns the settings, or None when they could not be built or no checked process uses them."""
        found = self.built.get(kind)
        assert found is None or isinstance(found, kind)
        return found

    def values(self, field: str, *kinds: type[BaseSettings]) -> dict[str, str]:
        """Returns the value of `field`, defaults included, in those of the classes that were built, by
        variable.
        """
        built = {variable_of(kind, field): getattr(self.built.get(kind), field, None) for kind in kinds}
        return {variable: str(value) for variable, value in built.items() if value is not None}


def variable_of(kind: type[BaseSettings], field: str) -> str:
    """Returns the environment variable of a field."""
    return f"{kind.model_config.get('env_prefix', '')}{field}".upper()


def read_configuration(
    environment: Mapping[str, str], processes: set[Process]
) -> tuple[Configuration, list[Finding]]:
    """Returns the settings of `processes`, and a finding per variable that is missing, wrong, moved or
    unknown.
    """
    configuration = Configuration(environment)
    faults: dict[Finding, None] = {}  # the engine's class builds another one, whose faults would count twice
    kinds = [kind for kind, users in USERS.items() if users & processes]
    with _as_process_environment(environment):
        for kind in kinds:
            try:
                configuration.built[kind] = kind()
            except (ValidationError, SettingsError) as error:
                faults.update(dict.fromkeys(_faults(kind, error)))
    if Process.ENGINE in processes:
        faults.update(dict.fromkeys(_engine_faults(configuration)))
    if not faults:
        faults[Finding("settings", Status.OK, f"complete for {', '.join(sorted(processes))}")] = None
    return configuration, [*faults, *_unknown(environment)]


@contextmanager
def _as_process_environment(environment: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _faults(kind: type[BaseSettings], error: ValidationError | SettingsError) -> Iterator[Finding]:
    described = f"described in {kind.__module__.replace('.', '/')}.py"
    if isinstance(error, SettingsError):  # its message quotes the field's name, and no value
        name = re.search(r'field "(\w+)"', str(error))
        variable = variable_of(kind, name[1] if name else "*")
        yield Finding("settings", Status.FAILED, f"{variable} is not valid JSON: {described}")
        return
    for fault in error.errors(include_input=False, include_url=False):
        variable = variable_of(kind, str(fault["loc"][0]))
        remedy = _REMEDIES.get(variable, described)
        if fault["type"] == "missing" and len(fault["loc"]) == 1:
            yield Finding("settings", Status.MISSING, f"{variable} is not set: {remedy}")
        else:
            place = "".join(f"[{part}]" for part in fault["loc"][1:])
            message = fault["msg"].removeprefix("Value error, ")
            yield Finding("settings", Status.FAILED, f"{variable}{place} is wrong: {message} ({remedy})")


def _engine_faults(configuration: Configuration) -> Iterator[Finding]:
    for old, new in moved_settings(configuration.environment).items():
        yield Finding("settings", Status.FAILED, f"{old} is no longer read: set {new} instead")
    engine = configuration.get(EngineSettings)
    if engine is not None and engine.base is None and not engine.null:
        remedy = "name the base model's directory"
        yield Finding("settings", Status.MISSING, f"ROOTSTOCK_ENGINE_BASE is not set: {remedy}")


def _unknown(environment: Mapping[str, str]) -> Iterator[Finding]:
    known = {variable_of(kind, name) for kind in USERS for name in kind.model_fields}
    known |= _WITHOUT_CLASS | moved_settings(environment).keys()
    for name in sorted(environment):
        if name.upper().startswith(PREFIX) and name.upper() not in known:
            remedy = "check its spelling, or remove it"
            yield Finding("settings", Status.WARNING, f"{name} is not a setting and has no effect: {remedy}")
