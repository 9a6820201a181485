"""What nobody needs any more: expired files and uploads, objects without a row, deleted adapters."""

from __future__ import annotations

from celery import Celery

from worker.runtime import Runtime


def register(app: Celery, runtime: Runtime) -> None:
    """Tasks of the object store."""
