"""A sender that is killed with SIGKILL: of meter events at a chosen instant of its second event, or of an
invoice right after a chosen step: `python -m tests.support.killed_sender`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import datetime, timedelta
from typing import Any, NoReturn

import redis.asyncio
from pydantic import SecretStr

from billing.payments import sending
from billing.payments.documents import DocumentSending
from billing.payments.dunning import Dunning
from billing.payments.sending import Sending, Sent
from billing.payments.settings import StripeSettings
from billing.stripe_gateway import StripeGateway
from db.session import Database

INSTANTS = ("claimed", "arrived", "settled")
STEPS = ("create_invoice", "add_lines", "finalize")


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


async def send_documents(database_url: str, gateway: StripeGateway, step: str, now: datetime) -> None:
    done = getattr(gateway.documents, step)

    async def last(*arguments: Any) -> None:
        await done(*arguments)
        die()

    setattr(gateway.documents, step, last)
    database = Database(database_url)
    dunning = Dunning(database, redis.asyncio.Redis(), gateway, grace=timedelta(days=7))
    await DocumentSending(database, gateway, dunning, clock=lambda: now).send()


async def main(database_url: str, stripe_url: str, api_key: str, instant: str, now: str) -> None:
    gateway = StripeGateway(StripeSettings(api_key=SecretStr(api_key), api_base=stripe_url))
    moment = datetime.fromisoformat(now)
    if instant in STEPS:
        await send_documents(database_url, gateway, instant, moment)
    assert instant in INSTANTS
    sender = KilledSender(Database(database_url), gateway, per_second=1000, clock=lambda: moment)
    sender.instant = instant
    await sender.send()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:6]))
