"""From the journal's last word on a request to the settling of its reservation.

Owns what a usage event amounts to in the words of limits. The API settles by itself as soon as a request
ends; this is for those whose API process was killed: what it held is returned, what was used is charged.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from billing.errors import MalformedEvent
from billing.rates import RATE_LABEL, Rate
from engine.protocol import UsageEvent
from tenants.limits.kinds import Amounts
from tenants.quotas.journal import JournalSettling, MeteredRequest

logger = logging.getLogger(__name__)


class ReservationSettlement:
    """Call it as `billing.metering.OnEnded`."""

    def __init__(self, settling: JournalSettling) -> None:
        self._settling = settling

    async def __call__(self, events: Sequence[UsageEvent]) -> None:
        settled = await self._settling.settle([metered(event) for event in events])
        if settled:
            logger.info("reservations settled from the journal: %d", settled)


def metered(event: UsageEvent) -> MeteredRequest:
    """What the request used in all, and what that costs by the rate it carries: nothing where it has none."""
    usage = event.usage
    label = event.labels.get(RATE_LABEL, "")
    try:
        spend = Rate.of_label(label).cost(usage) if label else 0
    except MalformedEvent as error:
        logger.error("%s is settled without its cost: %s", event.request_id, error)
        spend = 0
    return MeteredRequest(
        event.tenant,
        event.request_id,
        Amounts(1, usage.prompt_tokens, usage.completion_tokens, spend),
    )
