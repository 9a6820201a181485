"""Reads the settings of the worker from ROOTSTOCK_WORKER_*, and of its jobs from ROOTSTOCK_JOBS_*. Only the
worker's entry point builds them.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from adapters.served_bases import BaseName, ServedBase, checked_endpoints
from db.tasks import QUEUE, QUEUES
from routing.endpoints import parse_endpoints


class WorkerSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_WORKER_")

    redis_url: str
    """The Redis of the journal and the task queue: `redis://`, `rediss://` or `unix://`."""
    queues: str = QUEUE
    """The queues to work on, separated by commas: `rootstock` (metering and other short tasks),
    `rootstock.jobs` (inspection, packing, calibration). Use one per worker: short tasks would wait for jobs.
    """
    concurrency: int = Field(default=1, ge=1, le=64)
    """Tasks at the same time, each in a process of its own."""
    nice: int = Field(default=0, ge=0, le=19)
    """The niceness of the processes that run tasks."""
    beat: bool = True
    """Whether this worker also sends the periodic tasks. Several that do are wasteful but harmless, since
    tasks may run twice.
    """
    meter_interval: float = Field(default=1.0, ge=0.1, le=60)
    """Seconds between two drains of the usage journal."""
    meter_batch: int = Field(default=1000, ge=1, le=10_000)
    """Journal entries per transaction."""
    meter_stale_after: float = Field(default=10.0, ge=1, le=3600)
    """Seconds after which entries that another meter claimed count as abandoned."""
    relay_interval: float = Field(default=2.0, ge=0.1, le=60)
    """Seconds between two searches for messages that their writers did not send."""
    sweep_interval: float = Field(default=3.0, ge=0.1, le=60)
    """Seconds between two searches for jobs whose worker is gone."""
    spend_interval: float = Field(default=20.0, ge=0.1, le=60)
    """Seconds between two checks of spend, for alerts and for costs that no request reserved."""
    engine_endpoints: str = ""
    """The endpoints of all engines, separated by commas, whose disks the nightly reconciliation reads. Empty
    means those of the jobs' setting.
    """
    log_level: str = "INFO"

    @field_validator("queues")
    @classmethod
    def _known(cls, queues: str) -> str:
        for name in queues.split(","):
            if name.strip() not in QUEUES:
                raise ValueError(f"{name.strip()!r} is none of {', '.join(QUEUES)}")
        return queues

    @property
    def queue_names(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.queues.split(","))

    @property
    def engines(self) -> tuple[str, ...]:
        return parse_endpoints(self.engine_endpoints)

    @field_validator("engine_endpoints")
    @classmethod
    def _are_endpoints(cls, endpoints: str) -> str:
        parse_endpoints(endpoints)
        return endpoints


class JobsSettings(BaseSettings):
    """The settings of workers that run jobs."""

    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_JOBS_")

    base_path: Path
    """The directory of the base model, unquantised, which calibration compares with."""
    base_name: BaseName
    """The name of the base model in requests."""
    engine_endpoint: str
    """The endpoints of the base's engines, `ipc://...` or `tcp://...`, separated by commas. Calibration
    measures on the first; adapters are loaded early where the router sends their requests."""
    artifacts_dir: Path
    """The engine's directory of packed adapters."""
    threads: int | None = Field(default=None, ge=1, le=256)
    """Threads that one process computes with when packing or calibrating; default OMP_NUM_THREADS, or 1."""
    scratch_dir: Path | None = None
    """The directory of files being worked on; by default the system's for temporary files."""
    lease_seconds: float = Field(default=30.0, ge=1, le=600)
    """Seconds after its worker's last heartbeat until a job is given to another."""
    max_attempts: int = Field(default=5, ge=1, le=100)
    """Attempts after which a job has failed."""

    @property
    def engines(self) -> tuple[str, ...]:
        return parse_endpoints(self.engine_endpoint)

    @property
    def first_base(self) -> ServedBase:
        return ServedBase(name=self.base_name, path=self.base_path, engine_endpoint=self.engine_endpoint)

    @field_validator("engine_endpoint")
    @classmethod
    def _names_engines(cls, endpoints: str) -> str:
        return checked_endpoints(endpoints)
