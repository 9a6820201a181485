"""Reads the settings of sharing from ROOTSTOCK_SHARING_*. Only process mains construct them."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class SharingSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_SHARING_")

    platform_percent: int = Field(default=20, ge=0, le=100)
    """The least that the platform keeps of the surcharge on an adapter that one organization shares with
    another. Owners ask for at most the rest, which is also the default. For new offers.
    """
