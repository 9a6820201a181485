"""Queries webhook endpoints, notifications and deliveries: one tenant's, and all due deliveries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, String, column, exists, func, select, table, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from billing.notifications.models import Delivery, Notification, WebhookEndpoint
from db.cursors import fetch_page
from db.repository import TenantRepository
from tenants.audit.repository import deleted_ids
from tenants.models import User
from tenants.repository import is_id

PER_DESTINATION = 4
"""Deliveries claimed together per endpoint or address, so that a slow one does not hold up others."""
_ACCOUNTS = table("billing_accounts", column("tenant_id", String), column("email", String))
"""A table of `billing.invoices.models`, which imports this module, so it is declared here again."""


class EndpointRepository(TenantRepository):
    async def find(self, endpoint_id: str, *, lock: bool = False) -> WebhookEndpoint | None:
        if not is_id(endpoint_id):
            return None
        query = self.select_own(WebhookEndpoint).where(WebhookEndpoint.id == endpoint_id)
        if lock:
            query = query.with_for_update()
        return (await self.session.execute(query)).scalar_one_or_none()

    async def count(self) -> int:
        return (await self.session.execute(self.select_own(WebhookEndpoint, func.count()))).scalar_one()

    async def page(self, *, after: str | None, limit: int, newest_first: bool) -> list[WebhookEndpoint]:
        listed = self.select_own(WebhookEndpoint)
        page = await fetch_page(
            self.session,
            listed,
            WebhookEndpoint.id,
            after=after,
            limit=limit,
            newest_first=newest_first,
            deleted=deleted_ids(self.tenant_id, "webhook_endpoint.deleted"),
        )
        return list(page.scalars())

    async def listening(self, event_type: str) -> list[str]:
        """Returns the ids of the enabled endpoints that get this event type."""
        query = self.select_own(WebhookEndpoint, WebhookEndpoint.id).where(
            WebhookEndpoint.disabled_at.is_(None), WebhookEndpoint.event_types.any_() == event_type
        )
        return list((await self.session.execute(query)).scalars())

    async def delete(self, endpoint_id: str) -> None:
        await self.session.execute(self.delete_own(WebhookEndpoint).where(WebhookEndpoint.id == endpoint_id))


class NotificationRepository(TenantRepository):
    async def add(
        self, notification_id: str, type: str, key: str, data: dict[str, Any], at: datetime
    ) -> bool:
        """Adds a notification; returns whether its key is new."""
        values = {
            "id": notification_id,
            "tenant_id": self.tenant_id,
            "type": type,
            "key": key,
            "data": data,
            "created_at": at,
        }
        statement = insert(Notification).values(values).on_conflict_do_nothing()
        added = await self.session.execute(statement.returning(Notification.id))
        return added.scalar_one_or_none() is not None

    async def mail_recipients(self) -> list[str]:
        """Returns the recipients of mail about money: the account's address, owners and billing members."""
        account = select(_ACCOUNTS.c.email).where(
            _ACCOUNTS.c.tenant_id == self.tenant_id, _ACCOUNTS.c.email != ""
        )
        people = self.select_own(User, User.email).where(
            User.role.in_(("owner", "billing")), User.removed_at.is_(None), User.disabled_at.is_(None)
        )
        found = (await self.session.execute(account.union(people))).scalars()
        return sorted(set(found))

    async def deliveries(
        self, endpoint_id: str, *, after: str | None, limit: int, newest_first: bool
    ) -> list[Row[Delivery, Notification]]:
        listed = (
            self.select_own(Delivery, Delivery, Notification)
            .join(Notification, Notification.id == Delivery.notification_id)
            .where(Delivery.endpoint_id == endpoint_id)
        )
        page = await fetch_page(
            self.session, listed, Delivery.id, after=after, limit=limit, newest_first=newest_first
        )
        return list(page.all())

    async def mailed(self, key_prefix: str, limit: int) -> list[Row[Delivery, Notification]]:
        """Returns the mail of notifications whose key begins with the prefix, the newest first."""
        query = (
            self.select_own(Delivery, Delivery, Notification)
            .join(Notification, Notification.id == Delivery.notification_id)
            .where(
                Notification.tenant_id == self.tenant_id,
                Notification.key.startswith(key_prefix, autoescape=True),
                Delivery.recipient.is_not(None),
            )
            .order_by(Delivery.id.desc())
            .limit(limit)
        )
        return list((await self.session.execute(query)).all())

    async def delivery(self, endpoint_id: str, delivery_id: str) -> Row[Delivery, Notification] | None:
        """Returns a delivery with its notification, locked."""
        if not (is_id(endpoint_id) and is_id(delivery_id)):
            return None
        query = (
            self.select_own(Delivery, Delivery, Notification)
            .join(Notification, Notification.id == Delivery.notification_id)
            .where(Delivery.endpoint_id == endpoint_id, Delivery.id == delivery_id)
            .with_for_update(of=Delivery)
        )
        return (await self.session.execute(query)).one_or_none()


@dataclass(frozen=True, slots=True)
class DueDelivery:
    """A delivery that was claimed."""

    id: str
    tenant_id: str
    attempts: int
    """Attempts, including this one."""
    give_up_at: datetime
    notification: Notification
    endpoint: WebhookEndpoint | None
    recipient: str | None


class DueDeliveries:
    """Claims and changes due deliveries of every tenant."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def any(self, now: datetime) -> bool:
        due = exists().where(Delivery.state == "pending", Delivery.next_at <= now)
        return bool((await self.session.execute(select(due))).scalar_one())

    async def take(self, now: datetime, *, lease: float, limit: int) -> list[DueDelivery]:
        """Claims the deliveries that have waited longest, few per destination, and leases them for `lease`
        seconds.
        """
        to = func.coalesce(Delivery.endpoint_id, Delivery.recipient)
        place = func.row_number().over(partition_by=to, order_by=Delivery.next_at)
        due = (
            select(Delivery.id, place.label("place"))
            .where(Delivery.state == "pending", Delivery.next_at <= now)
            .subquery()
        )
        chosen = (
            select(Delivery.id)
            .where(Delivery.id.in_(select(due.c.id).where(due.c.place <= PER_DESTINATION)))
            # Checked again on the locked row: another process may have claimed it meanwhile.
            .where(Delivery.state == "pending", Delivery.next_at <= now)
            .order_by(Delivery.next_at)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        taken = update(Delivery).where(Delivery.id.in_(chosen)).returning(Delivery.id)
        ids = list(
            (
                await self.session.execute(
                    taken.values(attempts=Delivery.attempts + 1, next_at=now + timedelta(seconds=lease)),
                    execution_options={"synchronize_session": False},
                )
            ).scalars()
        )
        query = (
            select(Delivery, Notification, WebhookEndpoint)
            .join(Notification, Notification.id == Delivery.notification_id)
            .outerjoin(WebhookEndpoint, WebhookEndpoint.id == Delivery.endpoint_id)
            .where(Delivery.id.in_(ids))
            .order_by(Delivery.id)
        )
        return [
            DueDelivery(
                row.id,
                row.tenant_id,
                row.attempts,
                row.give_up_at,
                notification,
                endpoint,
                row.recipient,
            )
            for row, notification, endpoint in (await self.session.execute(query)).all()
        ]

    async def postpone(
        self, delivery_id: str, until: datetime, status_code: int | None, error: str | None
    ) -> None:
        values = {"next_at": until, "status_code": status_code, "error": error}
        await self._change([delivery_id], values)

    async def end(
        self,
        delivery_ids: Sequence[str],
        state: str,
        now: datetime,
        status_code: int | None,
        error: str | None,
    ) -> None:
        values = {"state": state, "ended_at": now, "status_code": status_code, "error": error}
        await self._change(delivery_ids, values)

    async def delivered_any(self, endpoint_id: str, since: datetime) -> bool:
        """Returns whether a delivery to the endpoint succeeded since then."""
        taken = exists().where(
            Delivery.endpoint_id == endpoint_id,
            Delivery.state == "delivered",
            Delivery.ended_at >= since,
        )
        return bool((await self.session.execute(select(taken))).scalar_one())

    async def disable(self, endpoint_id: str, now: datetime) -> bool:
        """Disables the endpoint and fails what waits for it; returns whether it was enabled."""
        disabled = (
            update(WebhookEndpoint)
            .where(WebhookEndpoint.id == endpoint_id, WebhookEndpoint.disabled_at.is_(None))
            .values(disabled_at=now)
            .returning(WebhookEndpoint.id)
        )
        found = (await self.session.execute(disabled)).scalar_one_or_none() is not None
        waiting = select(Delivery.id).where(Delivery.endpoint_id == endpoint_id, Delivery.state == "pending")
        ids = list((await self.session.execute(waiting)).scalars())
        await self.end(ids, "failed", now, None, "the endpoint was disabled")
        return found

    async def known(self, keys: Sequence[str]) -> set[str]:
        """Returns which of these keys have a notification."""
        query = select(Notification.key).where(Notification.key.in_(keys))
        return set((await self.session.execute(query)).scalars()) if keys else set()

    async def _change(self, ids: Sequence[str], values: dict[str, Any]) -> None:
        if ids:
            # A delivery that ended meanwhile keeps its result.
            changed = update(Delivery).where(Delivery.id.in_(ids), Delivery.state == "pending")
            await self.session.execute(
                changed.values(values), execution_options={"synchronize_session": False}
            )
