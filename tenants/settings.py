"""Reads the settings of API keys and their cache from ROOTSTOCK_TENANTS_*. Only process mains construct
them.
"""

from __future__ import annotations

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class TenantSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_TENANTS_")

    key_secret: SecretStr = Field(min_length=32)
    """Secret of the HMACs under which keys are stored, so that a copy of the database alone cannot be
    brute-forced. Must be the same in every process; changing it invalidates all keys.
    """
    cache_seconds: float = Field(default=30.0, gt=0, le=300)
    """Longest life of a cached key or model. Revocations do not wait for it: they reach every process within
    a second.
    """
