"""Routes the double's requests to their handlers, and replays responses by idempotency key."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from examples.stripe_double.invoicing import Invoicing
from examples.stripe_double.metering import DAY, Meters
from examples.stripe_double.payments import Payments
from examples.stripe_double.state import Object, Refused, State

Handler = Callable[[Object, list[str]], Object]


class Routes:
    def __init__(self, books: State) -> None:
        self._books = books
        self.meters = Meters(books)
        self.invoicing = Invoicing(books, self.meters)
        self.payments = Payments(books)
        self._answered: dict[str, tuple[int, str, int, Object]] = {}
        """By idempotency key: time, request, status and body of the response."""
        self.replayed = 0
        """Requests answered from their idempotency key."""
        self._table = [
            (method, re.compile(pattern.replace("{}", r"([^/]+)")), handler)
            for method, pattern, handler in self._all()
        ]

    def answer(self, method: str, path: str, form: Object, key: str | None) -> tuple[int, Object]:
        """Returns status and body. Handles one request at a time."""
        with self._books.lock:
            asked = json.dumps([method, path, form], sort_keys=True)
            if method == "POST" and key is not None and key in self._answered:
                at, was_asked, status, body = self._answered[key]
                if at > self._books.now() - DAY:
                    if was_asked != asked:
                        message = "Keys for idempotent requests can only be used with the same parameters."
                        return 400, {"error": {"type": "idempotency_error", "message": message}}
                    self.replayed += 1
                    return status, body
            status, body = self._handle(method, path, form)
            # Requests that were rejected before they had an effect are not recorded.
            if method == "POST" and key is not None and status < 400:
                self._answered[key] = (self._books.now(), asked, status, json.loads(json.dumps(body)))
            return status, body

    def _handle(self, method: str, path: str, form: Object) -> tuple[int, Object]:
        try:
            for verb, pattern, handler in self._table:
                match = pattern.fullmatch(path)
                if verb == method and match is not None:
                    return 200, handler(form, list(match.groups()))
            raise Refused(f"Unrecognized request URL ({method}: {path}).", status=404)
        except Refused as refused:
            return refused.status, {"error": refused.error}
        except KeyError as missing:
            error = Refused(f"Missing required param: {missing.args[0]}.", param=str(missing.args[0]))
            return 400, {"error": error.error}

    def _all(self) -> list[tuple[str, str, Handler]]:
        meters, invoicing, payments = self.meters, self.invoicing, self.payments
        return [
            ("POST", "/v1/customers", lambda form, _: payments.create_customer(form)),
            ("GET", "/v1/customers/search", lambda form, _: payments.search_customers(form)),
            ("GET", "/v1/customers/{}", self._get("customer")),
            ("POST", "/v1/customers/{}", lambda form, ids: payments.update_customer(ids[0], form)),
            (
                "POST",
                "/v1/customers/{}/balance_transactions",
                lambda form, ids: payments.add_to_balance(ids[0], form),
            ),
            ("GET", "/v1/customers/{}/balance_transactions", self._balance_transactions),
            ("POST", "/v1/billing/meters", lambda form, _: meters.create_meter(form)),
            ("GET", "/v1/billing/meters", self._list("billing.meter", "status")),
            (
                "GET",
                "/v1/billing/meters/{}/event_summaries",
                lambda form, ids: meters.summaries(ids[0], form),
            ),
            ("POST", "/v1/billing/meter_events", lambda form, _: meters.create_event(form)),
            ("POST", "/v1/prices", lambda form, _: invoicing.create_price(form)),
            ("GET", "/v1/prices", self._prices),
            ("POST", "/v1/subscriptions", lambda form, _: invoicing.create_subscription(form)),
            ("GET", "/v1/subscriptions", self._list("subscription", "customer")),
            ("GET", "/v1/subscriptions/{}", self._get("subscription")),
            ("DELETE", "/v1/subscriptions/{}", lambda _, ids: invoicing.cancel_subscription(ids[0])),
            ("GET", "/v1/invoices", self._list("invoice", "customer", "status")),
            ("POST", "/v1/invoices", lambda form, _: invoicing.create_invoice(form)),
            ("POST", "/v1/invoices/{}/add_lines", lambda form, ids: invoicing.add_lines(ids[0], form)),
            (
                "POST",
                "/v1/invoices/{}/finalize",
                lambda form, ids: invoicing.finalize_invoice(ids[0], form),
            ),
            ("POST", "/v1/credit_notes", lambda form, _: invoicing.create_credit_note(form)),
            ("GET", "/v1/credit_notes", self._list("credit_note", "invoice")),
            ("GET", "/v1/invoices/{}", self._get("invoice")),
            ("POST", "/v1/invoices/{}/pay", lambda _, ids: invoicing.pay(ids[0])),
            ("POST", "/v1/invoices/{}/void", lambda _, ids: invoicing.void(ids[0])),
            ("POST", "/v1/checkout/sessions", lambda form, _: payments.create_checkout(form)),
            ("GET", "/v1/checkout/sessions/{}", self._get("checkout.session")),
            ("POST", "/v1/billing_portal/sessions", lambda form, _: payments.create_portal(form)),
            ("GET", "/v1/payment_intents/{}", self._get("payment_intent")),
            ("POST", "/v1/refunds", lambda form, _: payments.create_refund(form)),
            ("GET", "/v1/refunds/{}", self._get("refund")),
            ("GET", "/v1/refunds", self._list("refund", "payment_intent")),
        ]

    def _get(self, kind: str) -> Handler:
        return lambda _, ids: self._books.get(ids[0], kind)

    def _list(self, kind: str, *filters: str) -> Handler:
        def listed(form: Object, _: list[str]) -> Object:
            having: dict[str, Any] = {name: form[name] for name in filters if name in form}
            return self._books.page(self._books.all(kind, **having), f"/v1/{kind}s", form)

        return listed

    def _prices(self, form: Object, _: list[str]) -> Object:
        keys = form.get("lookup_keys", [])
        found = [one for one in self._books.all("price", active=True) if one["lookup_key"] in keys]
        return self._books.page(found, "/v1/prices", form)

    def _balance_transactions(self, form: Object, ids: list[str]) -> Object:
        found = self._books.all("customer_balance_transaction", customer=ids[0])
        return self._books.page(found, f"/v1/customers/{ids[0]}/balance_transactions", form)
