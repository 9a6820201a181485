"""Decides how many engines one base model of a cluster needs, starts those and drains others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import structlog

from cli.cluster.loads import LoadReader
from cli.cluster.scaling import Autoscaler, ScalingRules
from cli.cluster.settings import DRAFTING, RaySettings, engine_prefix
from engine.gauges import EngineStats
from engine.registry import RegistryAddress
from routing.endpoints import parse_endpoints
from routing.replica_set import ReplicaSet

log = structlog.get_logger(__name__)


class Actors(Protocol):
    """What places engines. All methods block."""

    def start(self, name: str, environment: Mapping[str, str]) -> None: ...

    def is_of_other_settings(self, name: str, environment: Mapping[str, str]) -> bool: ...

    def stop(self, name: str, drain_s: float) -> None: ...


class Drains:
    """Engines that drain, until they are gone. Belongs to one event loop."""

    def __init__(self, actors: Actors, drain_s: float) -> None:
        """`drain_s`: seconds that one may take."""
        self._actors = actors
        self._drain_s = drain_s
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def names(self) -> set[str]:
        """Those that are not gone yet."""
        return {name for name, task in self._tasks.items() if not task.done()}

    def begin(self, name: str) -> asyncio.Task[None]:
        """Drains and removes an engine. Returns the task that ends when it is gone."""
        if name not in self.names:
            work = asyncio.to_thread(self._actors.stop, name, self._drain_s)
            self._tasks[name] = asyncio.create_task(work, name=f"drain {name}")
        return self._tasks[name]


class Fleet:
    """Starts and drains the engines of one base."""

    def __init__(
        self,
        prefix: str,
        environment: Mapping[str, str],
        engines: ReplicaSet,
        actors: Actors,
        rules: ScalingRules,
        drains: Drains,
    ) -> None:
        """`prefix`: its engines are called PREFIX-NUMBER; `environment`: their settings; `engines`: the
        connections to them.
        """
        self.engines = engines
        self._prefix = prefix
        self._environment = environment
        self._actors = actors
        self._rules = rules
        self._drains = drains
        self._reader = LoadReader()
        self._scaler: Autoscaler | None = None

    def has(self, name: str) -> bool:
        """Returns whether an engine of this name is, or was, one of its own."""
        return name.rpartition("-")[0] == self._prefix

    async def look(self, running: set[str]) -> None:
        """Compares what runs with what the load calls for, and starts or drains engines. `running`: the names
        of all actors of the service.
        """
        own = {name for name in running if self.has(name)}
        if self._scaler is None:  # those that a former controller started stay until the load says otherwise
            self._scaler = Autoscaler(self._rules, len(own))
        await self._approach(self._decide(self._scaler), own)

    def _decide(self, scaler: Autoscaler) -> int:
        before = scaler.wanted
        wanted = scaler.decide(self._reader.read(self._serving()), time.monotonic())
        if wanted != before:
            log.info(
                "cluster is resized", group=self._prefix, engines=wanted, before=before, reason=scaler.reason
            )
        return wanted

    def _serving(self) -> list[EngineStats]:
        return [client.stats for client in self.engines.clients if client.ready and client.stats]

    async def _approach(self, wanted: int, running: set[str]) -> None:
        """Starts the engines that are missing, and drains those beyond and those of other settings."""
        draining = self._drains.names
        names = [f"{self._prefix}-{number}" for number in range(wanted)]
        for name in names:
            if name not in running and name not in draining:
                await asyncio.to_thread(self._actors.start, name, self._environment)
        for name in sorted(running - draining):
            if name not in names or await asyncio.to_thread(
                self._actors.is_of_other_settings, name, self._environment
            ):
                self._drains.begin(name)


def fleets(
    settings: RaySettings, environment: Mapping[str, str], actors: Actors, drains: Drains
) -> list[Fleet]:
    """Returns those of all bases, the first one's first. `environment`: the settings of its engines."""
    rules = ScalingRules(settings.replicas_min, settings.replicas_max)
    first = environment.get("ROOTSTOCK_ENGINE_BASE_NAME", "")
    own = {first: dict(environment)}
    shared = {name: value for name, value in environment.items() if name not in DRAFTING}
    own |= {base.name: {**shared, **base.environment()} for base in settings.further}
    return [
        Fleet(
            engine_prefix(base, first),
            its,
            ReplicaSet(_registered(settings, base if len(own) > 1 else None), "controller"),
            actors,
            rules,
            drains,
        )
        for base, its in own.items()
    ]


def _registered(settings: RaySettings, base: str | None) -> tuple[str, ...]:
    """Returns where the engines of a base are found, or of the only one."""
    registry = RegistryAddress.parse(settings.registry)
    if registry is None or base is None:
        return parse_endpoints(settings.registry)
    return (str(replace(registry, base=base)),)
