"""Settings of keys and their cache, read from ROOTSTOCK_TENANTS_*. Built by process mains only."""

from __future__ import annotations

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class TenantSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_TENANTS_")

    key_secret: SecretStr = Field(min_length=32)
    """Keys are stored as HMACs under this secret: a copy of the database alone cannot be tried against
    guesses. The same in every process; another secret means other keys."""
    cache_seconds: float = Field(default=30.0, gt=0, le=300)
    """Longest life of a cached key or model. Revocation does not wait for it: it is heard within a second."""
