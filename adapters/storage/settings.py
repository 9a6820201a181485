"""Settings of the object store, read from ROOTSTOCK_STORAGE_*. Built by process mains only."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class StorageSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_STORAGE_")

    url: str = Field(pattern=r"^(file:///|s3://[a-z0-9]).*")
    """`file:///directory`, shared by all processes, or `s3://bucket/prefix`."""
    endpoint: str | None = None
    """Of an S3-compatible server that is not Amazon's: `https://host:port`. The bucket goes into the path."""
    region: str = "us-east-1"
    access_key_id: str | None = None
    """With its secret; without both, those of the machine's role are asked for."""
    secret_access_key: SecretStr | None = None
    scratch: Path | None = None
    """Directory for files on their way to a bucket, by default one below the system's for temporary files."""
    timeout: float = Field(default=60.0, gt=0)
    """Seconds for one request to the bucket; the largest carries 8 MiB."""
    connect_timeout: float = Field(default=5.0, gt=0)
    retries: int = Field(default=4, ge=0)
    """How often a request is sent again, after waits that double."""
    retry_timeout: float = Field(default=20.0, gt=0)
    """Seconds after which no request is sent again."""
