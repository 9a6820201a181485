"""Having a tenant told: a row in the transaction of what it tells of, and one for each who hears of it.

Owns that nothing is told twice and nothing that was rolled back. Sending is others' business: nobody waits
for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from billing.notifications.events import EVENTS
from billing.notifications.models import Delivery
from billing.notifications.repository import EndpointRepository, NotificationRepository
from db.base import new_id
from db.session import WriteSession

GIVE_UP_AFTER = timedelta(days=3)
"""For which what is not taken is tried again."""


async def tell(
    session: WriteSession,
    tenant_id: str,
    event_type: str,
    data: Mapping[str, Any],
    *,
    key: str,
    now: datetime | None = None,
    recipients: Sequence[str] | None = None,
    only_mailed: bool = False,
) -> bool:
    """Tell the tenant of an event, once it is committed; whether it was not told before.

    Args:
        key: what happened, the same whenever it is told: of one key there is one notification.
        recipients: who is mailed; None: those whom such an event is mailed to.
        only_mailed: endpoints do not hear of it.
    """
    event = EVENTS[event_type]
    now = now or datetime.now(UTC)
    notification_id = new_id("evt")
    notifications = NotificationRepository(session, tenant_id)
    if not await notifications.add(notification_id, event.name, key, dict(data), now):
        return False
    if recipients is None:
        recipients = await notifications.mail_recipients() if event.mailed else ()
    endpoints = [] if only_mailed else await EndpointRepository(session, tenant_id).listening(event.name)
    for endpoint_id in endpoints:
        notifications.add_own(_delivery(tenant_id, notification_id, now, endpoint_id=endpoint_id))
    for recipient in dict.fromkeys(recipients):
        notifications.add_own(_delivery(tenant_id, notification_id, now, recipient=recipient))
    await session.flush()
    return True


def _delivery(
    tenant_id: str,
    notification_id: str,
    now: datetime,
    *,
    endpoint_id: str | None = None,
    recipient: str | None = None,
) -> Delivery:
    return Delivery(
        id=new_id("dlv"),
        tenant_id=tenant_id,
        notification_id=notification_id,
        endpoint_id=endpoint_id,
        recipient=recipient,
        next_at=now,
        give_up_at=now + GIVE_UP_AFTER,
        created_at=now,
    )
