"""Reconnects a consumer that waits for an acknowledgement which can never arrive.

A task that ends while Redis is unavailable cannot be acknowledged: Celery logs that and goes on. But the
message still counts as unacknowledged, and with a prefetch limit of one no other is requested. Nothing is
read from the socket, so its loss is never noticed, and the worker idles for ever.
"""

from __future__ import annotations

from typing import Any

import structlog
from celery import bootsteps
from celery.worker import state

log = structlog.get_logger(__name__)

INTERVAL = 2.0
"""Seconds between two checks; two positive checks in a row reconnect."""


class AckWatch(bootsteps.StartStopStep):
    """A step of Celery's consumer. It runs on the consumer's event loop and restarts with each connection."""

    requires = frozenset({"celery.worker.consumer.tasks:Tasks"})

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._timer: Any = None
        self._suspected = False

    def start(self, consumer: Any) -> None:
        self._suspected = False
        self._timer = consumer.timer.call_repeatedly(INTERVAL, self._look, (consumer,))

    def stop(self, consumer: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, consumer: Any) -> None:
        """Raises ConnectionError, on which the consumer's loop reconnects."""
        full = not consumer.task_consumer.channel.qos.can_consume()
        stuck = full and not state.reserved_requests
        if stuck and self._suspected:
            log.warning("a task could not be acknowledged and blocks the queue; reconnecting")
            raise ConnectionError("unacknowledged messages of finished tasks fill the prefetch limit")
        self._suspected = stuck
