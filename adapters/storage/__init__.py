"""Object storage for tenants' files: one interface over a local directory or an S3 bucket."""

from __future__ import annotations

import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

from adapters.storage.errors import DigestMismatch, ObjectNotFound, StorageError, StorageUnavailable
from adapters.storage.local import LocalStore
from adapters.storage.objects import ObjectStore, StoredObject
from adapters.storage.s3 import AccessKey, RetryPolicy, S3Store
from adapters.storage.settings import StorageSettings

__all__ = [
    "AccessKey",
    "DigestMismatch",
    "LocalStore",
    "ObjectNotFound",
    "ObjectStore",
    "RetryPolicy",
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
    secret = settings.secret_access_key
    return S3Store(
        url.netloc,
        url.path.strip("/"),
        scratch=settings.scratch or Path(tempfile.gettempdir()) / "rootstock-scratch",
        endpoint=settings.endpoint,
        region=settings.region,
        access_key=AccessKey(settings.access_key_id, secret.get_secret_value() if secret else None),
        retry_policy=RetryPolicy(
            settings.timeout, settings.connect_timeout, settings.retries, settings.retry_timeout
        ),
    )
