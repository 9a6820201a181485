"""Defines the processes of `rootstock up`: their command lines, and their settings as environment variables.

This module alone knows every package's settings prefix. `cli.supervisor` starts and watches the processes.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from cli.datadir import DataDir
from cli.local.server import socket_directory
from cli.servers import OWNER_URL
from cli.supervisor import Program
from db.tasks import JOBS_QUEUE, QUEUE
from engine.stop_reason import NAME as STOP_REASON

CHECKOUT = Path(__file__).resolve().parent.parent
"""The folder that holds all packages: a checkout, or an environment's site-packages."""
_ENGINE_DRAIN_S = 20.0
_JOBS_NICE = 10


@dataclass(frozen=True)
class Service:
    """The configuration of one `up`: base model, databases and payment settings."""

    data: DataDir
    base: Path
    base_name: str
    quantization: str
    redis_url: str
    db_url: str = ""
    """URL of the role that serves."""
    db_owner_url: str = ""
    """URL of the role that migrates."""
    tensor_parallel: int = 1
    is_demo: bool = False
    payments: Mapping[str, str] = field(default_factory=dict)
    """Settings of the demo's payment provider, if any."""

    @property
    def engine_endpoint(self) -> str:
        """Returns a Unix socket that only this account reaches: every client of the socket can use the
        engine.
        """
        return f"ipc://{socket_directory(self.data.path, 'engine', 'zmq.sock', None) / 'zmq.sock'}"

    @property
    def engine_state(self) -> Path:
        """Returns the folder of the engine's own files."""
        settings = self.environment()
        engine_id = settings.get("ROOTSTOCK_ENGINE_ENGINE_ID", "engine-0")
        return Path(settings["ROOTSTOCK_ENGINE_DATA_DIR"]) / "engine" / engine_id

    def environment(self) -> dict[str, str]:
        """Returns the settings of all processes and of the operator's commands; the shell's settings take
        precedence.
        """
        settings = {
            "ROOTSTOCK_DB_URL": self.db_url,
            OWNER_URL: self.db_owner_url,
            "ROOTSTOCK_REDIS_URL": self.redis_url,
            "ROOTSTOCK_TENANTS_KEY_SECRET": self.data.secret("key_secret"),
            "ROOTSTOCK_API_REDIS_URL": self.redis_url,
            "ROOTSTOCK_API_BASE_PATH": str(self.base),
            "ROOTSTOCK_API_BASE_NAME": self.base_name,
            "ROOTSTOCK_API_ENGINE_ENDPOINT": self.engine_endpoint,
            "ROOTSTOCK_WORKER_REDIS_URL": self.redis_url,
            "ROOTSTOCK_JOBS_BASE_PATH": str(self.base),
            "ROOTSTOCK_JOBS_BASE_NAME": self.base_name,
            "ROOTSTOCK_JOBS_ENGINE_ENDPOINT": self.engine_endpoint,
            "ROOTSTOCK_JOBS_ARTIFACTS_DIR": str(self.data.artifacts),
            "ROOTSTOCK_STORAGE_URL": f"file://{quote(str(self.data.objects))}",
            "ROOTSTOCK_ENGINE_BASE": str(self.base),
            "ROOTSTOCK_ENGINE_BASE_NAME": self.base_name,
            "ROOTSTOCK_DEVICE_QUANTIZATION": self.quantization,
            "ROOTSTOCK_DEVICE_TENSOR_PARALLEL": str(self.tensor_parallel),
            "ROOTSTOCK_ENGINE_ENDPOINT": self.engine_endpoint,
            "ROOTSTOCK_ENGINE_REDIS_URL": self.redis_url,
            "ROOTSTOCK_ENGINE_DATA_DIR": str(self.data.path),
            "ROOTSTOCK_ENGINE_ARTIFACTS_DIR": str(self.data.artifacts),
            "ROOTSTOCK_ENGINE_DRAIN_SECONDS": f"{_ENGINE_DRAIN_S:g}",
            # The demo can be tried without an authenticator app; other services require a second factor.
            "ROOTSTOCK_CONSOLE_OPERATORS_SECOND_FACTOR": "false" if self.is_demo else "",
            **self.payments,
        }
        return {name: value for name, value in settings.items() if value and name not in os.environ} | {
            name: value for name, value in os.environ.items() if name.startswith("ROOTSTOCK_")
        }

    def engine(self) -> Program:
        program = self._program("engine", "serve-engine", grace_s=_ENGINE_DRAIN_S + 15)
        return dataclasses.replace(program, reason=self.engine_state / STOP_REASON)

    def api(self, listener_fd: int) -> Program:
        return self._program("api", "serve-api", grace_s=30, pass_fds=(listener_fd,))

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
            environment["ROOTSTOCK_API_LISTEN_FD"] = str(pass_fds[0])
        return Program(
            name=name,
            argv=(sys.executable, "-m", "cli.main", *command),
            env=environment,
            log=self.data.logs / f"{name}.log",
            grace_s=grace_s,
            pass_fds=pass_fds,
            cwd=CHECKOUT,
        )
