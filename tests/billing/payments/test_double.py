"""The double where it is part of the demo: it remembers, and its pages say what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from examples.stripe_double import StripeDouble
from examples.stripe_double.request_log import RequestLog

KEY = "sk_test_demo"


def opened(path: Path) -> StripeDouble:
    double = StripeDouble(KEY)
    double.books.pages = "http://127.0.0.1:9"
    double.remember(RequestLog(path, double.books.draws))
    return double


def post(double: StripeDouble, path: str, **form: Any) -> Any:
    status, answer = double.ask("POST", path, form)
    assert status == 200, answer
    return answer


def invoiced(double: StripeDouble, customer: str, cents: int) -> str:
    fields = {"pending_invoice_items_behavior": "exclude", "auto_advance": "false"}
    made = post(double, "/v1/invoices", customer=customer, description="INV-<1>", **fields)["id"]
    post(double, f"/v1/invoices/{made}/add_lines", lines=[{"amount": str(cents), "description": "<b>"}])
    post(double, f"/v1/invoices/{made}/finalize", auto_advance="true")
    return str(made)


def test_it_is_what_it_was_after_it_was_killed_in_the_middle_of_a_word(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    first = opened(path)
    customer = post(first, "/v1/customers", name="acme")["id"]
    post(first, "/double/card", customer=customer, works=False)
    failed = invoiced(first, customer, 2_000)
    status, refused = first.ask("POST", "/v1/invoices/in_none/pay", {})
    assert status == 404, refused
    post(first, "/double/card", customer=customer, works=True)
    post(first, f"/v1/invoices/{failed}/pay")
    small = invoiced(first, customer, 30)
    with path.open("a") as file:
        file.write('{"at": 17')
    second = opened(path)
    assert second.books.objects == first.books.objects
    assert second.books.events == first.books.events
    assert second.books.get(small, "invoice")["ending_balance"] == 30
    assert second.books.get(failed, "invoice")["amount_paid"] == 2_000
    post(second, "/v1/customers", name="birch")
    assert len(opened(path).books.all("customer")) == 2, "what is asked after the torn word is kept, too"


def test_its_pages_take_payments_and_say_that_no_money_moves(tmp_path: Path) -> None:
    double = opened(tmp_path / "kept.jsonl")
    customer = post(double, "/v1/customers", name="<script>acme")["id"]
    back = "http://127.0.0.1:1/console/billing"
    with double.serving():
        double.books.pages = double.url
        portal = post(double, "/v1/billing_portal/sessions", customer=customer, return_url=back)["url"]
        with httpx.Client(follow_redirects=True, timeout=20) as visitor:
            assert "is declined" in visitor.post(portal, data={"card": "declined"}).text
            owed = double.books.get(invoiced(double, customer, 500), "invoice")
            assert owed["status"] == "open"
            assert "Your card was declined" not in visitor.get(owed["hosted_invoice_url"]).text
            visitor.post(owed["hosted_invoice_url"])
            assert owed["status"] == "open", "the card still does not work"
            visitor.post(portal, data={"card": "ok"})
            paid = visitor.post(owed["hosted_invoice_url"]).text
            assert owed["status"] == "paid"
            shown = visitor.get(portal).text
            for page in (paid, shown):
                assert "no card is charged, and no money moves" in page
                assert "INV-&lt;1&gt;" in page
                assert "<script>" not in page
            assert visitor.get(f"{double.url}/pages/checkout/cs_none").status_code == 404
            # Without the key nothing but pages is answered.
            assert visitor.get(f"{double.url}/v1/customers/{customer}").status_code == 401
