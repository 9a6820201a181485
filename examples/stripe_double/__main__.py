"""`python -m examples.stripe_double`: serves until its input ends; the first line printed is the URL.

Webhooks are sent about once a second to the endpoints given (URL and secret). The demo passes a socket
(`--listen-fd`), a file to remember everything in (`--keep`), the URL for webhooks (`--webhooks`), and, in the
environment, the service's key and secret (`ROOTSTOCK_STRIPE_API_KEY`, `ROOTSTOCK_STRIPE_WEBHOOK_SECRET`);
then the double has pages for people, its time is the real one, and it serves until it is terminated.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import httpx

from examples.stripe_double.request_log import RequestLog
from examples.stripe_double.server import API_KEY, StripeDouble


async def deliver(double: StripeDouble) -> None:
    async with httpx.AsyncClient(timeout=10) as client:
        while True:
            if double.kept is not None:
                double.let_time_pass()
            await double.deliveries.deliver(client)
            await asyncio.sleep(1)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", nargs=2, action="append", default=[], metavar=("URL", "SECRET"))
    parser.add_argument("--listen-fd", type=int)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--webhooks", metavar="URL")
    given = parser.parse_args()
    listener = socket.socket(fileno=given.listen_fd) if given.listen_fd is not None else None
    double = StripeDouble(os.environ.get("ROOTSTOCK_STRIPE_API_KEY") or API_KEY)
    if listener is not None:
        double.books.pages = f"http://127.0.0.1:{listener.getsockname()[1]}"
    if given.keep is not None:
        double.remember(RequestLog(given.keep, double.books.draws))
    for url, secret in given.endpoint:
        double.endpoint(url, secret)
    if given.webhooks is not None:
        double.endpoint(given.webhooks, os.environ["ROOTSTOCK_STRIPE_WEBHOOK_SECRET"])
    with double.serving(listener):
        print(double.url, flush=True)
        delivering = asyncio.create_task(deliver(double))
        await (asyncio.to_thread(sys.stdin.read) if listener is None else told_to_stop())
        delivering.cancel()


async def told_to_stop() -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()


if __name__ == "__main__":
    asyncio.run(main())
