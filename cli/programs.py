"""Defines the processes of `rootstock up`: their command lines, and their settings as environment variables.

This module alone knows every package's settings prefix. `cli.supervisor` starts and watches the processes.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from cli.cluster.programs import RayPlan
from cli.cluster.settings import engine_prefix
from cli.datadir import DataDir
from cli.local.server import socket_directory
from cli.servers import OWNER_URL
from cli.signing_key import FILE_NAME, KEY_FILE, PUBLIC_KEYS, make_key
from cli.supervisor import Program
from db.tasks import JOBS_QUEUE, QUEUE
from engine.stop_reason import NAME as STOP_REASON

CHECKOUT = Path(__file__).resolve().parent.parent
"""The folder that holds all packages: a checkout, or an environment's site-packages."""
_ENGINE_DRAIN_S = 20.0
_ENGINE_METRICS = "ROOTSTOCK_ENGINE_METRICS_ENDPOINT"
"""The first engine's; those after it take the ports after its own."""
_SPECULATION = "ROOTSTOCK_ENGINE_SPECULATION"
_JOBS_NICE = 10
_RAY_SOCKET = "session_2026-01-01_00-00-00_000000_0000000/sockets/plasma_store"
"""As long as the longest path below Ray's folder: a socket's path is bounded."""


@dataclass(frozen=True)
class LocalBase:
    """A base model that is served from this machine's disk."""

    name: str
    path: Path
    quantization: str
    drafter: Path | None = None
    """Folder of its draft adapter, if it has one."""

    def drafting(self, note: str = "") -> dict[str, str]:
        """Returns settings of its engines: with a draft adapter, they verify what that guesses. `note`: of
        the packed one, for engines that fetch it.
        """
        if self.drafter is None:
            return {}
        name, value = ("PACKED_DRAFTER", note) if note else ("DRAFTER", str(self.drafter))
        return {_SPECULATION: os.environ.get(_SPECULATION, "true"), f"ROOTSTOCK_ENGINE_{name}": value}


@dataclass(frozen=True)
class Service:
    """The configuration of one `up`: base models, databases and payment settings."""

    data: DataDir
    bases: Sequence[LocalBase]
    """The default one first."""
    redis_url: str
    db_url: str = ""
    """URL of the role that serves."""
    db_owner_url: str = ""
    """URL of the role that migrates."""
    tensor_parallel: int = 1
    is_demo: bool = False
    payments: Mapping[str, str] = field(default_factory=dict)
    """Settings of the demo's payment provider, if any."""
    replicas: int = 1
    """Engines of each base that take requests."""
    prefill_replicas: int = 0
    """Engines that compute long prompts for them; for one base."""
    api_processes: int = 1
    ray: RayPlan | None = None
    """Where engines run on a Ray cluster."""
    gpus: Sequence[str] = ()
    """Each engine's GPUs, as CUDA_VISIBLE_DEVICES lists them; empty: every engine chooses itself."""

    @property
    def base_name(self) -> str:
        """The default base."""
        return self.bases[0].name

    @property
    def num_serving(self) -> int:
        """Engines of all bases that take requests."""
        return self.replicas * len(self.bases)

    def engines_of(self, base: LocalBase) -> tuple[str, ...]:
        """Returns the endpoints of a base's engines, which are numbered base by base."""
        first = self.bases.index(base)
        if self.ray is not None:
            return self.serving_endpoints[first : first + 1]
        return self.serving_endpoints[first * self.replicas : (first + 1) * self.replicas]

    @property
    def serving_endpoints(self) -> tuple[str, ...]:
        """Returns the sockets of the engines that take requests: Unix sockets that only this account reaches,
        because every client of an engine's socket can use the engine.
        """
        if self.ray is not None:  # which engines there are, a registry tells
            named = [base.name for base in self.bases] if len(self.bases) > 1 else [None]
            return tuple(self.ray.registry(self.redis_url, name) for name in named)
        names = ("engine", *(f"engine-{number}" for number in range(1, self.num_serving)))
        return tuple(self._socket(name, "zmq.sock") for name in names)

    @property
    def engine_endpoints(self) -> tuple[str, ...]:
        """Returns the sockets of all engines, in the order of `engines`."""
        return (*self.serving_endpoints, *self._prefill_endpoints)

    @property
    def _prefill_endpoints(self) -> list[str]:
        return [self._socket(name, "zmq.sock") for name in self._prefill_names]

    @property
    def _prefill_names(self) -> list[str]:
        return [f"prefill-{number}" for number in range(self.prefill_replicas)]

    def _socket(self, name: str, file: str) -> str:
        return f"ipc://{socket_directory(self.data.path, name, file, None) / file}"

    @property
    def engine_states(self) -> list[Path]:
        """Returns the folders of the engines' own files."""
        settings = self.environment()
        folder = Path(settings["ROOTSTOCK_ENGINE_DATA_DIR"]) / "engine"
        if self.ray is not None:
            prefixes = [engine_prefix(base.name, self.base_name) for base in self.bases]
            numbers = range(self.ray.replicas_max)
            return [folder / f"{prefix}-{number}" for prefix in prefixes for number in numbers]
        serving = [self._engine_id(settings, number) for number in range(self.num_serving)]
        return [folder / name for name in (*serving, *self._prefill_names)]

    def _engine_id(self, settings: Mapping[str, str], number: int) -> str:
        if self.num_serving == 1:
            return settings.get("ROOTSTOCK_ENGINE_ENGINE_ID", "engine-0")
        return f"engine-{number}"

    def _previous_key_secret(self) -> dict[str, str]:
        previous = self.data.previous_key_secret()
        return {} if previous is None else {"ROOTSTOCK_TENANTS_PREVIOUS_KEY_SECRET": previous}

    def _signing(self) -> dict[str, str]:
        """Returns the settings of the key that adapters are signed with, which is made if there is none."""
        file = Path(os.environ.get(KEY_FILE) or self.data.path / FILE_NAME)
        return {KEY_FILE: str(file), PUBLIC_KEYS: make_key(file).setting}

    def environment(self) -> dict[str, str]:
        """Returns the settings of all processes and of the operator's commands; the shell's settings take
        precedence.
        """
        first, *further = self.bases
        endpoints, of_first = self.serving_endpoints, self.engines_of(first)
        settings = {
            "ROOTSTOCK_DB_URL": self.db_url,
            OWNER_URL: self.db_owner_url,
            "ROOTSTOCK_REDIS_URL": self.redis_url,
            "ROOTSTOCK_TENANTS_KEY_SECRET": self.data.secret("key_secret"),
            **self._previous_key_secret(),
            **self._signing(),
            "ROOTSTOCK_API_REDIS_URL": self.redis_url,
            "ROOTSTOCK_API_BASE_PATH": str(first.path),
            "ROOTSTOCK_API_BASE_NAME": first.name,
            "ROOTSTOCK_API_ENGINE_ENDPOINT": ",".join((*of_first, *self._prefill_endpoints)),
            "ROOTSTOCK_BASES_FURTHER": self._further(further),
            "ROOTSTOCK_WORKER_REDIS_URL": self.redis_url,
            "ROOTSTOCK_WORKER_ENGINE_ENDPOINTS": ",".join(endpoints),
            "ROOTSTOCK_JOBS_BASE_PATH": str(first.path),
            "ROOTSTOCK_JOBS_BASE_NAME": first.name,
            "ROOTSTOCK_JOBS_ENGINE_ENDPOINT": ",".join(of_first),
            "ROOTSTOCK_JOBS_ARTIFACTS_DIR": str(self.data.artifacts),
            "ROOTSTOCK_STORAGE_URL": f"file://{quote(str(self.data.objects))}",
            "ROOTSTOCK_ENGINE_BASE": str(first.path),
            "ROOTSTOCK_ENGINE_BASE_NAME": first.name,
            "ROOTSTOCK_DEVICE_QUANTIZATION": first.quantization,
            **(first.drafting() if len(self.bases) == 1 and self.ray is None else {}),
            "ROOTSTOCK_DEVICE_TENSOR_PARALLEL": str(self.tensor_parallel),
            "ROOTSTOCK_ENGINE_ENDPOINT": endpoints[0],
            "ROOTSTOCK_ENGINE_REDIS_URL": self.redis_url,
            "ROOTSTOCK_ENGINE_DATA_DIR": str(self.data.path),
            "ROOTSTOCK_ENGINE_ARTIFACTS_DIR": str(self.data.artifacts),
            "ROOTSTOCK_ENGINE_DRAIN_SECONDS": f"{_ENGINE_DRAIN_S:g}",
            # The demo can be tried without an authenticator app; other services require a second factor.
            "ROOTSTOCK_CONSOLE_OPERATORS_SECOND_FACTOR": "false" if self.is_demo else "",
            **self.payments,
            **self._on_ray(further),
        }
        return {name: value for name, value in settings.items() if value and name not in os.environ} | {
            name: value for name, value in os.environ.items() if name.startswith("ROOTSTOCK_")
        }

    def _further(self, bases: Sequence[LocalBase]) -> str:
        """Returns the setting of the bases beside the first; empty without any."""
        listed = [
            {"name": base.name, "path": str(base.path), "engine_endpoint": ",".join(self.engines_of(base))}
            for base in bases
        ]
        return json.dumps(listed) if listed else ""

    def _on_ray(self, further: Sequence[LocalBase]) -> dict[str, str]:
        if self.ray is None:
            return {}
        digests, notes = self.ray.base_digests, self.ray.drafters
        operators = {_SPECULATION: os.environ[_SPECULATION]} if _SPECULATION in os.environ else {}
        listed = [
            {"name": base.name, "path": str(base.path), "quantization": base.quantization}
            | {"digest": digests.get(base.name, "")}
            | {"drafting": operators | base.drafting(notes.get(base.name, ""))}
            for base in further
        ]
        return {
            **self.ray.settings(self.redis_url),
            **self.bases[0].drafting(notes.get(self.base_name, "")),
            "ROOTSTOCK_BASE_DIGEST": digests.get(self.base_name, ""),
            "ROOTSTOCK_RAY_FURTHER": json.dumps(listed) if listed else "",
        }

    def engines(self) -> list[Program]:
        """Returns the engines: `engine`, or `engine-0`, `engine-1`... if there are several; then those that
        compute prompts, `prefill-0`... With Ray, what places them.
        """
        if self.ray is not None:
            controller = self._program("engine-controller", "place-engines", grace_s=_ENGINE_DRAIN_S + 30)
            return self.ray.programs(controller, socket_directory(self.data.path, "ray", _RAY_SOCKET, None))
        serving = [self._serving_engine(number) for number in range(self.num_serving)]
        return [*serving, *(self._prefill_engine(number) for number in range(self.prefill_replicas))]

    def _serving_engine(self, number: int) -> Program:
        base, own = self.bases[number // self.replicas], {}
        if len(self.bases) > 1:
            own["ROOTSTOCK_ENGINE_BASE"] = str(base.path)
            own["ROOTSTOCK_ENGINE_BASE_NAME"] = base.name
            own["ROOTSTOCK_DEVICE_QUANTIZATION"] = base.quantization
            own |= base.drafting()
        if self.num_serving > 1:
            own["ROOTSTOCK_ENGINE_ENGINE_ID"] = f"engine-{number}"
            own["ROOTSTOCK_ENGINE_ENDPOINT"] = self.serving_endpoints[number]
        if self.prefill_replicas:
            sources = [self._socket(name, "prompts.sock") for name in self._prefill_names]
            own["ROOTSTOCK_PREFILL_SOURCES"] = ",".join(sources)
        return self._engine("engine" if self.num_serving == 1 else f"engine-{number}", number, own)

    def _prefill_engine(self, number: int) -> Program:
        name, place = self._prefill_names[number], self.num_serving + number
        own = {
            "ROOTSTOCK_ENGINE_ENGINE_ID": name,
            "ROOTSTOCK_ENGINE_ENDPOINT": self.engine_endpoints[place],
            "ROOTSTOCK_PREFILL_ENDPOINT": self._socket(name, "prompts.sock"),
        }
        return self._engine(name, place, own)

    def _engine(self, name: str, place: int, own: dict[str, str]) -> Program:
        """Returns the engine at a place among all, with settings of its `own`."""
        program = self._program(name, "serve-engine", grace_s=_ENGINE_DRAIN_S + 15)
        metrics = os.environ.get(_ENGINE_METRICS, "")
        host, _, port = metrics.rpartition(":")
        if place and port.isdigit() and int(port):
            own[_ENGINE_METRICS] = f"{host}:{int(port) + place}"
        if self.gpus:
            own["CUDA_VISIBLE_DEVICES"] = self.gpus[place]
        reason = self.engine_states[place] / STOP_REASON
        return dataclasses.replace(program, env={**program.env, **own}, reason=reason)

    def apis(self, listener_fd: int, own_fds: Sequence[int] = ()) -> list[Program]:
        """Returns the API processes, which accept from one socket: `api`, or `api-0`, `api-1`... if there are
        several. `own_fds`: a second socket for each of several.
        """
        if self.api_processes == 1:
            return [self._program("api", "serve-api", grace_s=30, pass_fds=(listener_fd,))]
        return [
            self._program(f"api-{number}", "serve-api", grace_s=30, pass_fds=(listener_fd, own_fds[number]))
            for number in range(self.api_processes)
        ]

    def worker(self) -> Program:
        """Returns the worker of short tasks: metering, schedule, relay."""
        return self._program("worker", "work", "--queues", QUEUE, grace_s=30)

    def jobs(self) -> Program:
        """Returns the worker of adapter jobs (inspection, packing, calibration), at a lower CPU priority."""
        nice = os.environ.get("ROOTSTOCK_WORKER_NICE", str(_JOBS_NICE))
        options = ("--queues", JOBS_QUEUE, "--no-beat", "--nice", nice)
        return self._program("jobs", "work", *options, grace_s=30)

    def _program(self, name: str, *command: str, grace_s: float, pass_fds: tuple[int, ...] = ()) -> Program:
        # One arithmetic thread unless the operator sets more: more threads only slow small matrices down.
        environment = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **os.environ, **self.environment()}
        environment.pop(OWNER_URL, None)  # processes that serve must not have the owner's rights
        if pass_fds:
            names = ("ROOTSTOCK_API_LISTEN_FD", "ROOTSTOCK_API_OWN_FD")
            environment |= {name: str(fd) for name, fd in zip(names, pass_fds, strict=False)}
        return Program(
            name=name,
            argv=(sys.executable, "-m", "cli.main", *command),
            env=environment,
            log=self.data.logs / f"{name}.log",
            grace_s=grace_s,
            pass_fds=pass_fds,
            cwd=CHECKOUT,
        )
