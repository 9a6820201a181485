"""Reads which published base an engine's host fetches, from ROOTSTOCK_BASE_*."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from adapters.published_bases.manifest import DIGEST


class BaseSource(BaseSettings):
    """A base in the object store that `ROOTSTOCK_STORAGE_*` names."""

    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_BASE_", frozen=True)

    digest: Annotated[str | None, Field(pattern=DIGEST)] = None
    """What `rootstock base publish` printed. Set: the engine fetches this base before it starts, and serves
    it in place of ROOTSTOCK_ENGINE_BASE. Unset: nothing is fetched."""
    cache_dir: Path | None = None
    """Where fetched bases are kept. Default: `bases` in the engine's data folder."""
    cache_bytes: Annotated[int | None, Field(ge=1)] = None
    """Most bytes of all bases there: unused ones are removed to make room. Unset: as much as the disk has
    free."""
