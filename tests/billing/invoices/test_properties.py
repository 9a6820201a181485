"""Whatever happens in which order: invoices are the ledger, to the micro-USD."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from billing.invoices.verification import InvoiceVerification
from billing.months import begin, between, following
from billing.rates import Rate
from billing.reversals import ReversalService
from db.session import EVERY_TENANT, Database
from tenants.actors import OPERATOR
from tenants.share_terms import ShareTerms
from tests.billing.invoices.conftest import DECEMBER, OCTOBER, Business, at, forget_bills
from tests.support.examples import examples

MONTHS = list(between(OCTOBER, date(2027, 1, 1)))
SHARED = ShareTerms("shr_1", "tnt_owner", 333_333, 7, 80)
RATES = (
    Rate("prc_a", 10**6, 10**6, 10**6),
    Rate("prc_b", 333_333, 7, 1_234_567, 175),
    Rate("", 0, 0, 0),
    Rate("prc_a", 10**6, 10**6, 10**6, 50, SHARED),
)


@dataclass(frozen=True)
class Use:
    month: date
    when: datetime
    """Near the month's ends as often as not; and often long before it is recorded."""
    tokens: tuple[int, int, int]
    rate: Rate
    reversed: bool


@st.composite
def uses(draw: st.DrawFn) -> Use:
    recorded = draw(st.sampled_from(MONTHS))
    used = draw(st.sampled_from([month for month in MONTHS if month <= recorded]))
    first, last = begin(used), begin(following(used)) - timedelta(microseconds=1)
    when = draw(st.sampled_from([first, last, last - timedelta(days=3), first + timedelta(days=9, hours=7)]))
    prompt = draw(st.integers(0, 3 * 10**6))
    tokens = (prompt, draw(st.integers(0, prompt)), draw(st.integers(0, 10**4)))
    return Use(recorded, when, tokens, draw(st.sampled_from(RATES)), draw(st.integers(0, 4)) == 0)


@dataclass(frozen=True)
class Credit:
    month: date
    amount: int


@dataclass(frozen=True)
class Mode:
    month: date
    prepaid: bool


YEAR = st.lists(
    st.one_of(
        uses(),
        uses(),
        st.builds(Credit, st.sampled_from(MONTHS), st.integers(1, 10**7)),
        st.builds(Mode, st.sampled_from(MONTHS), st.booleans()),
    ),
    max_size=10,
)


@settings(
    max_examples=examples(10), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(events=YEAR, fee=st.sampled_from([0, 0, 1_999_999]), least=st.sampled_from([0, 50, 200]))
async def test_invoices_are_the_ledger(
    business: Business, owner_database: Database, events: list[Use | Credit | Mode], fee: int, least: int
) -> None:
    await forget_bills(owner_database)
    business.charge_at_least(least)
    made = await business.tenant(f"tenant-{next(business._serial)}", since=begin(OCTOBER))
    if fee:
        await business.set_plan(made.id, fee, included=fee // 3)
    tenant = made.id
    for month in MONTHS:
        for number, event in enumerate(one for one in events if one.month == month):
            await _happen(business, tenant, event, number)
        final = begin(following(month)) + timedelta(days=1)
        preview = await business.invoices.preview(tenant, month, now=final)
        await business.close(final)
        invoices = {one.month: one for one in await business.invoices.list(tenant)}
        if month in invoices:
            assert preview.lines == invoices[month].lines
            assert preview.total_cents == invoices[month].total_cents
    invoices_made = list(reversed(await business.invoices.list(tenant)))
    assert [one.number for one in invoices_made] == list(range(1, len(invoices_made) + 1))
    assert await InvoiceVerification(business.database).verify() == []

    # Everything the ledger has is on a line, once.
    lines = [line for one in invoices_made for line in one.lines]
    of_kind = {kind: sum(line.amount for line in lines if line.kind == kind) for kind in KINDS}
    assert of_kind["usage"] == await business.spent(tenant)
    # What was asked for is that and the fees, less what the balance paid, but for what rounding left over.
    asked = 10_000 * sum(one.total_cents for one in invoices_made)
    left = invoices_made[-1].carried_out if invoices_made else 0
    owed = of_kind["usage"] + of_kind["fee"] + of_kind["allowance"] + of_kind["prepaid"]
    assert asked + left == owed + of_kind["credit"] + of_kind["kept"]
    assert -5_000 <= left < max(5_000, 10_000 * least)
    assert all(one.total_cents == 0 or one.total_cents >= least for one in invoices_made)
    # The balance is what was put in, less what is on invoices as paid from it.
    put_in = sum(event.amount for event in events if isinstance(event, Credit))
    drawn = -of_kind["prepaid"] - of_kind["credit"] - of_kind["kept"]
    assert (await business.credits.balance(tenant)).amount == put_in - drawn


KINDS = ("usage", "fee", "allowance", "prepaid", "carried", "credit", "kept")


async def _happen(business: Business, tenant: str, event: Use | Credit | Mode, number: int) -> None:
    now = at(event.month, 20, 1 + number)
    if isinstance(event, Use):
        prompt, cached, completion = event.tokens
        request = await business.use(
            tenant, event.when, prompt, cached=cached, completion=completion, rate=event.rate
        )
        if event.reversed:
            await ReversalService(business.database).reverse_request(
                tenant, request, event.when, reason="billed in error", by=OPERATOR, now=now
            )
    elif isinstance(event, Credit):
        reference = f"{event.month}-{number}"
        await business.credits.add(tenant, "top_up", event.amount, reference, OPERATOR, now=now)
    else:
        mode = "prepaid" if event.prepaid else "postpaid"
        await business.accounts.set_mode(tenant, mode, OPERATOR, now=now)  # type: ignore[arg-type]


async def test_recomputing_gives_the_same_integers_until_something_is_damaged(
    business: Business, owner_database: Database
) -> None:
    acme = await business.tenant(since=begin(OCTOBER))
    for day in (1, 9, 31):
        await business.use(acme.id, at(OCTOBER, day), 33_333, cached=7, completion=5, rate=RATES[1])
    await business.credits.add(acme.id, "grant", 5_000, "g", OPERATOR, now=at(OCTOBER))
    await business.close(at(DECEMBER, 2))
    verification = InvoiceVerification(business.database)
    assert await verification.verify() == []
    late = await business.use(acme.id, at(OCTOBER, 20), 12_345)
    assert await verification.verify() == [], "what came late is for the next invoice"
    assert await verification.late(acme.id) == {OCTOBER: 12_345}

    known: set[str] = set()
    for statement, what in (
        (f"DELETE FROM usage_records WHERE request_id = '{late}'", "sums of usage input sapling default"),
        ("UPDATE invoices SET total_cents = total_cents + 1, total = total + 10000", "total"),
        ("DELETE FROM credits WHERE kind = 'applied'", "balance: applied"),
        (
            "UPDATE invoice_lines SET amount = amount + 99999 WHERE details ->> 'item' = 'output'",
            "invoiced of usage output sapling default",
        ),
        ("UPDATE invoices SET number = number + 1", "numbers without gaps, from 1"),
    ):
        async with owner_database.write(EVERY_TENANT) as session:
            await session.execute(text("SET LOCAL session_replication_role = replica"))  # no triggers
            await session.execute(text(statement))
        found = {finding.what for finding in await verification.verify()}
        assert what in found - known, statement
        known = found
