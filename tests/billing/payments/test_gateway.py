"""The gateway: the stock SDK over HTTP, against the double."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from billing.payments.errors import ProviderRefused, ProviderUnavailable
from billing.payments.gateway import CustomerDetails
from billing.payments.settings import StripeSettings
from billing.stripe_gateway import StripeGateway
from examples.stripe_double import API_KEY, Fault, StripeDouble


def hour_of(double: StripeDouble) -> datetime:
    return datetime.fromtimestamp(double.books.now() // 3600 * 3600, UTC)


async def customer(gateway: StripeGateway) -> str:
    return await gateway.create_customer("ten_a", "Acme", "pay@acme.example")


async def test_the_catalogue_is_made_once(settings: StripeSettings, double: StripeDouble) -> None:
    found = []
    for _ in range(2):
        gateway = StripeGateway(settings)
        found.append(await gateway.catalogue())
        await gateway.close()
    assert found[0] == found[1]
    assert len(double.books.all("billing.meter")) == len(double.books.all("price")) == 1
    assert double.books.all("price")[0]["unit_amount_decimal"] == "0"


async def test_a_customer_is_found_by_its_tenant(gateway: StripeGateway) -> None:
    assert await gateway.find_customer("ten_a") is None
    made = await customer(gateway)
    assert await customer(gateway) == made
    assert await gateway.find_customer("ten_a") == made


async def test_meter_events_add_up_in_summaries(gateway: StripeGateway, double: StripeDouble) -> None:
    await gateway.catalogue()
    one, hour = await customer(gateway), hour_of(double)
    before = hour - timedelta(hours=1)
    assert await gateway.meter(one, 5, before, "a") == "taken"
    assert await gateway.meter(one, 7, before, "b") == "taken"
    assert await gateway.meter(one, 1, hour, "c") == "taken"
    assert await gateway.metered(one, before, hour) == 12
    assert await gateway.metered_by_hour(one, before, hour + timedelta(hours=1)) == {before: 12, hour: 1}


async def test_an_identifier_is_known_for_a_day_and_no_longer(
    gateway: StripeGateway, double: StripeDouble
) -> None:
    await gateway.catalogue()
    one, hour = await customer(gateway), hour_of(double)
    assert await gateway.meter(one, 5, hour, "a") == "taken"
    assert await gateway.meter(one, 5, hour, "a") == "known"
    double.travel_to(hour + timedelta(hours=30))
    assert await gateway.meter(one, 5, hour, "a") == "taken"  # what may not be done then
    assert await gateway.metered(one, hour, hour + timedelta(hours=1)) == 10


@pytest.mark.parametrize("age", [timedelta(days=36), timedelta(minutes=-10)])
async def test_times_too_far_away_are_refused(
    gateway: StripeGateway, double: StripeDouble, age: timedelta
) -> None:
    await gateway.catalogue()
    at = datetime.fromtimestamp(double.books.now(), UTC) - age
    with pytest.raises(ProviderRefused):
        await gateway.meter(await customer(gateway), 1, at, "a")


@pytest.mark.parametrize(
    ("kind", "maybe_done"), [("rate_limited", False), ("error", True), ("unreachable", True), ("lost", True)]
)
async def test_faults_are_unavailability(
    gateway: StripeGateway, double: StripeDouble, kind: Any, maybe_done: bool
) -> None:
    await gateway.catalogue()
    one, hour = await customer(gateway), hour_of(double)
    double.fail(Fault(kind))
    with pytest.raises(ProviderUnavailable) as raised:
        await gateway.meter(one, 5, hour, "a")
    assert raised.value.maybe_done == maybe_done
    assert await gateway.meter(one, 5, hour, "a") == ("known" if kind == "lost" else "taken")


async def test_an_answer_too_late_is_unavailability(settings: StripeSettings, double: StripeDouble) -> None:
    gateway = StripeGateway(settings.model_copy(update={"timeout": 0.2}))
    double.fail(Fault("hangs"))
    with pytest.raises(ProviderUnavailable):
        await gateway.find_customer("ten_a")
    await gateway.close()


async def test_a_wrong_key_is_no_fault_of_what_was_to_be_sent(settings: StripeSettings) -> None:
    gateway = StripeGateway(StripeSettings(api_key="sk_test_wrong", api_base=settings.api_base))
    with pytest.raises(ProviderUnavailable) as raised:
        await gateway.find_customer("ten_a")
    assert not raised.value.maybe_done
    await gateway.close()


@pytest.mark.parametrize(
    ("key", "live"), [(API_KEY, False), ("sk_live_x", True), ("rk_live_x", True), ("rk_test_x", False)]
)
async def test_the_key_tells_whether_money_moves(key: str, live: bool) -> None:
    gateway = StripeGateway(StripeSettings(api_key=key))
    assert gateway.live == live
    await gateway.close()


async def test_an_invoice_is_made_once_however_often_it_is_asked_for(
    gateway: StripeGateway, double: StripeDouble
) -> None:
    one, documents = await customer(gateway), gateway.documents
    lines = [("Usage", 1_300), ("Usage included in the plan", -300)]
    for step in ("", "/add_lines", "/finalize"):
        double.fail(Fault("lost", path="/v1/invoices", method="POST"))
        found = await documents.find_invoice(one, "inv_a")
        for _ in range(2):
            with contextlib.suppress(ProviderUnavailable):
                found = await documents.create_invoice(one, "ten_a", "inv_a", "INV-000001")
                if step:
                    found = await documents.add_lines(found.id, lines, "inv_a")
                if step == "/finalize":
                    found = await documents.finalize(found.id, "inv_a")
    assert found is not None
    assert (found.status, found.total, found.amount_paid, found.invoice_id) == ("paid", 1000, 1000, "inv_a")
    [made] = double.books.all("invoice")
    assert [(line["description"], line["amount"]) for line in made["lines"]["data"]] == lines
    assert await documents.find_invoice(one, "inv_a") == found
    assert await documents.find_invoice(one, "inv_b") is None


async def test_a_credit_note_lowers_what_is_owed_and_gives_back_the_rest(
    gateway: StripeGateway, double: StripeDouble
) -> None:
    one, documents = await customer(gateway), gateway.documents
    double.card(one, works=False)
    made = await documents.create_invoice(one, "ten_a", "inv_a", "INV-000001")
    await documents.add_lines(made.id, [("Usage", 1_000)], "inv_a")
    await documents.finalize(made.id, "inv_a")
    note = await documents.create_credit_note(made.id, "cn_a", "too much", 400, 0)
    assert await documents.create_credit_note(made.id, "cn_a", "too much", 400, 0) == note
    assert await documents.find_credit_note(made.id, "cn_a") == note
    assert await documents.find_credit_note(made.id, "cn_b") is None
    seen = await gateway.invoice(made.id)
    assert (seen.total, seen.amount_remaining, seen.credited, seen.failed) == (1_000, 600, 400, True)
    double.card(one, works=True)
    double.routes.invoicing.pay(made.id)
    await documents.create_credit_note(made.id, "cn_b", "a gift", 100, 100)
    assert [refund["amount"] for refund in double.books.all("refund")] == [100]
    assert (await gateway.invoice(made.id)).credited == 500
    with pytest.raises(ProviderRefused):
        await documents.create_credit_note(made.id, "cn_c", "more than was paid", 600, 600)


async def test_lists_are_read_to_their_end(gateway: StripeGateway) -> None:
    one = await customer(gateway)
    for number in range(130):
        await gateway.documents.create_invoice(one, "ten_a", f"inv_{number}", "")
    assert await gateway.documents.find_invoice(one, "inv_0")  # the oldest: on the second page


async def test_a_customer_is_named_as_invoices_do(gateway: StripeGateway, double: StripeDouble) -> None:
    one = await customer(gateway)
    details = CustomerDetails("Acme", "pay@acme.example", "1 Road\nTown", "DE", "DE123")
    await gateway.update_customer(one, details)
    found = double.books.get(one, "customer")
    assert found["address"] == {"line1": "1 Road", "line2": "Town", "country": "DE"}
    assert found["invoice_settings"] == {"custom_fields": [{"name": "Tax ID", "value": "DE123"}]}
    await gateway.update_customer(one, CustomerDetails("Acme Ltd"))
    assert (found["name"], found["email"], found["address"]) == ("Acme Ltd", None, None)
    assert found["invoice_settings"] == {"custom_fields": ""}
    with pytest.raises(ProviderRefused):
        await gateway.update_customer(one, CustomerDetails("Acme", "nowhere"))


async def test_a_month_that_was_metered_is_shown_and_asks_for_nothing(
    gateway: StripeGateway, double: StripeDouble
) -> None:
    """What is asked for is our invoice."""
    double.travel_to(datetime(2027, 1, 10, tzinfo=UTC))
    catalogue, one = await gateway.catalogue(), await customer(gateway)
    anchor = datetime(2027, 2, 1, tzinfo=UTC)
    made = await gateway.create_subscription("ten_a", one, catalogue.price_id, anchor, "k")
    assert await gateway.find_subscription(one) == made
    assert made.price_id == catalogue.price_id
    await gateway.meter(one, 12_345_000, datetime(2027, 1, 10, tzinfo=UTC), "a")
    double.card(one, works=False)
    double.travel_to(datetime(2027, 2, 1, 2, tzinfo=UTC))
    assert await gateway.open_invoices(one) == []
    assert [invoice["total"] for invoice in double.books.all("invoice")] == [0]


async def test_checkout_portal_and_refund(gateway: StripeGateway, double: StripeDouble) -> None:
    one = await customer(gateway)
    session, url = await gateway.checkout(one, 2500, {"tenant_id": "ten_a"}, "https://us.example/", "k")
    assert url.startswith("https://checkout.")
    assert not (await gateway.checkout_session(session)).paid
    double.pay_checkout(session)
    paid = await gateway.checkout_session(session)
    assert (paid.paid, paid.amount, paid.metadata) == (True, 2500, {"tenant_id": "ten_a"})
    assert paid.payment_id is not None
    refund = await gateway.refund(paid.payment_id, 1000, "r")
    assert await gateway.refund(paid.payment_id, 1000, "r") == refund
    view = await gateway.refund_view(refund)
    assert (view.amount, view.succeeded, view.metadata) == (1000, True, {"tenant_id": "ten_a"})
    with pytest.raises(ProviderRefused):
        await gateway.refund(paid.payment_id, 2000, "too much")
    assert (await gateway.portal(one, "https://us.example/")).startswith("https://billing.")
