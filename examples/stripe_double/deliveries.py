"""Sends the double's webhooks: signed, until they are accepted; twice or out of order on demand.

Signatures have the real time, whatever the test clock says, as Stripe's do.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import random
import time
from dataclasses import dataclass, field

import httpx

from examples.stripe_double.state import Object, State


def signed(payload: bytes, secret: str, at: float | None = None) -> str:
    """Returns the header `Stripe-Signature`."""
    timestamp = int(time.time() if at is None else at)
    mac = hmac.new(secret.encode(), b"%d." % timestamp + payload, hashlib.sha256)
    return f"t={timestamp},v1={mac.hexdigest()}"


@dataclass
class Endpoint:
    url: str
    secret: str
    delivered: list[str] = field(default_factory=list)
    """Ids of accepted events."""


class Deliveries:
    """Sends events only when called: tests decide when an event arrives."""

    def __init__(self, books: State) -> None:
        self._books = books
        self.endpoints: list[Endpoint] = []

    def waiting(self, endpoint: Endpoint) -> list[Object]:
        with self._books.lock:
            return [event for event in self._books.events if event["id"] not in endpoint.delivered]

    async def deliver(
        self,
        client: httpx.AsyncClient,
        *,
        shuffle: random.Random | None = None,
        twice: bool = False,
        only: str | None = None,
    ) -> list[int]:
        """Sends every event that was not accepted yet, only those of type `only` if given; returns the
        response statuses. Events that are not accepted wait for the next call.
        """
        statuses = []
        for endpoint in self.endpoints:
            events = [event for event in self.waiting(endpoint) if only in (None, event["type"])]
            if twice:
                events = events + events
            if shuffle is not None:
                shuffle.shuffle(events)
            for event in events:
                statuses.append(await self.send(client, endpoint, event))
        return statuses

    async def send(self, client: httpx.AsyncClient, endpoint: Endpoint, event: Object) -> int:
        payload = json.dumps(event, indent=2).encode()
        headers = {
            "stripe-signature": signed(payload, endpoint.secret),
            "content-type": "application/json; charset=utf-8",
        }
        try:
            answer = await client.post(endpoint.url, content=payload, headers=headers)
        except httpx.HTTPError:
            return 0
        if answer.status_code // 100 == 2 and event["id"] not in endpoint.delivered:
            endpoint.delivered.append(event["id"])
        return answer.status_code
