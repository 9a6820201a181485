"""Publishes a notification in the transaction of the change it reports, with one delivery per receiver.

Nothing is published twice, and nothing that was rolled back. `delivering` sends it later.
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
"""How long a failed delivery is retried."""


async def publish(
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
    """Publishes an event to the tenant when the transaction commits; returns whether it is new.

    Args:
        key: identifies the event; of one key there is one notification.
        recipients: mail addresses; None means the recipients of this event type.
        only_mailed: sends nothing to webhook endpoints.
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
