"""Object storage for tenants' files: one interface over a local directory or an S3 bucket."""

from __future__ import annotations

import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

from adapters.storage.errors import DigestMismatch, ObjectNotFound, StorageError, StorageUnavailable
from adapters.storage.local import LocalStore
from adapters.storage.objects import ObjectStore, StoredObject
from adapters.storage.s3 import S3Store
from adapters.storage.settings import StorageSettings

__all__ = [
    "DigestMismatch",
    "LocalStore",
    "ObjectNotFound",
    "ObjectStore",
    "S3Store",
    "StorageError",
    "StorageSettings",
    "StorageUnavailable",
    "StoredObject",
    "open_store",
]


def open_store(settings: StorageSettings) -> ObjectStore:
    """Returns the store that the settings name, without connecting to it. Raises ValueError."""
    url = urlsplit(settings.url)
    if url.scheme == "file":
        if url.netloc or settings.url == "file:///":
            raise ValueError(f"url: name a directory as file:///directory, not {settings.url!r}")
        directory = Path(unquote(url.path))
        if (directory / "objects").is_dir():  # earlier releases kept objects one folder deeper
            return LocalStore(directory / "objects", scratch=directory / "incoming")
        return LocalStore(directory)
    return S3Store(
        url.netloc,
        url.path.strip("/"),
        scratch=settings.scratch or Path(tempfile.gettempdir()) / "rootstock-scratch",
        endpoint=settings.endpoint,
        region=settings.region,
        access_key_id=settings.access_key_id,
        secret_access_key=settings.secret_access_key.get_secret_value()
        if settings.secret_access_key
        else None,
        timeout=settings.timeout,
        connect_timeout=settings.connect_timeout,
        retries=settings.retries,
        retry_timeout=settings.retry_timeout,
    )
