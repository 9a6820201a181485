"""Deletes stored responses and conversations whose time is over."""

from __future__ import annotations

import structlog
from celery import Celery

from conversations.expiry import delete_expired
from db.errors import DatabaseUnavailable
from worker.app import DELETE_EXPIRED_STATE
from worker.runtime import Runtime

log = structlog.get_logger(__name__)


def register(app: Celery, runtime: Runtime) -> None:
    @app.task(name=DELETE_EXPIRED_STATE, time_limit=300)
    def delete_expired_state() -> None:
        """Deletes what has expired. What fails, the next run does."""
        try:
            deleted = runtime.run(_delete(runtime))
        except DatabaseUnavailable as error:
            log.warning("expired responses and conversations are deleted later", error=str(error))
        else:
            if deleted:
                log.info("expired responses and conversations deleted", count=deleted)


# The runtime's services exist once its loop runs.
async def _delete(runtime: Runtime) -> int:
    return await delete_expired(runtime.database)
