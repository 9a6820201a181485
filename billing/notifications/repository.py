"""Queries on endpoints, notifications and their deliveries: one tenant's, and for whoever delivers, what is
due of all tenants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, String, column, delete, exists, func, select, table, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from billing.notifications.models import Delivery, Notification, WebhookEndpoint
from db.cursors import fetch_page
from db.repository import TenantRepository
from tenants.audit.repository import deleted_ids
from tenants.models import User
from tenants.repository import is_id

PER_DESTINATION = 4
"""Deliveries to one endpoint or address that are taken together: what is slow there keeps nobody waiting."""
_ACCOUNTS = table("billing_accounts", column("tenant_id", String), column("email", String))
"""Those who write accounts tell of them here: their models stand above this."""


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
        """Ids of the endpoints that are to be told of this."""
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
        """Whether it is new: what has this key was not told before."""
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
        """Who is written to about money: the account's address, owners, and who settles what is paid."""
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
        """What was mailed of notifications whose key begins so, the newest first."""
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
        """Locked."""
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
class Due:
    """A delivery that somebody has taken to try."""

    id: str
    tenant_id: str
    attempts: int
    """This one included."""
    give_up_at: datetime
    notification: Notification
    endpoint: WebhookEndpoint | None
    recipient: str | None


class DueDeliveries:
    """Of every tenant, for whoever delivers."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def any(self, now: datetime) -> bool:
        due = exists().where(Delivery.state == "pending", Delivery.next_at <= now)
        return bool((await self.session.execute(select(due))).scalar_one())

    async def take(self, now: datetime, *, lease: float, limit: int) -> list[Due]:
        """Those that have waited longest, few of any one destination: nobody else takes them for `lease`
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
            # Again, of the row that is locked: somebody may have taken it meanwhile.
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
            Due(
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

    async def put_off(
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

    async def took_any(self, endpoint_id: str, since: datetime) -> bool:
        """Whether the endpoint took anything since then."""
        taken = exists().where(
            Delivery.endpoint_id == endpoint_id,
            Delivery.state == "delivered",
            Delivery.ended_at >= since,
        )
        return bool((await self.session.execute(select(taken))).scalar_one())

    async def disable(self, endpoint_id: str, now: datetime) -> bool:
        """Tell the endpoint nothing any more, nor what waits for it; whether it was told things until now."""
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
        """Which of these were told of already."""
        query = select(Notification.key).where(Notification.key.in_(keys))
        return set((await self.session.execute(query)).scalars()) if keys else set()

    async def forget(self, before: datetime) -> int:
        """Remove notifications of former times that nobody waits for; how many."""
        waiting = exists().where(Delivery.notification_id == Notification.id, Delivery.state == "pending")
        gone = delete(Notification).where(Notification.created_at < before, ~waiting)
        return len((await self.session.execute(gone.returning(Notification.id))).all())

    async def _change(self, ids: Sequence[str], values: dict[str, Any]) -> None:
        if ids:
            # What has ended meanwhile stays as it ended.
            changed = update(Delivery).where(Delivery.id.in_(ids), Delivery.state == "pending")
            await self.session.execute(
                changed.values(values), execution_options={"synchronize_session": False}
            )
