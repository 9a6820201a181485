"""Settles the reservations of requests whose API process was killed, from the usage journal.

The API settles a reservation as soon as its request ends. If the API process died before that, the request's
last usage event settles it here: the unused part is released, and the usage is charged to the limits.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from billing.errors import MalformedEvent
from billing.rates import Rate
from engine.protocol import UsageEvent
from tenants.limits.kinds import Amounts
from tenants.quotas.journal import JournalSettling, MeteredRequest

log = structlog.get_logger(__name__)


class ReservationSettlement:
    """Settles reservations of ended requests. Pass it as `billing.metering.OnEnded`."""

    def __init__(self, settling: JournalSettling) -> None:
        self._settling = settling

    async def __call__(self, events: Sequence[UsageEvent]) -> None:
        settled = await self._settling.settle([metered(event) for event in events])
        if settled:
            log.info("reservations settled from the journal", reservations=settled)


def metered(event: UsageEvent) -> MeteredRequest:
    """Returns the request's total usage and its cost at the rate it carries, zero if it carries none."""
    usage = event.usage
    try:
        spend = Rate.of_labels(event.labels).cost(usage)
    except MalformedEvent as error:
        log.error("request is settled without its cost", request_id=event.request_id, error=str(error))
        spend = 0
    return MeteredRequest(
        event.tenant,
        event.request_id,
        Amounts(1, usage.prompt_tokens, usage.completion_tokens, spend),
    )
