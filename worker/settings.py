"""Settings of the worker, read from ROOTSTOCK_WORKER_*. Built by the worker's main only."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class WorkerSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_WORKER_")

    redis_url: str
    """The journal's and the task queue's Redis: `redis://`, `rediss://` or `unix://`."""
    concurrency: int = Field(default=1, ge=1, le=64)
    """Tasks at once, each in a process of its own."""
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
    log_level: str = "INFO"
