"""Simulates Stripe's meters: events, their rules, and sums."""

from __future__ import annotations

from typing import Any

from examples.stripe_double.state import Object, Refused, State

DAY = 86_400
OLDEST = 35 * DAY
NEWEST = 300


class Meters:
    def __init__(self, books: State) -> None:
        self._books = books
        self.received: list[Object] = []
        """Accepted events in order, each with `received_at`."""
        self.summary_lag = 0
        """Seconds until a summary counts an event."""

    def create_meter(self, form: Object) -> Object:
        name = form["event_name"]
        if self._books.all("billing.meter", event_name=name, status="active"):
            raise Refused(f"An active meter already exists for the event name {name}.", param="event_name")
        return self._books.make(
            "mtr",
            "billing.meter",
            display_name=form["display_name"],
            event_name=name,
            default_aggregation=form["default_aggregation"],
            customer_mapping=form.get(
                "customer_mapping", {"type": "by_id", "event_payload_key": "stripe_customer_id"}
            ),
            value_settings=form.get("value_settings", {"event_payload_key": "value"}),
            status="active",
        )

    def create_event(self, form: Object) -> Object:
        books, now = self._books, self._books.now()
        meters = books.all("billing.meter", event_name=form["event_name"], status="active")
        if not meters:
            raise Refused(f"No active meter for the event name {form['event_name']}.", param="event_name")
        payload = form["payload"]
        books.get(payload["stripe_customer_id"], "customer")
        value = _whole(payload["value"])
        timestamp = int(form.get("timestamp", now))
        if timestamp < now - OLDEST:
            raise Refused(
                "The timestamp must be within the past 35 days.",
                code="timestamp_too_far_in_past",
                param="timestamp",
            )
        if timestamp > now + NEWEST:
            raise Refused(
                "The timestamp must not be in the future.", code="timestamp_in_future", param="timestamp"
            )
        identifier = form.get("identifier") or books.new_id("mtre")
        if any(one["identifier"] == identifier and one["received_at"] > now - DAY for one in self.received):
            raise Refused(f"An event already exists with identifier {identifier}.")
        self.received.append(
            {
                "meter": meters[0]["id"],
                "identifier": identifier,
                "customer": payload["stripe_customer_id"],
                "value": value,
                "timestamp": timestamp,
                "received_at": now,
            }
        )
        return {
            "object": "billing.meter_event",
            "created": now,
            "event_name": form["event_name"],
            "identifier": identifier,
            "livemode": False,
            "payload": payload,
            "timestamp": timestamp,
        }

    def summaries(self, meter: str, query: Object) -> Object:
        self._books.get(meter, "billing.meter")
        start, end = int(query["start_time"]), int(query["end_time"])
        if start % 60 or end % 60 or start >= end:
            raise Refused("start_time and end_time must align with minute boundaries.", param="start_time")
        width = {"hour": 3600, "day": DAY}.get(query.get("value_grouping_window", ""), end - start)
        if width != end - start and (start % width or end % width):
            raise Refused("start_time and end_time must align with the window.", param="start_time")
        data = []
        for begin in range(start, end, width):
            total = self.total(meter, query["customer"], begin, begin + width, lag=self.summary_lag)
            if total is None:
                continue
            data.append(
                {
                    "id": f"mtrusg_{meter[-8:]}_{query['customer'][-8:]}_{begin}_{width}",
                    "object": "billing.meter_event_summary",
                    "aggregated_value": float(total),
                    "start_time": begin,
                    "end_time": begin + width,
                    "livemode": False,
                    "meter": meter,
                }
            )
        url = f"/v1/billing/meters/{meter}/event_summaries"
        return self._books.page(data[::-1], url, query)

    def total(self, meter: str, customer: str, start: float, end: float, *, lag: int = 0) -> int | None:
        """Returns the sum of a customer's events in [start, end); None when there is none."""
        seen = self._books.now() - lag
        values = [
            one["value"]
            for one in self.received
            if (one["meter"], one["customer"]) == (meter, customer)
            and start <= one["timestamp"] < end
            and one["received_at"] <= seen
        ]
        return sum(values) if values else None


def _whole(value: Any) -> int:
    try:
        return int(value)
    except ValueError:
        raise Refused("The value must be a whole number.", code="invalid_value", param="payload") from None
