"""Reads the settings of API keys and their cache from ROOTSTOCK_TENANTS_*. Only process mains construct
them.
"""

from __future__ import annotations

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from tenants.key_secrets import KeySecrets


class TenantSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_TENANTS_")

    key_secret: SecretStr = Field(min_length=32)
    """Secret of the HMACs under which keys are stored, so that a copy of the database alone cannot be
    brute-forced. Must be the same in every process. To change it, see docs/rotation.md: another secret alone
    invalidates all keys.
    """
    previous_key_secret: SecretStr | None = Field(default=None, min_length=32)
    """While the key secret is rotated, the other one that is accepted: first the next, then the previous."""
    cache_seconds: float = Field(default=30.0, gt=0, le=300)
    """Longest life of a cached key or model. Revocations do not wait for it: they reach every process within
    a second.
    """

    @field_validator("previous_key_secret", mode="before")
    @classmethod
    def _may_be_empty(cls, value: object) -> object:
        return value or None

    @model_validator(mode="after")
    def _differ(self) -> TenantSettings:
        self.key_secrets()
        return self

    def key_secrets(self) -> KeySecrets:
        previous = self.previous_key_secret
        other = None if previous is None else previous.get_secret_value()
        return KeySecrets(self.key_secret.get_secret_value(), other)
