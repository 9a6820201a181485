"""Sends outbox messages that their writers did not get into the queue."""

from __future__ import annotations

import structlog
from celery import Celery

from db.errors import DatabaseUnavailable
from db.tasks import TaskQueueUnavailable
from worker.app import PRUNE_OUTBOX, RELAY_OUTBOX
from worker.runtime import Runtime

log = structlog.get_logger(__name__)


def register(app: Celery, runtime: Runtime) -> None:
    @app.task(name=RELAY_OUTBOX, time_limit=300)
    def relay_outbox() -> None:
        """Sends the messages in the outbox. What fails stays for the next time."""
        try:
            sent = runtime.run(_relay(runtime))
        except (DatabaseUnavailable, TaskQueueUnavailable) as error:
            log.warning("messages stay in the outbox", error=str(error))
        else:
            if sent:
                log.info("messages relayed from the outbox", messages=sent)

    @app.task(name=PRUNE_OUTBOX, time_limit=300)
    def prune_outbox() -> None:
        """Deletes messages sent long ago."""
        try:
            runtime.run(_prune(runtime))
        except DatabaseUnavailable as error:
            log.warning("old messages are deleted by the next run", error=str(error))


async def _relay(runtime: Runtime) -> int:
    return await runtime.outbox.relay()


async def _prune(runtime: Runtime) -> int:
    return await runtime.outbox.prune()
