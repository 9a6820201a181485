"""Settings of the worker, read from ROOTSTOCK_WORKER_*, and of its jobs, from ROOTSTOCK_JOBS_*. Built by the
worker's main only.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from db.tasks import QUEUE, QUEUES


class WorkerSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_WORKER_")

    redis_url: str
    """The journal's and the task queue's Redis: `redis://`, `rediss://` or `unix://`."""
    queues: str = QUEUE
    """What to work on, with commas between: `rootstock` (metering and other short tasks), `rootstock.jobs`
    (inspection, packing, calibration). Better not both in one worker: short tasks would wait for jobs.
    """
    concurrency: int = Field(default=1, ge=1, le=64)
    """Tasks at once, each in a process of its own."""
    nice: int = Field(default=0, ge=0, le=19)
    """How far the processes that run tasks give way to others on the same cores."""
    beat: bool = True
    """Whether this worker also sends the periodic tasks. Several that do are wasteful, not wrong: they may
    run twice.
    """
    meter_interval: float = Field(default=1.0, ge=0.1, le=60)
    """Seconds between two drains of the usage journal."""
    meter_batch: int = Field(default=1000, ge=1, le=10_000)
    """Journal entries per transaction."""
    meter_stale_after: float = Field(default=10.0, ge=1, le=3600)
    """Seconds after which entries that another meter took count as abandoned."""
    relay_interval: float = Field(default=2.0, ge=0.1, le=60)
    """Seconds between two looks for messages that their writers did not send."""
    sweep_interval: float = Field(default=3.0, ge=0.1, le=60)
    """Seconds between two looks for jobs whose worker is gone."""
    spend_interval: float = Field(default=20.0, ge=0.1, le=60)
    """Seconds between two looks at what was spent, for alerts and for costs that no request reserved."""
    engine_endpoints: str = ""
    """Of every engine, with commas between: who is asked at night what waits on its disk. Empty: the one that
    jobs measure on.
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
        return tuple(name.strip() for name in self.engine_endpoints.split(",") if name.strip())


class JobsSettings(BaseSettings):
    """Needed by workers that run jobs."""

    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_JOBS_")

    base_path: Path
    """Directory of the base model, unquantised: what calibration compares with."""
    base_name: str = Field(pattern=r"^[a-z0-9._-]{1,64}$")
    """Name the base model is sold under."""
    engine_endpoint: str
    """The engine that calibration measures on, `ipc://...` or `tcp://...`."""
    artifacts_dir: Path
    """The engine's directory of packed adapters."""
    threads: int | None = Field(default=None, ge=1, le=256)
    """That one process computes with, packing or calibrating. Unset: what OMP_NUM_THREADS says, else one."""
    scratch_dir: Path | None = None
    """For files being worked on; by default the system's for temporary files."""
    lease_seconds: float = Field(default=30.0, ge=1, le=600)
    """How long after its worker's last sign of life a job is given to another."""
    max_attempts: int = Field(default=5, ge=1, le=100)
    """Attempts after which a job that ends no attempt has failed."""
