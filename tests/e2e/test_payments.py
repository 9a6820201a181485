"""The demo's payments: a plan, a preview, an invoice, a payment, the portal and a top-up, with a double of
Stripe that says what it is, and that is the same after it was killed.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import httpx

from tests.e2e.stack import Stack, eventually

NOTICE = "no card is charged, and no money moves"


def test_a_visitor_sees_what_is_billed_and_paid_and_pays_in_test_mode(stack: Stack) -> None:
    headers = {"Authorization": f"Bearer {stack.demo['admin_api_key']}"}
    with httpx.Client(base_url=f"{stack.demo['base_url']}/organization", headers=headers, timeout=30) as api:

        def asked(path: str, method: str = "GET", **body: Any) -> Any:
            answer = api.request(method, path, json=body or None)
            assert answer.status_code == 200, answer.text
            return answer.json()

        account = asked("/billing")
        assert (account["provider"], account["livemode"], account["state"]) == ("stripe", False, "active")
        preview = asked("/invoices/preview")
        assert preview["total_micro_usd"] >= 20_000_000, "the plan's fee is on it"
        [fee, *_] = preview["lines"]
        assert (fee["kind"], fee["description"]) == ("fee", "Plan demo, monthly fee")
        invoices = asked("/invoices")["data"]
        assert len(invoices) == 1 or datetime.now(UTC).day < 3, "months are closed on the second"
        for invoice in invoices:
            assert (invoice["total_cents"], invoice["status"]) == (2_000, "paid")
            assert [one["amount_cents"] for one in invoice["payments"]] == [2_000]

        checkout = asked("/billing/top_ups", "POST", amount=1_000)
        assert checkout["url"].startswith(stack.demo["payments_double_url"])
        page = httpx.get(checkout["url"])
        assert NOTICE in page.text
        assert "Pay $10.00" in page.text
        paid = httpx.post(checkout["url"])
        assert (paid.status_code, paid.headers["location"]) == (303, f"{stack.url}/console/billing")
        eventually(lambda: asked("/balance")["amount_micro_usd"] == 10_000_000, 30, "the top-up's webhook")

        killed = stack.kill("payments")
        stack.wait_until_replaced("payments", killed)
        portal = asked("/billing/portal", "POST")
        page = httpx.get(portal["url"])
        assert page.status_code == 200, "it knows the customer"
        assert NOTICE in page.text
        assert "acme" in page.text
    compared = stack.operate("billing", "reconcile")
    assert compared.returncode == 0, compared.stdout
    assert "not compared" not in compared.stdout
