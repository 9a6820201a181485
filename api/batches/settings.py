"""Reads the settings of running batches from ROOTSTOCK_BATCHES_*. Only process mains construct them."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class BatchSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_BATCHES_")

    concurrency: int = Field(default=64, ge=0)
    """Lines that an API process runs at the same time; 0: it runs no batches."""
    concurrency_per_batch: int = Field(default=32, ge=1)
    lease_seconds: float = Field(default=15.0, ge=1)
    """Seconds after which another process continues the batches of one that died."""
    poll_seconds: float = Field(default=1.0, gt=0)
    """Seconds between two looks for batches that no process runs."""
