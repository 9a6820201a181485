"""Defines the processes of a cluster: a Ray node, as a head or joined to one, and the engines' controller."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cli.client_key import public_keys
from cli.errors import CliError
from cli.supervisor import Program
from engine.registry import RegistryAddress

LOCAL = "local"
"""In place of an address: this machine runs the head."""
HOST_DATA = "ROOTSTOCK_HOST_DATA_DIR"
"""On a host that joined: its own data folder, for the files of the engines that run there."""
_NODE_STOP_S = 15.0
_GCS_RETRY_S = 10


@dataclass(frozen=True)
class RayPlan:
    """How one service uses Ray."""

    address: str
    """HOST:PORT of the head."""
    is_head: bool
    """Whether this machine runs it."""
    token: Path
    """The file with the cluster's token, without which Ray answers no call."""
    secret: Path
    """The file with the engine clients' secret key."""
    replicas_min: int = 1
    """Engines of each base, at least; and at most:"""
    replicas_max: int = 1
    gpus: int = 0
    """GPUs of each engine."""
    node_cpus: int | None = None
    """Cores that this machine's node offers; None: all."""
    fetches: bool = False
    """Whether engines get base and adapters from the object store, not from folders at the same paths."""
    base_digests: Mapping[str, str] = field(default_factory=dict)
    """Of the bases in the object store, by name; none before they are published, and without `fetches`."""
    drafters: Mapping[str, str] = field(default_factory=dict)
    """Notes of their packed draft adapters, alike."""

    def settings(self, redis_url: str) -> dict[str, str]:
        """Returns the settings of this service's processes that differ from those on one machine."""
        registry = self.registry(redis_url)
        return {
            "ROOTSTOCK_WORKER_ENGINE_ENDPOINTS": registry,
            "ROOTSTOCK_ENGINE_ENDPOINT": "",  # each engine gets its own
            "ROOTSTOCK_CLUSTER_CLIENT_KEYS": public_keys(self.secret),
            "ROOTSTOCK_RAY_ADDRESS": self.address,
            "ROOTSTOCK_RAY_REGISTRY": registry,
            "ROOTSTOCK_RAY_REPLICAS_MIN": str(self.replicas_min),
            "ROOTSTOCK_RAY_REPLICAS_MAX": str(self.replicas_max),
            "ROOTSTOCK_RAY_GPUS": str(self.gpus),
            "ROOTSTOCK_ADAPTERS_FETCH": "true" if self.fetches else "",
        }

    def registry(self, redis_url: str, base: str | None = None) -> str:
        """Returns the endpoint that stands for all engines, or for those of one base."""
        return str(RegistryAddress(redis_url, self.secret, base))

    def programs(self, controller: Program, folder: Path) -> list[Program]:
        """Returns the head, if it runs here, and the controller. `folder`: for Ray's own files."""
        own = ray_environment(self.token)
        programs = [dataclasses.replace(controller, env={**controller.env, **own})]
        if self.is_head:
            # Ray's processes get none of the service's secrets.
            env = {name: value for name, value in os.environ.items() if not name.startswith("ROOTSTOCK_")}
            options = head_options(self.address, self.node_cpus)
            log = controller.log.with_name("ray.log")
            programs.insert(0, node_program("ray", options, {**env, **own}, folder, log))
        return programs


def require_ray() -> None:
    """Raises `CliError` where Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise CliError("Ray is not installed: install rootstock[ray], with the same version on every host")


def ray_environment(token: Path) -> dict[str, str]:
    """Returns Ray's own settings, which all its processes on all hosts need alike."""
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
        # A killed node is noticed within three seconds, not within half a minute.
        "RAY_health_check_initial_delay_ms": "1000",
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_timeout_ms": "2000",
        "RAY_health_check_failure_threshold": "3",
        # Nodes of a lost head end themselves, to join the next one.
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(_GCS_RETRY_S),
    }


def node_program(
    name: str, options: tuple[str, ...], env: Mapping[str, str], folder: Path, log: Path
) -> Program:
    """Returns a Ray node, in the foreground. `folder`: for Ray's own files, on a short path (its sockets)."""
    quiet = ("--disable-usage-stats", "--include-log-monitor", "false", "--log-color", "false")
    small = ("--object-store-memory", str(80 << 20))  # engines pass nothing through it
    command = (sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *options, *quiet, *small)
    argv = (*command, "--temp-dir", str(folder)) if "--head" in options else command
    return Program(name=name, argv=argv, env=env, log=log, grace_s=_NODE_STOP_S)


def head_options(address: str, cpus: int | None) -> tuple[str, ...]:
    """Returns the options of a head that listens on the address's port, without a dashboard."""
    _, _, port = address.rpartition(":")
    cores = () if cpus is None else ("--num-cpus", str(cpus))
    return ("--head", "--port", port, "--include-dashboard", "false", *cores)


def join_options(address: str, cpus: int | None) -> tuple[str, ...]:
    """Returns the options of a node that joins the head at the address."""
    return ("--address", address, *(() if cpus is None else ("--num-cpus", str(cpus))))
