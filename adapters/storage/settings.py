"""Reads the object store's settings from ROOTSTOCK_STORAGE_*. Only the processes' mains build them."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class StorageSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_STORAGE_")

    url: str = Field(pattern=r"^(file:///|s3://[a-z0-9]).*")
    """`file:///directory`, shared by all processes, or `s3://bucket/prefix`."""
    endpoint: str | None = None
    """URL of an S3-compatible server other than Amazon's: `https://host:port`. The bucket is part of the
    path.
    """
    region: str = "us-east-1"
    access_key_id: str | None = None
    """Together with its secret; without both, the machine's role is used."""
    secret_access_key: SecretStr | None = None
    reader_access_key_id: str | None = None
    """Of a key that may only read `bases/` and `packed/`, together with its secret: what engines on a cluster
    get in place of the other, which may write."""
    reader_secret_access_key: SecretStr | None = None
    scratch: Path | None = None
    """Directory for files in transfer to a bucket; by default below the system's temporary directory."""
    timeout: float = Field(default=60.0, gt=0)
    """Seconds for one request to the bucket; the largest carries 8 MiB."""
    connect_timeout: float = Field(default=5.0, gt=0)
    retries: int = Field(default=4, ge=0)
    """Retries of a request, after waits that double."""
    retry_timeout: float = Field(default=20.0, gt=0)
    """Seconds after which a request is not retried."""
