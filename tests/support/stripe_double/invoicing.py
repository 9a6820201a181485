"""Subscriptions of the double and the invoices that their months end with: paid, declined, tried again."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal

from tests.support.stripe_double.books import Books, Object, Refused
from tests.support.stripe_double.metering import DAY, Meters

DRAFT_SECONDS = 3600
"""From the end of a period to its invoice being final: usage of the period is taken until then."""
RETRY_DAYS = (3, 5, 7)
"""After a payment that failed, when it is tried again."""


class Invoicing:
    def __init__(self, books: Books, meters: Meters) -> None:
        self._books = books
        self._meters = meters

    # Products, prices --------------------------------------------------------------------------------------

    def create_price(self, form: Object) -> Object:
        lookup = form.get("lookup_key")
        if lookup and self._books.all("price", lookup_key=lookup, active=True):
            raise Refused(f"A price already uses the lookup key {lookup}.", param="lookup_key")
        recurring = form.get("recurring")
        if recurring and recurring.get("usage_type") == "metered":
            self._books.get(recurring["meter"], "billing.meter")
        return self._books.make(
            "price",
            "price",
            active=True,
            currency=form["currency"],
            lookup_key=lookup,
            product=form.get("product") or self._books.make("prod", "product", **form["product_data"])["id"],
            recurring=recurring,
            unit_amount_decimal=form.get("unit_amount_decimal"),
            unit_amount=None,
        )

    # Subscriptions -----------------------------------------------------------------------------------------

    def create_subscription(self, form: Object) -> Object:
        self._books.get(form["customer"], "customer")
        now = self._books.now()
        anchor = int(form.get("billing_cycle_anchor", _next_month(now)))
        if anchor <= now:
            raise Refused("billing_cycle_anchor must be in the future.", param="billing_cycle_anchor")
        items = [
            {
                "id": self._books.new_id("si"),
                "object": "subscription_item",
                "price": self._books.get(item["price"], "price"),
                "current_period_start": now,
                "current_period_end": anchor,
            }
            for item in form["items"]
        ]
        made = self._books.make(
            "sub",
            "subscription",
            customer=form["customer"],
            status="active",
            metadata=form.get("metadata", {}),
            collection_method=form.get("collection_method", "charge_automatically"),
            billing_cycle_anchor=anchor,
            items={"object": "list", "data": items, "has_more": False, "url": "/v1/subscription_items"},
            latest_invoice=None,
            canceled_at=None,
        )
        self._books.later(anchor, lambda: self._end_period(made))
        self._books.emit("customer.subscription.created", made)
        return made

    def cancel_subscription(self, one: str) -> Object:
        found = self._books.get(one, "subscription")
        found |= {"status": "canceled", "canceled_at": self._books.now()}
        self._books.emit("customer.subscription.deleted", found)
        return found

    def _end_period(self, subscription: Object) -> None:
        if subscription["status"] == "canceled":
            return
        now, end = self._books.now(), 0
        periods = []
        for item in subscription["items"]["data"]:
            start, end = item["current_period_start"], item["current_period_end"]
            periods.append((item["price"], start, end))
            item |= {"current_period_start": end, "current_period_end": _next_month(end)}
        draft = self._books.make(
            "in",
            "invoice",
            customer=subscription["customer"],
            parent={
                "type": "subscription_details",
                "subscription_details": {"subscription": subscription["id"], "metadata": {}},
            },
            metadata={},
            status="draft",
            currency="usd",
            period_start=periods[0][1],
            period_end=end,
            attempt_count=0,
            attempted=False,
            total=0,
            amount_due=0,
            amount_paid=0,
            amount_remaining=0,
            status_transitions={"finalized_at": None, "paid_at": None, "voided_at": None},
            hosted_invoice_url=None,
        )
        subscription["latest_invoice"] = draft["id"]
        self._books.emit("invoice.created", draft)
        self._books.later(now + DRAFT_SECONDS, lambda: self._finalize(draft, subscription, periods))
        self._books.later(_next_month(end), lambda: self._end_period(subscription))

    def _finalize(
        self, invoice: Object, subscription: Object, periods: list[tuple[Object, int, int]]
    ) -> None:
        total = Decimal(0)
        for price, start, end in periods:
            used = self._meters.total(price["recurring"]["meter"], invoice["customer"], start, end) or 0
            total += max(0, used) * Decimal(price["unit_amount_decimal"])
        cents = int(total.quantize(Decimal(1), ROUND_HALF_UP))
        customer = self._books.get(invoice["customer"], "customer")
        # A negative balance is the customer's credit.
        applied = min(cents, max(0, -customer["balance"]))
        customer["balance"] += applied
        due = cents - applied
        invoice |= {
            "status": "open",
            "total": cents,
            "amount_due": due,
            "amount_remaining": due,
            "starting_balance": -applied,
            "hosted_invoice_url": f"https://invoice.stripe.test/{invoice['id']}",
        }
        invoice["status_transitions"]["finalized_at"] = self._books.now()
        self._books.emit("invoice.finalized", invoice)
        self._attempt(invoice, subscription, RETRY_DAYS)

    # Payments ----------------------------------------------------------------------------------------------

    def pay(self, one: str) -> Object:
        """What the customer does in the portal, and `POST /v1/invoices/{id}/pay`."""
        invoice = self._books.get(one, "invoice")
        if invoice["status"] != "open":
            raise Refused(f"Invoice is {invoice['status']}.", code="invoice_not_open")
        subscription = self._books.get(
            invoice["parent"]["subscription_details"]["subscription"], "subscription"
        )
        if not self._attempt(invoice, subscription, ()):
            raise Refused("Your card was declined.", status=402, type="card_error", code="card_declined")
        return invoice

    def void(self, one: str) -> Object:
        invoice = self._books.get(one, "invoice")
        invoice |= {"status": "void", "amount_remaining": 0}
        invoice["status_transitions"]["voided_at"] = self._books.now()
        self._books.emit("invoice.voided", invoice)
        return invoice

    def _attempt(self, invoice: Object, subscription: Object, retries: tuple[int, ...]) -> bool:
        if invoice["status"] != "open":
            return True
        customer = self._books.get(invoice["customer"], "customer")
        if invoice["amount_due"]:
            invoice |= {"attempt_count": invoice["attempt_count"] + 1, "attempted": True}
        if invoice["amount_due"] == 0 or customer["card"] == "ok":
            invoice |= {"status": "paid", "amount_paid": invoice["amount_due"], "amount_remaining": 0}
            invoice["status_transitions"]["paid_at"] = self._books.now()
            self._books.emit("invoice.paid", invoice)
            if subscription["status"] == "past_due":
                subscription["status"] = "active"
                self._books.emit("customer.subscription.updated", subscription)
            return True
        self._books.emit("invoice.payment_failed", invoice)
        if subscription["status"] == "active":
            subscription["status"] = "past_due"
            self._books.emit("customer.subscription.updated", subscription)
        if retries:
            again = self._books.now() + retries[0] * DAY
            self._books.later(again, lambda: self._attempt(invoice, subscription, retries[1:]) and None)
        return False


def _next_month(unix: int) -> int:
    at = datetime.fromtimestamp(unix, UTC)
    first = datetime(at.year + at.month // 12, at.month % 12 + 1, 1, tzinfo=UTC)
    return int(first.timestamp())
