"""Keeps a cluster's engines running: an actor and a placement group of Ray for each, as many as are needed.

Runs as a child of `rootstock up`. Actors are detached: if this process is killed the engines go on, and the
next controller finds them by name. SIGTERM drains all engines, then ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

import ray
import structlog
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from cli.cluster.engine_host import EngineHost, describe
from cli.cluster.fleet import Drains, fleets
from cli.cluster.settings import RaySettings, engine_environment

log = structlog.get_logger(__name__)

INTERVAL_S = 1.0
CALL_S = 10.0
"""Seconds that Ray has to answer. An actor that is being placed anew takes longer: it is looked at again."""
LOST_S = 15.0
"""Seconds without an answer of the head after which this process ends; its next start looks for the head."""


class EngineActors:
    """The actors of one service's engines. Its methods block for up to `CALL_S` seconds."""

    def __init__(self, settings: RaySettings) -> None:
        self._settings = settings
        self._checked: set[str] = set()
        """The actors whose settings were compared with ours."""

    def running(self) -> set[str]:
        """Returns the names of all actors of this service that exist, wherever they are."""
        listed = ray.util.list_named_actors(all_namespaces=True)
        return {one["name"] for one in listed if one["namespace"] == self._settings.namespace}

    def start(self, name: str, environment: Mapping[str, str]) -> None:
        """Creates an engine's placement group and actor, which Ray places once there is room."""
        settings = self._settings
        bundle = {"CPU": settings.cpus} | ({"GPU": float(settings.gpus)} if settings.gpus else {})
        # One bundle is never divided: a tensor-parallel group is on one host.
        group = placement_group([bundle], strategy="STRICT_PACK", name=self._group(name), lifetime="detached")
        strategy = PlacementGroupSchedulingStrategy(
            placement_group=group, placement_group_bundle_index=0, placement_group_capture_child_tasks=False
        )
        remote: Any = ray.remote(PlacedEngine)
        remote.options(
            name=name,
            namespace=settings.namespace,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            max_task_retries=0,
            num_cpus=settings.cpus,
            num_gpus=settings.gpus,
            scheduling_strategy=strategy,
        ).remote(name, dict(environment))
        self._checked.add(name)
        log.info("engine requested", engine=name)

    def is_of_other_settings(self, name: str, environment: Mapping[str, str]) -> bool:
        """Whether the actor was created with other settings; False while it does not answer."""
        if name in self._checked:
            return False
        try:
            found = ray.get(self._actor(name).description.remote(), timeout=CALL_S)
        except (ray.exceptions.RayError, ValueError):
            return False
        self._checked.add(name)
        return bool(found != describe(environment))

    def stop(self, name: str, drain_s: float) -> None:
        """Drains an engine, then removes its actor and placement group."""
        self._checked.discard(name)
        with contextlib.suppress(ValueError):  # there is none any more
            actor = self._actor(name)
            try:
                ray.get(actor.stop.remote(), timeout=drain_s)
            except ray.exceptions.RayError as error:
                log.warning("an engine did not drain", engine=name, reason=str(error).splitlines()[0])
            ray.kill(actor, no_restart=True)
        with contextlib.suppress(ValueError):
            remove_placement_group(ray.util.get_placement_group(self._group(name)))
        log.info("engine removed", engine=name)

    def _actor(self, name: str) -> Any:
        return ray.get_actor(name, namespace=self._settings.namespace)

    def _group(self, name: str) -> str:
        return f"{self._settings.namespace}-{name}"


class PlacedEngine(EngineHost):
    """An engine on the node where Ray started this actor."""

    def __init__(self, engine_id: str, environment: Mapping[str, str]) -> None:
        super().__init__(engine_id, environment, ray.util.get_node_ip_address())


class Controller:
    """Keeps the engines of all bases until it is stopped."""

    def __init__(self, settings: RaySettings, environment: Mapping[str, str]) -> None:
        self._actors = EngineActors(settings)
        drain_s = float(environment.get("ROOTSTOCK_ENGINE_DRAIN_SECONDS", "30")) + 20
        self._drains = Drains(self._actors, drain_s)
        self._fleets = fleets(settings, environment, self._actors, self._drains)
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Runs until SIGTERM, then drains all engines."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        for fleet in self._fleets:
            await fleet.engines.start()
        try:
            await self._keep_engines()
            names = await asyncio.to_thread(self._actors.running)
            await asyncio.gather(*map(self._drains.begin, names), return_exceptions=True)
        finally:
            for fleet in self._fleets:
                await fleet.engines.close()

    async def _keep_engines(self) -> None:
        while not self._stopping.is_set():
            running = await asyncio.wait_for(asyncio.to_thread(self._actors.running), LOST_S)
            for fleet in self._fleets:
                await fleet.look(running)
            for name in running:
                if not any(fleet.has(name) for fleet in self._fleets):  # of a base that is served no more
                    self._drains.begin(name)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), INTERVAL_S)


def main() -> int:
    """Connects to the head and runs. Returns the exit code."""
    settings, environment = RaySettings(), engine_environment()  # type: ignore[call-arg]
    try:
        ray.init(
            address=settings.address,
            namespace=settings.namespace,
            log_to_driver=False,
            configure_logging=False,
        )
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        print(f"no Ray head answers at {settings.address}: {error}", file=sys.stderr)
        return 1
    try:
        asyncio.run(Controller(settings, environment).run())
    except (TimeoutError, ray.exceptions.RayError) as error:
        log.error("the cluster's head does not answer", reason=str(error))
        # Ray's own end waits for the head, which may not come back.
        os._exit(1)
    ray.shutdown()
    return 0
