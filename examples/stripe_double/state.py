"""Holds the double's state: objects by id, the clock, events, and actions that are due later.

Other modules (`invoicing`, `metering`, `payments`) add their operations to it.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]


class Refused(Exception):
    """An error response in Stripe's format."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        type: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error = {"type": type, "message": message, "code": code, "param": param}


class Clock:
    """Real time plus an offset, or a fixed time while a request is replayed."""

    def __init__(self) -> None:
        self._offset = 0.0
        self._held: float | None = None

    def now(self) -> int:
        return int(time.time() + self._offset if self._held is None else self._held)

    def travel(self, to: float) -> None:
        self._offset = to - time.time()

    def hold(self, at: float | None) -> None:
        self._held = at


class State:
    """Objects of every kind. Other threads must hold `lock` to use them."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.clock = Clock()
        self.objects: dict[str, Object] = {}
        self.events: list[Object] = []
        self.due: list[tuple[float, int, Callable[[], object]]] = []
        self._serial = itertools.count(1)
        self.pages = ""
        """Base URL of the double's own pages; empty: it has none, and links to Stripe's."""
        self.draws = f"{time.time_ns() % 0xFFFFFF:06x}"

    # Time --------------------------------------------------------------------------------------------------

    def now(self) -> int:
        return self.clock.now()

    def travel_to(self, moment: datetime) -> None:
        """Moves the clock to `moment`, and runs actions that are due until then, each at its time."""
        target = moment.timestamp()
        with self.lock:
            self._do_due(target)
            self.clock.hold(None)
            self.clock.travel(target)

    def stand_at(self, at: float) -> None:
        """Runs actions that are due until `moment`, and stays at that time."""
        self._do_due(at)
        self.clock.hold(at)

    def travel(self, seconds: float) -> None:
        self.travel_to(datetime.fromtimestamp(self.now() + seconds, UTC))

    def later(self, at: float, work: Callable[[], object]) -> None:
        self.due.append((at, next(self._serial), work))

    def _do_due(self, until: float) -> None:
        while ready := [one for one in self.due if one[0] <= until]:
            first = min(ready, key=lambda one: one[:2])
            self.due.remove(first)
            self.clock.hold(first[0])
            first[2]()

    # Objects -----------------------------------------------------------------------------------------------

    def new_id(self, prefix: str) -> str:
        return f"{prefix}_{self.draws}{next(self._serial):08d}"

    def make(self, prefix: str, kind: str, **fields: Any) -> Object:
        made = {
            "id": self.new_id(prefix),
            "object": kind,
            "created": self.now(),
            "livemode": False,
            **fields,
        }
        self.objects[made["id"]] = made
        return made

    def get(self, one: str, kind: str) -> Object:
        found = self.objects.get(one)
        if found is None or found["object"] != kind:
            raise Refused(f"No such {kind}: '{one}'", status=404, code="resource_missing", param="id")
        return found

    def all(self, kind: str, **having: Any) -> list[Object]:
        """Returns objects newest first, as Stripe's lists do."""
        found = [
            one
            for one in self.objects.values()
            if one["object"] == kind and all(one.get(name) == value for name, value in having.items())
        ]
        return found[::-1]

    def page(self, found: list[Object], url: str, query: Object) -> Object:
        limit = int(query.get("limit", 10))
        after = query.get("starting_after")
        if after is not None:
            ids = [one["id"] for one in found]
            if after not in ids:
                raise Refused(f"No such object: '{after}'", param="starting_after", code="resource_missing")
            found = found[ids.index(after) + 1 :]
        return {"object": "list", "url": url, "has_more": len(found) > limit, "data": found[:limit]}

    def page_url(self, kind: str, one: str) -> str:
        """Returns the URL of a page for people."""
        return f"{self.pages}/pages/{kind}/{one}" if self.pages else f"https://{kind}.stripe.test/{one}"

    def emit(self, type: str, about: Object) -> None:
        """Records an event, with the object as it is now."""
        event = {
            "id": self.new_id("evt"),
            "object": "event",
            "api_version": "2026-10-28.endive",
            "created": self.now(),
            "livemode": False,
            "pending_webhooks": 1,
            "request": {"id": None, "idempotency_key": None},
            "type": type,
            "data": {"object": _copied(about)},
        }
        self.events.append(event)


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    return [_copied(one) for one in value] if isinstance(value, list) else value
