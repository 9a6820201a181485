"""Reads how an engine's host gets packed adapters, from ROOTSTOCK_ADAPTERS_*."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class ArtifactSource(BaseSettings):
    """Packed adapters from the object store that `ROOTSTOCK_STORAGE_*` names."""

    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_ADAPTERS_", frozen=True)

    fetch: bool = False
    """True: the engine fetches packed adapters by digest, and reads none from ROOTSTOCK_ENGINE_ARTIFACTS_DIR,
    which need not exist then."""
    cache_dir: Path | None = None
    """Where fetched adapters are kept. Default: `adapters` in the engine's data folder."""
    cache_bytes: Annotated[int, Field(ge=1)] = 32 << 30
    """Most bytes of all adapters there: the least recently used make room."""
