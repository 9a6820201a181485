"""Simulates Stripe's subscriptions and invoices: monthly or line by line, paid, declined, retried."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal

from examples.stripe_double.metering import DAY, Meters
from examples.stripe_double.state import Object, Refused, State

DRAFT_SECONDS = 3600
"""Seconds from the end of a period until its invoice is final: usage of the period is accepted until then."""
MINIMUM_CENTS = 50
"""The minimum charge."""
RETRY_DAYS = (3, 5, 7)
"""Days between retries of a failed payment."""


class Invoicing:
    def __init__(self, books: State, meters: Meters) -> None:
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
        draft = self._draft(
            subscription["customer"],
            {},
            periods[0][1],
            end,
            {
                "type": "subscription_details",
                "subscription_details": {"subscription": subscription["id"], "metadata": {}},
            },
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
        invoice["total"] = int(total.quantize(Decimal(1), ROUND_HALF_UP))
        self._open(invoice)
        self._attempt(invoice, subscription, RETRY_DAYS)

    def _draft(
        self, customer: str, metadata: Object, start: int, end: int, parent: Object | None = None
    ) -> Object:
        return self._books.make(
            "in",
            "invoice",
            customer=customer,
            parent=parent,
            metadata=metadata,
            status="draft",
            currency="usd",
            description=None,
            period_start=start,
            period_end=end,
            lines={"object": "list", "data": [], "has_more": False, "url": "/v1/invoices/lines"},
            attempt_count=0,
            attempted=False,
            total=0,
            amount_due=0,
            amount_paid=0,
            amount_remaining=0,
            pre_payment_credit_notes_amount=0,
            post_payment_credit_notes_amount=0,
            status_transitions={"finalized_at": None, "paid_at": None, "voided_at": None},
            hosted_invoice_url=None,
        )

    def _open(self, invoice: Object) -> None:
        customer = self._books.get(invoice["customer"], "customer")
        # A negative balance is the customer's credit; a positive one is an amount below the minimum charge.
        starting = customer["balance"]
        applied = starting if starting >= 0 else -min(invoice["total"], -starting)
        customer["balance"] -= applied
        due = invoice["total"] + applied
        if 0 < due < MINIMUM_CENTS:
            customer["balance"] += due
            due = 0
        invoice |= {
            "status": "open",
            "amount_due": due,
            "amount_remaining": due,
            "starting_balance": starting,
            "ending_balance": customer["balance"],
            "hosted_invoice_url": self._books.page_url("invoice", invoice["id"]),
        }
        invoice["status_transitions"]["finalized_at"] = self._books.now()
        self._books.emit("invoice.finalized", invoice)

    # Made line by line -------------------------------------------------------------------------------------

    def create_invoice(self, form: Object) -> Object:
        self._books.get(form["customer"], "customer")
        if form.get("pending_invoice_items_behavior") != "exclude" or form.get("auto_advance") != "false":
            raise Refused("The double makes drafts that are left alone, of lines that are added to them.")
        now = self._books.now()
        made = self._draft(form["customer"], form.get("metadata", {}), now, now)
        made["description"] = form.get("description")
        self._books.emit("invoice.created", made)
        return made

    def add_lines(self, one: str, form: Object) -> Object:
        invoice = self._books.get(one, "invoice")
        if invoice["status"] != "draft":
            raise Refused("Lines can be added to a draft only.", code="invoice_not_editable")
        if len(invoice["lines"]["data"]) + len(form["lines"]) > 250:
            raise Refused("An invoice has at most 250 lines.", param="lines")
        for line in form["lines"]:
            amount = int(line["amount"])
            invoice["lines"]["data"].append(
                {
                    "id": self._books.new_id("il"),
                    "object": "line_item",
                    "amount": amount,
                    "currency": "usd",
                    "description": line["description"],
                }
            )
            invoice["total"] += amount
        self._books.emit("invoice.updated", invoice)
        return invoice

    def finalize_invoice(self, one: str, form: Object) -> Object:
        invoice = self._books.get(one, "invoice")
        if invoice["status"] != "draft":
            raise Refused("This invoice is already finalized.", code="invoice_not_editable")
        self._open(invoice)
        if form.get("auto_advance") == "true":
            self._attempt(invoice, None, RETRY_DAYS)
        return invoice

    def create_credit_note(self, form: Object) -> Object:
        invoice = self._books.get(form["invoice"], "invoice")
        amount, refund = int(form["amount"]), int(form.get("refund_amount", 0))
        if invoice["status"] not in ("open", "paid"):
            raise Refused(f"Invoice is {invoice['status']}.", param="invoice")
        before = min(amount, invoice["amount_remaining"])
        if refund != amount - before:
            raise Refused(f"refund_amount must be {amount - before}.", param="refund_amount")
        if invoice["post_payment_credit_notes_amount"] + refund > invoice["amount_paid"]:
            raise Refused("The credit note is more than was paid.", param="amount")
        refunded = None
        if refund:
            refunded = self._books.make(
                "re",
                "refund",
                amount=refund,
                currency="usd",
                payment_intent=invoice["payment_intent"],
                status="succeeded",
                metadata={},
            )
            self._books.emit("refund.created", refunded)
        invoice["pre_payment_credit_notes_amount"] += before
        invoice["post_payment_credit_notes_amount"] += refund
        invoice["amount_remaining"] -= before
        invoice["amount_due"] -= before
        if before and invoice["amount_remaining"] == 0:
            invoice["status"] = "paid"
        made = self._books.make(
            "cn",
            "credit_note",
            invoice=invoice["id"],
            customer=invoice["customer"],
            amount=amount,
            currency="usd",
            memo=form.get("memo"),
            metadata=form.get("metadata", {}),
            refunds=[{"amount_refunded": refund, "refund": refunded["id"]}] if refunded else [],
            status="issued",
        )
        self._books.emit("credit_note.created", made)
        self._books.emit("invoice.updated", invoice)
        return made

    # Payments ----------------------------------------------------------------------------------------------

    def pay(self, one: str) -> Object:
        """Pays an invoice: the customer's action in the portal, and `POST /v1/invoices/{id}/pay`."""
        invoice = self._books.get(one, "invoice")
        if invoice["status"] != "open":
            raise Refused(f"Invoice is {invoice['status']}.", code="invoice_not_open")
        if invoice["amount_remaining"] < MINIMUM_CENTS:
            raise Refused("Amount must be at least $0.50 usd.", code="amount_too_small")
        subscription = None
        if invoice["parent"] is not None:
            of = invoice["parent"]["subscription_details"]["subscription"]
            subscription = self._books.get(of, "subscription")
        if not self._attempt(invoice, subscription, ()):
            raise Refused("Your card was declined.", status=402, type="card_error", code="card_declined")
        return invoice

    def void(self, one: str) -> Object:
        invoice = self._books.get(one, "invoice")
        invoice |= {"status": "void", "amount_remaining": 0}
        invoice["status_transitions"]["voided_at"] = self._books.now()
        self._books.emit("invoice.voided", invoice)
        return invoice

    def _attempt(self, invoice: Object, subscription: Object | None, retries: tuple[int, ...]) -> bool:
        if invoice["status"] != "open":
            return True
        customer = self._books.get(invoice["customer"], "customer")
        if invoice["amount_due"]:
            invoice |= {"attempt_count": invoice["attempt_count"] + 1, "attempted": True}
        chargeable = customer["card"] == "ok" and invoice["amount_due"] >= MINIMUM_CENTS
        if invoice["amount_due"] == 0 or chargeable:
            invoice |= {"status": "paid", "amount_paid": invoice["amount_due"], "amount_remaining": 0}
            if invoice["amount_paid"]:
                invoice["payment_intent"] = self._books.make(
                    "pi",
                    "payment_intent",
                    amount=invoice["amount_paid"],
                    amount_received=invoice["amount_paid"],
                    currency="usd",
                    customer=invoice["customer"],
                    status="succeeded",
                    metadata={},
                )["id"]
            invoice["status_transitions"]["paid_at"] = self._books.now()
            self._books.emit("invoice.paid", invoice)
            if subscription is not None and subscription["status"] == "past_due":
                subscription["status"] = "active"
                self._books.emit("customer.subscription.updated", subscription)
            return True
        self._books.emit("invoice.payment_failed", invoice)
        if subscription is not None and subscription["status"] == "active":
            subscription["status"] = "past_due"
            self._books.emit("customer.subscription.updated", subscription)
        if retries:
            again = self._books.now() + retries[0] * DAY
            self._books.later(again, lambda: self._attempt(invoice, subscription, retries[1:]))
        return False


def _next_month(unix: int) -> int:
    at = datetime.fromtimestamp(unix, UTC)
    first = datetime(at.year + at.month // 12, at.month % 12 + 1, 1, tzinfo=UTC)
    return int(first.timestamp())
