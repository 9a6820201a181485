"""Messages to the task queue, decided on in a transaction: written with it, sent after it, never lost.

Owns the rows and their way into the queue: at once by whoever wrote them, else by the relay that the workers
run. A message may be sent twice (whoever sends it may die before it is marked), so tasks are idempotent.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, Identity, Index, delete, func, select, text, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base
from db.errors import DatabaseUnavailable
from db.session import EVERY_TENANT, Database, WriteSession
from db.tasks import TaskQueueUnavailable, TaskSender

logger = logging.getLogger(__name__)

RELAY_AFTER = 2.0
"""Seconds its writer has to send a message before the relay does."""
KEEP_SENT = 24 * 3600.0
"""Seconds a sent message is kept, for whoever asks what was sent."""


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
    """A process's outbox. `close` it before the database and the sender it was given."""

    def __init__(self, database: Database, sender: TaskSender) -> None:
        self._database = database
        self._sender = sender
        self._sending: set[asyncio.Task[None]] = set()

    def add(self, session: WriteSession, task: str, arguments: dict[str, Any]) -> None:
        """Have `task` run once this transaction is committed, and never if it is rolled back.

        Nobody waits for the sending, and it fails nobody: what cannot be sent now, the relay sends.
        """
        message = OutboxMessage(task=task, arguments=arguments)
        session.add(message)

        async def send_soon() -> None:
            sending = asyncio.create_task(self._send(message))
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)

        session.after_commit(send_soon)

    async def settle(self) -> None:
        """Wait until what was committed is sent, or left to the relay."""
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
            logger.warning("message %d (%s) is left to the relay: %s", message.id, message.task, error)

    async def relay(self, *, older_than: float = RELAY_AFTER, limit: int = 100) -> int:
        """Send what its writer did not; how many. Raises DatabaseUnavailable, TaskQueueUnavailable.

        Several relays at once share the messages among them.
        """
        sent: list[int] = []
        failure: TaskQueueUnavailable | None = None
        async with self._database.write(EVERY_TENANT) as session:
            for message in await _lock_unsent(session, older_than, limit):
                try:
                    await self._sender.send(message.task, message.arguments)
                except TaskQueueUnavailable as error:
                    failure = error  # but what was sent before it is marked
                    break
                sent.append(message.id)
            await _mark_sent(session, sent)
        if failure is not None:
            raise failure
        return len(sent)

    async def prune(self, *, older_than: float = KEEP_SENT) -> int:
        """Forget messages sent long ago; how many. Raises DatabaseUnavailable."""
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
        # Not in the session's own copies of the rows: nobody reads them again.
        await session.execute(
            sent.values(sent_at=func.now()), execution_options={"synchronize_session": False}
        )
