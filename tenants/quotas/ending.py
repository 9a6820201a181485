"""Telling Redis what reservations have used: at once, in one packet a turn of the loop, until it has heard.

Owns what is yet to be told. Redis may forget the last second before it dies, so what was told just before it
went away is told once more: the script settles once, whoever says it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tenants.limits.kinds import NOTHING, Amounts
from tenants.quotas.link import Link, LinkDown, ReplyError
from tenants.quotas.plan import CompiledPlan
from tenants.quotas.reservation import Reservation
from tenants.quotas.scripts import UNKNOWN, Scripts

logger = logging.getLogger(__name__)

MAX_UNTOLD = 100_000
"""Reservations beyond which the oldest are left to the usage journal."""
FORGET_AFTER = 3.0
"""Seconds after which Redis is sure to have on disk what it was told."""
REMEMBERED_FOR = 240.0
"""Seconds for which Redis surely remembers what has ended: told again later, it could be charged twice."""
MEMORY_MS = 300_000
RETRY_AFTER = 0.5

TakeAgain = Callable[[Reservation], Awaitable[None]]


@dataclass(slots=True, eq=False)
class _Ending:
    reservation: Reservation
    packed: bytes
    may_be_unknown: bool
    """Whether the reservation may never have been made."""
    told_at: float = 0.0


class Endings:
    def __init__(self, link: Link, scripts: Scripts, take_again: TakeAgain) -> None:
        self._link = link
        self._scripts = scripts
        self._take_again = take_again
        self._untold: deque[_Ending] = deque()
        self._told: deque[_Ending] = deque()
        self._asked: set[asyncio.Future[Any]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._repairs: set[asyncio.Task[None]] = set()

    def settle(self, reservation: Reservation, plan: CompiledPlan, used: Amounts) -> None:
        self._tell(_Ending(reservation, self._packed(reservation, plan, used), False))

    def withdraw(self, reservation: Reservation) -> None:
        """Nobody knows whether it was made: if it was, it is to be returned."""
        assert reservation.plan is not None
        reservation.ended = True
        self._tell(_Ending(reservation, self._packed(reservation, reservation.plan, NOTHING), True))

    def tell_again(self) -> None:
        """The connection is new: tell what was not heard, or perhaps not kept."""
        horizon = max(self._link.lost_at - FORGET_AFTER, time.monotonic() - REMEMBERED_FOR)
        again = [ending for ending in self._told if ending.told_at > horizon]
        self._told.clear()
        again += self._untold
        self._untold.clear()
        for ending in again:
            self._tell(ending)

    async def drain(self, patience: float) -> None:
        """Wait until everything is told and answered, at most `patience` seconds."""
        try:
            async with asyncio.timeout(patience):
                while self._untold or self._asked or self._repairs:
                    if self._asked or self._repairs:
                        await asyncio.wait([*self._asked, *self._repairs])
                    else:
                        await asyncio.sleep(0.01)
        except TimeoutError:
            left = len(self._untold) + len(self._asked) + len(self._repairs)
            logger.warning("%d reservations are left to the usage journal", left)
        if self._retry is not None:
            self._retry.cancel()
        for repair in self._repairs:
            repair.cancel()

    def _packed(self, reservation: Reservation, plan: CompiledPlan, used: Amounts) -> bytes:
        amounts = (used.requests, used.input_tokens, used.output_tokens, used.spend)
        request_id = reservation.request_id.encode()
        return self._scripts.settle(plan.tag, request_id, amounts, memory_ms=MEMORY_MS)

    def _tell(self, ending: _Ending) -> None:
        try:
            answer = self._link.call(ending.packed)
        except LinkDown:
            self._keep(ending)
            return
        self._asked.add(answer)
        answer.add_done_callback(partial(self._answered, ending))

    def _keep(self, ending: _Ending) -> None:
        self._untold.append(ending)
        if len(self._untold) > MAX_UNTOLD:
            dropped = self._untold.popleft()
            logger.error("%s is left to the usage journal: too many wait", dropped.reservation.request_id)

    def _answered(self, ending: _Ending, answer: asyncio.Future[Any]) -> None:
        self._asked.discard(answer)
        if answer.cancelled():
            self._keep(ending)
            return
        error = answer.exception()
        if error is None:
            now = ending.told_at = time.monotonic()
            told = self._told
            told.append(ending)
            while told[0].told_at < now - FORGET_AFTER:
                told.popleft()
            if answer.result() == UNKNOWN and not ending.may_be_unknown:
                self._repair(ending)
            return
        self._keep(ending)
        if isinstance(error, ReplyError) and self._retry is None:
            # Redis is there and refuses: its scripts are gone, it is loading, or it is a replica for now.
            self._retry = asyncio.get_running_loop().call_later(RETRY_AFTER, self._reload)

    def _reload(self) -> None:
        self._retry = None
        if not self._link.up:
            return
        for load in self._scripts.load():
            self._link.call(load).add_done_callback(_heed)
        self.tell_again()

    def _repair(self, ending: _Ending) -> None:
        """Redis has lost the reservation: what it used counts nevertheless."""
        ending.may_be_unknown = True  # once
        task = asyncio.create_task(self._settle_lost(ending))
        self._repairs.add(task)
        task.add_done_callback(self._repairs.discard)

    async def _settle_lost(self, ending: _Ending) -> None:
        try:
            await self._take_again(ending.reservation)
        except Exception as error:  # noqa: BLE001  whatever it is, the ledger has it
            logger.warning("%s is left to the ledger: %s", ending.reservation.request_id, error)
        else:
            self._tell(ending)


def _heed(answer: asyncio.Future[Any]) -> None:
    """What became of it shows in the next call."""
    if not answer.cancelled():
        answer.exception()
