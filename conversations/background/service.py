"""Queues background responses, leases them to the API processes that run them, and stores their events.

The row of a response is its place in the queue. A lease is claimed in the row and renewed by a heartbeat; the
row's `fence` is its fencing token: a process that stalled while another took over, or while the response was
cancelled or deleted, can no longer change anything.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from conversations.background.repository import BackgroundRepository, BackgroundRows
from conversations.errors import LeaseLost, NotInBackground, QueueFull, ResponseNotFound
from conversations.limits import MAX_UNFINISHED
from conversations.models import UNFINISHED, ResponseEvents, StoredResponse
from conversations.owner import Owner
from conversations.repository import unlock_all
from conversations.responses.repository import ResponseRepository
from conversations.responses.service import (
    ResponseRecord,
    ResponseService,
    content_of,
    record_of,
    row_of,
)
from conversations.sealing import ContentSealer
from db.session import EVERY_TENANT, Database, WriteSession

LEASE_SECONDS = 15.0
Event = tuple[int, bytes]
"""Sequence number, and the server-sent event."""


@dataclass(frozen=True, slots=True)
class ClaimedResponse:
    """A response that this process has the lease of."""

    tenant_id: str
    project_id: str
    key_id: str
    record: ResponseRecord
    request: bytes
    """The body of its request."""
    fence: int
    """1 for the first attempt."""
    next_sequence: int
    """Number of its next event."""


@dataclass(frozen=True, slots=True)
class EventsPage:
    """Stored events beyond those that a client has."""

    events: list[Event]
    record: ResponseRecord


class BackgroundQueue:
    """The background responses of all tenants. All methods raise DatabaseUnavailable."""

    def __init__(self, database: Database, sealer: ContentSealer, responses: ResponseService) -> None:
        self._database = database
        self._sealer = sealer
        self._responses = responses

    async def add(
        self, owner: Owner, record: ResponseRecord, request: bytes, events: Sequence[Event] = ()
    ) -> None:
        """Queues a response, with its first events. Raises QueueFull."""
        row = row_of(self._sealer, owner, record)
        row.sealed_request = self._sealer.seal_bytes(request, owner.tenant_id, _request(record.id))
        async with self._database.write(owner.tenant_id) as session:
            rows = BackgroundRepository(session, owner)
            await rows.advisory_lock(f"background responses of {owner.project_id}")
            if await rows.num_unfinished() >= MAX_UNFINISHED:
                raise QueueFull(
                    f"the project has {MAX_UNFINISHED} background responses that have not ended; wait until "
                    "some have, or cancel them"
                )
            rows.add_own(row)
            await session.flush()
            self._add_events(session, owner.tenant_id, record.id, 0, events)

    async def claim(self, process: str, limit: int, seconds: float = LEASE_SECONDS) -> list[ClaimedResponse]:
        """Leases up to `limit` responses that no process runs to `process`."""
        claimed = []
        async with self._database.write(EVERY_TENANT) as session:
            rows = BackgroundRows(session)
            for row in await rows.claim(process, seconds, limit):
                last = await rows.last_sequence(row.id)
                if row.fence > 1:  # what an interrupted attempt wrote is generated again
                    await rows.delete_attempt(row.id)
                claimed.append(self._claimed(row, last + 1))
        return claimed

    def _claimed(self, row: StoredResponse, next_sequence: int) -> ClaimedResponse:
        assert row.sealed_request is not None, "unfinished responses have their request"
        return ClaimedResponse(
            tenant_id=row.tenant_id,
            project_id=row.project_id,
            key_id=row.key_id,
            record=record_of(self._sealer, row),
            request=self._sealer.open_bytes(row.sealed_request, row.tenant_id, _request(row.id)),
            fence=row.fence,
            next_sequence=next_sequence,
        )

    async def beat(self, process: str, held: Mapping[str, int], seconds: float = LEASE_SECONDS) -> set[str]:
        """Extends the leases of the responses in `held`, which has their fencing tokens; returns the ids of
        those that are lost: taken by another process, cancelled or deleted.
        """
        async with self._database.write(EVERY_TENANT) as session:
            ours = await BackgroundRows(session).beat(process, seconds, held)
        return {response_id for response_id, fence in held.items() if ours.get(response_id) != fence}

    async def release(self, process: str, ids: Collection[str]) -> None:
        """Gives responses back, so that another process can take them at once."""
        async with self._database.write(EVERY_TENANT) as session:
            await BackgroundRows(session).release(process, ids)

    async def write_events(self, claimed: ClaimedResponse, events: Sequence[Event]) -> None:
        """Stores events of a running response. Raises LeaseLost."""
        async with self._database.write(claimed.tenant_id) as session:
            if await BackgroundRows(session).hold(claimed.record.id, claimed.fence) is None:
                raise LeaseLost(claimed.record.id)
            self._add_events(session, claimed.tenant_id, claimed.record.id, claimed.fence, events)

    async def finish(
        self, claimed: ClaimedResponse, owner: Owner, record: ResponseRecord, events: Sequence[Event] = ()
    ) -> None:
        """Stores the end of a response with its last events, and adds its items to its conversation unless
        it failed.

        Raises LeaseLost; ConversationNotFound, ConversationLocked, TooMuchContext as `ResponseService.save`.
        """
        async with self._database.write(claimed.tenant_id) as session:
            row = await BackgroundRows(session).hold(record.id, claimed.fence)
            if row is None:
                raise LeaseLost(record.id)
            for column, value in content_of(self._sealer, owner, record).items():
                setattr(row, column, value)
            _end(row)
            self._add_events(session, claimed.tenant_id, claimed.record.id, claimed.fence, events)
            if record.status == "failed":
                await unlock_all(session, record.id)
            else:
                await self._responses.add_to_conversation(session, owner, record)

    async def cancel(self, owner: Owner, response_id: str) -> ResponseRecord:
        """Cancels a response; returns it. One that has ended stays as it is. Raises ResponseNotFound,
        NotInBackground.
        """
        async with self._database.write(owner.tenant_id) as session:
            row = await ResponseRepository(session, owner).find(response_id, lock=True)
            if row is None:
                raise ResponseNotFound(response_id)
            if not row.is_background:
                raise NotInBackground(
                    "only background responses can be cancelled: close the connection of others",
                    "response_id",
                )
            if row.status in UNFINISHED:
                row.status = "cancelled"
                row.fence += 1
                _end(row)
                await unlock_all(session, row.id)
        return record_of(self._sealer, row)

    async def events(self, owner: Owner, response_id: str, after: int) -> EventsPage:
        """Returns stored events beyond the sequence number `after`, and the response. Raises
        ResponseNotFound.
        """
        async with self._database.read(owner.tenant_id) as session:
            row = await ResponseRepository(session, owner).find(response_id)
            if row is None:
                raise ResponseNotFound(response_id)
            found = await BackgroundRepository(session, owner).events(response_id, after)
        events: list[Event] = []
        for sequence, sealed in found:
            packed = self._sealer.open_bytes(sealed, owner.tenant_id, _events(response_id, sequence))
            events += [event for event in _decode_events(packed) if event[0] > after]
        return EventsPage(events, record_of(self._sealer, row))

    def _add_events(
        self, session: WriteSession, tenant_id: str, response_id: str, fence: int, events: Sequence[Event]
    ) -> None:
        if not events:
            return
        sequence, packed = events[-1][0], msgspec.msgpack.encode(events)
        session.add(
            ResponseEvents(
                response_id=response_id,
                sequence=sequence,
                tenant_id=tenant_id,
                fence=fence,
                sealed=self._sealer.seal_bytes(packed, tenant_id, _events(response_id, sequence)),
            )
        )


_decode_events: Any = msgspec.msgpack.Decoder(list[Event]).decode


def _end(row: StoredResponse) -> None:
    row.sealed_request = row.lease_owner = row.lease_until = None


def _request(response_id: str) -> str:
    return f"response.request {response_id}"


def _events(response_id: str, sequence: int) -> str:
    return f"response.events {response_id} {sequence}"
