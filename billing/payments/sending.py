"""The way of meter events to the provider: once each, whatever fails in between.

An attempt is written down before it is made. Who dies after that leaves a row that may have arrived, and so
does who hears no answer. Within a day it is sent again: the provider knows the identifier. After that it is
asked first what it has for the hour. What cannot be told, or is too old to be taken, waits for a person.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from billing.months import begin, month_of
from billing.payments.errors import ProviderRefused, ProviderUnavailable
from billing.payments.gateway import PaymentGateway
from billing.payments.models import Document, MeterEvent
from billing.payments.repository import SendingQueue
from db.session import EVERY_TENANT, Database

logger = logging.getLogger(__name__)

KNOWN_FOR = timedelta(hours=23)
"""The provider knows identifiers for 24 hours; the rest is for clocks."""
OLDEST = timedelta(days=35) - timedelta(hours=1)
"""The provider takes no older times."""
MONTH_STAYS_OPEN = timedelta(minutes=50)
"""A month's invoice is final an hour after the month: until shortly before, its usage is taken."""
SUMMED_AFTER = timedelta(minutes=15)
"""Summaries lag behind: what was sent less than this ago may be missing in one."""
FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=5), timedelta(minutes=15)
CLAIMED = 8
"""Tenants sent for at once; of one tenant, one event."""

Clock = Callable[[], datetime]
HOUR = timedelta(hours=1)


@dataclass(slots=True)
class Sent:
    """What one round of sending did."""

    arrived: int = 0
    manual: int = 0
    unavailable: bool = False
    """The provider was away: what is left waits for the next round."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    """An event as it was when it was taken. `ask`: it may have arrived, and is too old to be sent again
    unasked.
    """

    key: tuple[str, datetime, int]
    customer: str
    value: int
    identifier: str
    timestamp: datetime
    ask: bool
    renewed: datetime | None
    """Where it must be given a later time if it has not arrived: the one it can be metered with now."""


class Sending:
    """One sender; several at once share the rows among them."""

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
        """Send what is due, until none is or the provider is away. Raises DatabaseUnavailable."""
        done = Sent()
        while done.arrived + done.manual < max_events and not done.unavailable:
            attempts = await self._claim(done)
            if attempts is None:
                break
            await asyncio.gather(
                *(self._attempt(attempt, number, done) for number, attempt in enumerate(attempts))
            )
            await self._sleep(self._pace * len(attempts))
        return done

    # Events -------------------------------------------------------------------------------------------------

    async def _claim(self, done: Sent) -> list[_Attempt] | None:
        """Take due events and write down that they are tried. None: nothing is due."""
        now = self._clock()
        async with self._database.write(EVERY_TENANT) as session:
            queue = SendingQueue(session)
            found = await queue.due_events(now, CLAIMED)
            attempts = []
            for event, customer in found:
                if event.hour < now - OLDEST:
                    unsure = " and may have arrived" if event.first_attempt_at else ""
                    give_up(event, f"older than the provider takes{unsure}", now)
                    done.manual += 1
                    continue
                attempt = self._prepare(event, customer, await queue.started_at(event.tenant_id), now)
                if attempt is not None:
                    attempts.append(attempt)
        return attempts if found else None

    def _prepare(
        self, event: MeterEvent, customer: str, started_at: datetime | None, now: datetime
    ) -> _Attempt | None:
        """Mark the event as tried; None when it must wait until it can be asked for."""
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
            logger.warning("meter event %s waits: %s", attempt.identifier, error)
            await self._note(attempt, str(error), nothing_done=not error.maybe_done)
        except ProviderRefused as error:
            await self._end(attempt, str(error), done)
        else:
            await self._end(attempt, True, done)

    async def _has_arrived(self, attempt: _Attempt) -> bool | str:
        """Or why that cannot be told."""
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
        """It has not arrived: the identifier is good for another day."""
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
                give_up(event, str(arrived), self._clock())
                done.manual += 1

    async def _note(self, attempt: _Attempt, error: str, *, nothing_done: bool) -> None:
        async with self._database.write(EVERY_TENANT) as session:
            event = await SendingQueue(session).lock(MeterEvent, attempt.key)
            event.error = error
            if nothing_done and event.attempts == 1:
                event.first_attempt_at = event.last_attempt_at = event.timestamp = None


def give_up(row: MeterEvent | Document, why: str, now: datetime) -> None:
    row.state, row.error, row.settled_at = "manual", why, now
    name = row.identifier if isinstance(row, MeterEvent) else row.id
    logger.error("%s needs a person: %s", name, why)


def _open_since(started_at: datetime | None, now: datetime) -> datetime:
    """Earlier times are billed no more: their month is invoiced, or there was no subscription yet."""
    month = begin(month_of(now - MONTH_STAYS_OPEN))
    return month if started_at is None else max(month, started_at)


def _metered_with(hour: datetime, started_at: datetime | None, now: datetime) -> datetime:
    """The hour itself while it can be billed; after that the present minute, so that it is billed at all."""
    return hour if hour >= _open_since(started_at, now) else now.replace(second=0, microsecond=0)


def _pause(attempts: int) -> timedelta:
    return min(FIRST_PAUSE * 2 ** min(attempts - 1, 10), LONGEST_PAUSE)
