"""Settings of the database connection, read from ROOTSTOCK_DB_*. Built by process mains only."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class OwnerSettings(BaseSettings):
    """Of whoever migrates."""

    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_DB_")

    owner_url: str
    """SQLAlchemy URL of the role that owns the tables, or will."""


class DatabaseSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_DB_")

    url: str
    """SQLAlchemy URL, `postgresql+psycopg://...`, of the role that serves: neither owner nor superuser."""
    pool_size: int = Field(default=5, ge=1, le=200)
    pool_overflow: int = Field(default=5, ge=0, le=200)
    """Connections beyond `pool_size` in a rush, closed after it."""
    pool_timeout: float = Field(default=5.0, gt=0)
    """Seconds to wait for a free connection before giving up."""
    statement_timeout: float = Field(default=30.0, gt=0)
    """Seconds after which PostgreSQL ends a statement."""
    prepared_statements: bool = True
    """False behind a PgBouncer that pools transactions without keeping prepared statements."""
