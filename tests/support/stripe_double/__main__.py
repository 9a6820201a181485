"""`python -m tests.support.stripe_double`: serve until the input ends; the first line printed is the URL.

Webhooks are sent to the endpoints given (URL and secret) about once a second.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

import httpx

from tests.support.stripe_double.server import StripeDouble


async def deliver(double: StripeDouble) -> None:
    async with httpx.AsyncClient(timeout=10) as client:
        while True:
            await double.deliveries.deliver(client)
            await asyncio.sleep(1)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", nargs=2, action="append", default=[], metavar=("URL", "SECRET"))
    given = parser.parse_args()
    with StripeDouble().serving() as double:
        for url, secret in given.endpoint:
            double.endpoint(url, secret)
        print(double.url, flush=True)
        delivering = asyncio.create_task(deliver(double))
        await asyncio.to_thread(sys.stdin.read)
        delivering.cancel()


if __name__ == "__main__":
    asyncio.run(main())
