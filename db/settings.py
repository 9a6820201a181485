"""Reads the database connection's settings from ROOTSTOCK_DB_*. Only the processes' mains build them."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class OwnerSettings(BaseSettings):
    """Settings of the process that migrates."""

    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_DB_")

    owner_url: str
    """SQLAlchemy URL of the role that owns the tables, or is going to."""


class DatabaseSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_DB_")

    url: str
    """SQLAlchemy URL, `postgresql+psycopg://...`, of the serving role: neither owner nor superuser."""
    pool_size: int = Field(default=5, ge=1, le=200)
    pool_overflow: int = Field(default=5, ge=0, le=200)
    """Connections beyond `pool_size` under load, closed afterwards."""
    pool_timeout: float = Field(default=5.0, gt=0)
    """Seconds to wait for a free connection before giving up."""
    statement_timeout: float = Field(default=30.0, gt=0)
    """Seconds after which PostgreSQL cancels a statement."""
    idle_transaction_timeout: float = Field(default=60.0, gt=0)
    """Seconds without a statement after which PostgreSQL ends a transaction, whose process has stopped or is
    lost.
    """
    prepared_statements: bool = True
    """False behind a PgBouncer that pools transactions without keeping prepared statements."""
