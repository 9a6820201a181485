"""Stores messages for the task queue with the transaction that causes them and sends them after the commit.

The process that wrote a message sends it at once; if that fails, the relay that the workers run does. A
message may be sent twice (the sender may die before it marks the message), so tasks are idempotent.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import structlog
from sqlalchemy import BigInteger, Identity, Index, delete, func, select, text, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base
from db.errors import DatabaseUnavailable
from db.session import EVERY_TENANT, Database, WriteSession
from db.tasks import TaskQueueUnavailable, TaskSender

log = structlog.get_logger(__name__)

RELAY_AFTER = 2.0
"""Seconds its writer has to send a message before the relay sends it."""
KEEP_SENT = 24 * 3600.0
"""Seconds a sent message is kept for inspection."""


class OutboxMessage(Base):
    __tablename__ = "outbox"
    __table_args__ = (Index("ix_outbox_unsent", "id", postgresql_where=text("sent_at IS NULL")),)

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    task: Mapped[str]
    arguments: Mapped[dict[str, Any]] = mapped_column(JSONB)
    """Keyword arguments of the task."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    sent_at: Mapped[datetime | None]


class Outbox:
    """A process's outbox. `close` it before the database and the task sender."""

    def __init__(self, database: Database, sender: TaskSender) -> None:
        self._database = database
        self._sender = sender
        self._sending: set[asyncio.Task[None]] = set()

    def add(self, session: WriteSession, task: str, arguments: dict[str, Any]) -> None:
        """Runs `task` once this transaction is committed, and never if it is rolled back.

        The caller neither waits for the sending nor fails with it: the relay sends what cannot be sent now.
        """
        message = OutboxMessage(task=task, arguments=arguments)
        session.add(message)

        async def send_soon() -> None:
            sending = asyncio.create_task(self._send(message))
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)

        session.after_commit(send_soon)

    async def settle(self) -> None:
        """Waits until committed messages are sent, or left to the relay."""
        while self._sending:
            await asyncio.wait(self._sending)

    async def close(self) -> None:
        await self.settle()

    async def _send(self, message: OutboxMessage) -> None:
        try:
            await self._sender.send(message.task, message.arguments)
            async with self._database.write(EVERY_TENANT) as session:
                await _mark_sent(session, [message.id])
        except (TaskQueueUnavailable, DatabaseUnavailable) as error:
            log.warning(
                "message is left to the relay", message_id=message.id, task=message.task, error=str(error)
            )

    async def relay(self, *, older_than: float = RELAY_AFTER, limit: int = 100) -> int:
        """Sends messages that their writers did not; returns how many. Raises DatabaseUnavailable and
        TaskQueueUnavailable. Relays that run at the same time share the messages.
        """
        sent: list[int] = []
        failure: TaskQueueUnavailable | None = None
        async with self._database.write(EVERY_TENANT) as session:
            for message in await _lock_unsent(session, older_than, limit):
                try:
                    await self._sender.send(message.task, message.arguments)
                except TaskQueueUnavailable as error:
                    failure = error  # raised once the messages sent before it are marked
                    break
                sent.append(message.id)
            await _mark_sent(session, sent)
        if failure is not None:
            raise failure
        return len(sent)

    async def prune(self, *, older_than: float = KEEP_SENT) -> int:
        """Deletes messages sent more than `older_than` seconds ago; returns how many. Raises
        DatabaseUnavailable.
        """
        long_ago = func.now() - timedelta(seconds=older_than)
        async with self._database.write(EVERY_TENANT) as session:
            gone = delete(OutboxMessage).where(OutboxMessage.sent_at < long_ago).returning(OutboxMessage.id)
            return len((await session.execute(gone)).all())


async def _lock_unsent(session: WriteSession, older_than: float, limit: int) -> list[OutboxMessage]:
    waiting = (
        select(OutboxMessage)
        .where(OutboxMessage.sent_at.is_(None))
        .where(OutboxMessage.created_at <= func.now() - timedelta(seconds=older_than))
        .order_by(OutboxMessage.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return list((await session.execute(waiting)).scalars())


async def _mark_sent(session: WriteSession, ids: list[int]) -> None:
    if ids:
        sent = update(OutboxMessage).where(OutboxMessage.id.in_(ids), OutboxMessage.sent_at.is_(None))
        # The session's own copies of the rows are not updated: they are not read again.
        await session.execute(
            sent.values(sent_at=func.now()), execution_options={"synchronize_session": False}
        )
