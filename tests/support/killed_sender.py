"""A sender of meter events that is killed with SIGKILL at a chosen instant of its second event: `python -m
tests.support.killed_sender`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import datetime
from typing import Any, NoReturn

from billing.payments import sending
from billing.payments.sending import Sending, Sent
from billing.payments.settings import StripeSettings
from billing.stripe_gateway import StripeGateway
from db.session import Database

INSTANTS = ("claimed", "arrived", "settled")


def die(*_: Any) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


class KilledSender(Sending):
    instant = ""
    count = 0

    async def _attempt(self, attempt: sending._Attempt, number: int, done: Sent) -> None:
        self.count += 1
        if self.count == 2 and self.instant == "claimed":
            die()
        await super()._attempt(attempt, number, done)
        if self.count == 2 and self.instant == "settled":
            die()

    async def _end(self, attempt: sending._Attempt, arrived: bool | str, done: Sent) -> None:
        if self.count == 2 and self.instant == "arrived":
            die()
        await super()._end(attempt, arrived, done)


async def main(database_url: str, stripe_url: str, api_key: str, instant: str, now: str) -> None:
    assert instant in INSTANTS
    gateway = StripeGateway(StripeSettings(api_key=api_key, api_base=stripe_url))
    moment = datetime.fromisoformat(now)
    sender = KilledSender(Database(database_url), gateway, per_second=1000, clock=lambda: moment)
    sender.instant = instant
    await sender.send()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:6]))
