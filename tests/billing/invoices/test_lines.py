"""The arithmetic of bills."""

from __future__ import annotations

from datetime import date

from hypothesis import given
from hypothesis import strategies as st

from billing.invoices.lines import LedgerLine, MonthBooks, added, bill, in_cents, ledger_line, was_too_little

SEPTEMBER, OCTOBER, NOVEMBER = date(2026, 9, 1), date(2026, 10, 1), date(2026, 11, 1)
AMOUNTS = st.integers(-(10**9), 10**12)


def usage(amount: int, model: str = "sapling", item: str = "input", quantity: int = 1) -> LedgerLine:
    return LedgerLine("usage", item, model, "default", quantity, amount)


@given(st.integers(0, 10**15))
def test_a_total_is_rounded_half_a_cent_up_and_the_rest_is_known(total: int) -> None:
    cents, rest = in_cents(total)
    assert cents * 10_000 + rest == total
    assert -5_000 <= rest < 5_000


@given(st.lists(st.integers(5_000, 2 * 10**6), min_size=1, max_size=12), st.integers(0, 100))
def test_what_is_too_little_to_be_charged_is_carried_until_it_is_enough(used: list[int], least: int) -> None:
    carried, asked = 0, 0
    for month, amount in enumerate(used, 1):
        books = MonthBooks(date(2026, month, 1), [usage(amount)])
        made = bill(books, carried_in=carried, minimum_cents=least)
        assert made.total_cents == 0 or made.total_cents >= least
        assert made.total == amount + carried == made.total_cents * 10_000 + made.carried_out
        assert (
            made.lines[0].description == "Balance below the minimum charge, from the previous invoice"
        ) == (carried >= 5_000)
        carried, asked = made.carried_out, asked + made.total_cents
    assert asked * 10_000 + carried == sum(used), "whatever is asked for when, it is what was used"
    assert carried < max(5_000, least * 10_000 - 5_000)


def test_half_a_cent_is_asked_for() -> None:
    assert in_cents(15_000) == (2, -5_000)
    assert in_cents(14_999) == (1, 4_999)


@given(
    own=st.lists(AMOUNTS, max_size=4),
    late=st.lists(AMOUNTS, max_size=4),
    carried=st.integers(-5_000, 4_999),
    fee=st.integers(0, 10**9),
    included=st.integers(0, 10**9),
    balance=st.integers(-(10**9), 10**12),
    covered=st.integers(0, 10**9),
)
def test_lines_add_up_to_a_total_that_is_never_below_zero(
    own: list[int], late: list[int], carried: int, fee: int, included: int, balance: int, covered: int
) -> None:
    current = MonthBooks(NOVEMBER, [usage(amount, f"m{i}") for i, amount in enumerate(own)], covered)
    before = MonthBooks(OCTOBER, [usage(amount, f"m{i}") for i, amount in enumerate(late)])
    made = bill(current, [before], carried_in=carried, fee=fee, included=included, balance=balance)
    assert sum(line.amount for line in made.lines) == made.total >= 0
    assert made.total == made.total_cents * 10_000 + made.carried_out
    assert made.of("usage") == sum(own) + sum(late)
    assert 0 <= -made.of("credit") <= max(0, balance)
    assert 0 <= -made.of("allowance") <= included
    if made.of("kept"):
        assert made.total == 0
        assert not made.of("credit"), "nothing is taken where something is put in"


@given(
    then=st.lists(st.tuples(st.sampled_from("abc"), AMOUNTS), max_size=5),
    since=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 10**6)), max_size=5),
)
def test_what_was_invoiced_and_what_came_late_is_the_ledger_by_key(
    then: list[tuple[str, int]], since: list[tuple[str, int]]
) -> None:
    first = bill(MonthBooks(OCTOBER, [usage(amount, model) for model, amount in then]))
    ledger = [usage(amount, model) for model, amount in (*then, *since)]
    invoiced = [ledger_line(line.kind, line.details, line.amount) for line in first.lines if line.details]
    second = bill(MonthBooks(NOVEMBER, []), [MonthBooks(OCTOBER, ledger, 0, invoiced)])
    late = [ledger_line(line.kind, line.details, line.amount) for line in second.lines if line.details]
    amounts = {key: amount for key, (_, amount) in added([*invoiced, *late]).items() if amount}
    assert amounts == {key: amount for key, (_, amount) in added(ledger).items() if amount}
    assert all(line.month == OCTOBER for line in second.lines if line.kind == "usage")


def test_a_bill_of_nothing_but_what_rounding_left_can_wait() -> None:
    assert bill(MonthBooks(NOVEMBER, []), carried_in=-3_000).owed_nothing
    assert bill(MonthBooks(NOVEMBER, [usage(0)])).owed_nothing
    assert not bill(MonthBooks(NOVEMBER, [usage(1)], covered=1)).owed_nothing, "a statement is wanted of it"
    assert not bill(MonthBooks(NOVEMBER, []), fee=1).owed_nothing


def test_the_allowance_covers_what_the_balance_has_not_paid() -> None:
    made = bill(MonthBooks(NOVEMBER, [usage(100)], covered=70), fee=500, included=50, plan="team")
    assert (made.of("fee"), made.of("prepaid"), made.of("allowance"), made.total) == (500, -70, -30, 500)


def test_what_is_just_enough_to_be_charged_is_charged() -> None:
    assert in_cents(500_000, 50) == (50, 0)
    assert in_cents(494_999, 50) == (0, 494_999)


def test_what_rounding_leaves_is_never_a_total_that_was_too_little() -> None:
    assert was_too_little(in_cents(5_000, 2)[1])
    assert not was_too_little(in_cents(14_999)[1])
    assert not was_too_little(4_999)


def test_what_the_balance_paid_of_any_month_is_taken_off_once() -> None:
    current = MonthBooks(NOVEMBER, [usage(100)], covered=70, invoiced_covered=50)
    before = MonthBooks(OCTOBER, [usage(100)], covered=40)
    made = bill(current, [before])
    assert [(line.month, line.amount) for line in made.lines if line.kind == "prepaid"] == [
        (NOVEMBER, -20),
        (OCTOBER, -40),
    ]


def test_a_late_line_has_the_quantity_that_came_late() -> None:
    books = MonthBooks(OCTOBER, [usage(50, quantity=5)], 0, [usage(30, quantity=3)])
    (line,) = bill(MonthBooks(NOVEMBER, []), [books]).lines
    assert (line.amount, line.details["quantity"]) == (20, 2)


def test_what_cost_nothing_is_on_the_bill_of_its_month_and_on_no_later_one() -> None:
    (line,) = bill(MonthBooks(NOVEMBER, [usage(0, quantity=7)])).lines
    assert (line.amount, line.details["quantity"]) == (0, 7)
    late = MonthBooks(OCTOBER, [usage(0, quantity=7)], 0, [usage(0, quantity=3)])
    assert bill(MonthBooks(NOVEMBER, []), [late]).lines == ()


def test_earlier_months_come_in_their_order() -> None:
    books = [MonthBooks(month, [usage(10)]) for month in (OCTOBER, SEPTEMBER)]
    assert [line.month for line in bill(MonthBooks(NOVEMBER, []), books).lines] == [SEPTEMBER, OCTOBER]
