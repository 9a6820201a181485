"""Sends meter events to the payment provider, each exactly once whatever fails in between.

An attempt is recorded before it is made, so a process that dies afterwards, or gets no response, leaves a row
that may have arrived. Within a day it is sent again, because the provider recognizes the identifier. Later,
the provider's sum for the hour is compared first. What cannot be decided, or is too old to be accepted, waits
for an operator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import structlog

from billing.months import begin, month_of
from billing.payments.errors import ProviderRefused, ProviderUnavailable
from billing.payments.gateway import PaymentGateway
from billing.payments.models import Document, MeterEvent
from billing.payments.repository import SendingQueue
from db.session import EVERY_TENANT, Database
from telemetry.tasks import gather_all

log = structlog.get_logger(__name__)

KNOWN_FOR = timedelta(hours=23)
"""The provider recognizes identifiers for 24 hours; one hour is left for clock differences."""
OLDEST = timedelta(days=35) - timedelta(hours=1)
"""The provider accepts no older times."""
MONTH_STAYS_OPEN = timedelta(minutes=50)
"""A month's invoice is final an hour after the month; until shortly before, its usage is accepted."""
SUMMED_AFTER = timedelta(minutes=15)
"""Summaries lag behind: they may lack events sent less than this ago."""
FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=5), timedelta(minutes=15)
CLAIMED = 8
"""Events sent at the same time, at most one per tenant."""

Clock = Callable[[], datetime]
HOUR = timedelta(hours=1)


@dataclass(slots=True)
class Sent:
    """The result of one round of sending."""

    arrived: int = 0
    manual: int = 0
    unavailable: bool = False
    """The provider was unavailable; the rest waits for the next round."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    """An event as it was claimed. `ask`: it may have arrived, and is too old to be sent again without asking
    the provider.
    """

    key: tuple[str, datetime, int]
    customer: str
    value: int
    identifier: str
    timestamp: datetime
    ask: bool
    renewed: datetime | None
    """The time to meter it with if it has not arrived and its own time can no longer be billed."""


class Sending:
    """Sends meter events; several senders at the same time share the queue."""

    def __init__(
        self,
        database: Database,
        gateway: PaymentGateway,
        *,
        per_second: float = 20.0,
        clock: Clock = lambda: datetime.now(UTC),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._database = database
        self._gateway = gateway
        self._pace = 1 / per_second
        self._clock = clock
        self._sleep = sleep

    async def send(self, *, max_events: int = 10_000) -> Sent:
        """Sends due events until none is left or the provider is unavailable. Raises DatabaseUnavailable."""
        done = Sent()
        while done.arrived + done.manual < max_events and not done.unavailable:
            attempts = await self._claim(done)
            if attempts is None:
                break
            await gather_all(
                *(self._attempt(attempt, number, done) for number, attempt in enumerate(attempts))
            )
            await self._sleep(self._pace * len(attempts))
        return done

    # Events -------------------------------------------------------------------------------------------------

    async def _claim(self, done: Sent) -> list[_Attempt] | None:
        """Claims due events and records the attempts. Returns None if nothing is due."""
        now = self._clock()
        async with self._database.write(EVERY_TENANT) as session:
            queue = SendingQueue(session)
            found = await queue.due_events(now, CLAIMED)
            attempts = []
            for event, customer in found:
                if event.hour < now - OLDEST:
                    unsure = " and may have arrived" if event.first_attempt_at else ""
                    leave_to_operator(event, f"older than the provider takes{unsure}", now)
                    done.manual += 1
                    continue
                attempt = self._prepare(event, customer, await queue.started_at(event.tenant_id), now)
                if attempt is not None:
                    attempts.append(attempt)
        return attempts if found else None

    def _prepare(
        self, event: MeterEvent, customer: str, started_at: datetime | None, now: datetime
    ) -> _Attempt | None:
        """Records the attempt; returns None if the event must wait until the provider's sum includes it."""
        metered_with = _metered_with(event.hour, started_at, now)
        renewed: datetime | None = None
        ask = False
        if event.first_attempt_at is not None:
            assert event.timestamp is not None
            moved = event.timestamp != metered_with and event.timestamp < _open_since(started_at, now)
            ask = moved or event.first_attempt_at <= now - KNOWN_FOR
            renewed = metered_with if moved else None
            assert event.last_attempt_at is not None
            summed_at = event.last_attempt_at + SUMMED_AFTER
            if ask and now < summed_at:
                event.next_attempt_at = summed_at
                return None
        else:
            event.first_attempt_at = now
            event.timestamp = metered_with
        if not ask:
            event.last_attempt_at = now
        event.attempts += 1
        event.next_attempt_at = now + _pause(event.attempts)
        key = (event.tenant_id, event.hour, event.number)
        assert event.timestamp is not None
        return _Attempt(key, customer, event.value, event.identifier, event.timestamp, ask, renewed)

    async def _attempt(self, attempt: _Attempt, number: int, done: Sent) -> None:
        await self._sleep(self._pace * number)
        if done.unavailable:
            return
        try:
            timestamp = attempt.timestamp
            if attempt.ask:
                found = await self._has_arrived(attempt)
                if found is not False:
                    await self._end(attempt, found, done)
                    return
                timestamp = attempt.renewed or timestamp
                await self._begin_again(attempt, timestamp)
            await self._gateway.meter(attempt.customer, attempt.value, timestamp, attempt.identifier)
        except ProviderUnavailable as error:
            done.unavailable = True
            log.warning("meter event waits", identifier=attempt.identifier, error=str(error))
            await self._note(attempt, str(error), nothing_done=not error.maybe_done)
        except ProviderRefused as error:
            await self._end(attempt, str(error), done)
        else:
            await self._end(attempt, True, done)

    async def _has_arrived(self, attempt: _Attempt) -> bool | str:
        """Returns whether the event arrived, or the reason why that cannot be decided."""
        start = attempt.timestamp.replace(minute=0, second=0, microsecond=0)
        there = await self._gateway.metered(attempt.customer, start, start + HOUR)
        async with self._database.read(EVERY_TENANT) as session:
            known = await SendingQueue(session).arrived(attempt.key[0], start)
        if there == known:
            return False
        if there == known + attempt.value:
            return True
        return f"the provider has {there} for {start.isoformat()}, we {known} and perhaps {attempt.value}"

    async def _begin_again(self, attempt: _Attempt, timestamp: datetime) -> None:
        """Records that the event has not arrived: its identifier is recognized for another day."""
        async with self._database.write(EVERY_TENANT) as session:
            event = await SendingQueue(session).lock(MeterEvent, attempt.key)
            event.first_attempt_at = event.last_attempt_at = self._clock()
            event.timestamp = timestamp

    async def _end(self, attempt: _Attempt, arrived: bool | str, done: Sent) -> None:
        async with self._database.write(EVERY_TENANT) as session:
            event = await SendingQueue(session).lock(MeterEvent, attempt.key)
            if event.state != "pending":
                return
            if arrived is True:
                event.state, event.settled_at, event.error = "sent", self._clock(), ""
                done.arrived += 1
            else:
                leave_to_operator(event, str(arrived), self._clock())
                done.manual += 1

    async def _note(self, attempt: _Attempt, error: str, *, nothing_done: bool) -> None:
        async with self._database.write(EVERY_TENANT) as session:
            event = await SendingQueue(session).lock(MeterEvent, attempt.key)
            event.error = error
            if nothing_done and event.attempts == 1:
                event.first_attempt_at = event.last_attempt_at = event.timestamp = None


def leave_to_operator(row: MeterEvent | Document, why: str, now: datetime) -> None:
    row.state, row.error, row.settled_at = "manual", why, now
    if isinstance(row, MeterEvent):
        log.error("meter event needs an operator", identifier=row.identifier, error=why)
    else:
        log.error("document needs an operator", document_id=row.id, error=why)


def _open_since(started_at: datetime | None, now: datetime) -> datetime:
    """Returns the earliest time that is still billed: earlier months are invoiced, or not subscribed."""
    month = begin(month_of(now - MONTH_STAYS_OPEN))
    return month if started_at is None else max(month, started_at)


def _metered_with(hour: datetime, started_at: datetime | None, now: datetime) -> datetime:
    """Returns the hour itself while it can be billed, then the present minute so that it is billed."""
    return hour if hour >= _open_since(started_at, now) else now.replace(second=0, microsecond=0)


def _pause(attempts: int) -> timedelta:
    return min(FIRST_PAUSE * 2 ** min(attempts - 1, 10), LONGEST_PAUSE)
