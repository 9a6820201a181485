"""Simulates Stripe's customers and payments outside of subscriptions: checkout, refunds, balances, portal."""

from __future__ import annotations

import re

from examples.stripe_double.state import Object, Refused, State

_METADATA = re.compile(r"""metadata\[['"](\w+)['"]\]:['"]([^'"]*)['"]""")


class Payments:
    def __init__(self, books: State) -> None:
        self._books = books

    # Customers ---------------------------------------------------------------------------------------------

    def create_customer(self, form: Object) -> Object:
        if "email" in form and "@" not in form["email"]:
            raise Refused(f"Invalid email address: {form['email']}", code="email_invalid", param="email")
        made = self._books.make(
            "cus",
            "customer",
            email=form.get("email"),
            name=form.get("name"),
            metadata=form.get("metadata", {}),
            balance=0,
            card="ok",  # not Stripe's: whether payments succeed
        )
        self._books.emit("customer.created", made)
        return made

    def update_customer(self, one: str, form: Object) -> Object:
        found = self._books.get(one, "customer")
        if "@" not in form.get("email", "@") and form["email"]:
            raise Refused(f"Invalid email address: {form['email']}", code="email_invalid", param="email")
        told = ("email", "name", "address", "invoice_settings")
        found |= {name: form[name] or None for name in told if name in form}
        found["metadata"] |= form.get("metadata", {})
        self._books.emit("customer.updated", found)
        return found

    def search_customers(self, query: Object) -> Object:
        wanted = _METADATA.fullmatch(query["query"])
        if wanted is None:
            raise Refused("The double searches by a single metadata field only.", param="query")
        name, value = wanted.groups()
        found = [one for one in self._books.all("customer") if one["metadata"].get(name) == value]
        return {
            "object": "search_result",
            "url": "/v1/customers/search",
            "has_more": False,
            "next_page": None,
            "data": found,
        }

    def add_to_balance(self, customer: str, form: Object) -> Object:
        found = self._books.get(customer, "customer")
        amount = int(form["amount"])
        found["balance"] += amount
        return self._books.make(
            "cbtxn",
            "customer_balance_transaction",
            customer=customer,
            amount=amount,
            currency=form["currency"],
            description=form.get("description"),
            ending_balance=found["balance"],
            metadata=form.get("metadata", {}),
            type="adjustment",
        )

    # Checkout and portal -----------------------------------------------------------------------------------

    def create_checkout(self, form: Object) -> Object:
        self._books.get(form["customer"], "customer")
        amount = 0
        for line in form.get("line_items", []):
            amount += int(line["price_data"]["unit_amount"]) * int(line["quantity"])
        made = self._books.make(
            "cs_test",
            "checkout.session",
            customer=form["customer"],
            mode=form["mode"],
            status="open",
            payment_status="unpaid",
            amount_total=amount,
            currency="usd",
            payment_intent=None,
            metadata=form.get("metadata", {}),
            success_url=form["success_url"],
        )
        made["url"] = self._books.page_url("checkout", made["id"])
        return made

    def pay_checkout(self, one: str) -> Object:
        """Pays a checkout: the customer's action on Stripe's page."""
        session = self._books.get(one, "checkout.session")
        intent = self._books.make(
            "pi",
            "payment_intent",
            amount=session["amount_total"],
            amount_received=session["amount_total"],
            currency="usd",
            customer=session["customer"],
            status="succeeded",
            metadata=session["metadata"],
        )
        session |= {"status": "complete", "payment_status": "paid", "payment_intent": intent["id"]}
        self._books.emit("checkout.session.completed", session)
        return session

    def create_portal(self, form: Object) -> Object:
        self._books.get(form["customer"], "customer")
        made = self._books.make(
            "bps",
            "billing_portal.session",
            customer=form["customer"],
            return_url=form.get("return_url"),
        )
        made["url"] = self._books.page_url("billing", made["id"])
        return made

    # Refunds -----------------------------------------------------------------------------------------------

    def create_refund(self, form: Object) -> Object:
        intent = self._books.get(form["payment_intent"], "payment_intent")
        given = sum(one["amount"] for one in self._books.all("refund", payment_intent=intent["id"]))
        amount = int(form.get("amount", intent["amount"] - given))
        if not 0 < amount <= intent["amount"] - given:
            raise Refused("Refund amount is greater than what is left of the charge.", param="amount")
        made = self._books.make(
            "re",
            "refund",
            amount=amount,
            currency="usd",
            payment_intent=intent["id"],
            status="succeeded",
            metadata=form.get("metadata", {}),
        )
        self._books.emit("refund.created", made)
        return made
