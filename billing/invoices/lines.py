"""Computes the lines of a bill from the ledger and what was invoiced before, in integer arithmetic.

Every micro-USD of the ledger is on exactly one line of one invoice, and invoices never change. An invoice has
the month's usage, and for each earlier month the difference between its ledger now and everything invoiced
for it. The total is rounded once to whole cents, half a cent up. The rounding difference is carried to the
next invoice, and so is the whole total if it is less than the minimum charge.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, Literal

from billing.rates import MICRO_USD_PER_CENT

LineKind = Literal[
    "usage",
    "storage",
    "calibration",
    "earnings",
    "fee",
    "allowance",
    "prepaid",
    "carried",
    "credit",
    "kept",
]
Key = tuple[str, str, str, str]
HALF_A_CENT = MICRO_USD_PER_CENT // 2


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """Usage of one month with the same key."""

    kind: LineKind
    item: str
    """`input`, `cached_input` or `output` tokens; `surcharge` or `share`, also in tokens; `byte_days`;
    `jobs`.
    """
    model: str
    service_tier: str
    quantity: int
    amount: int

    @property
    def key(self) -> Key:
        return (self.kind, self.item, self.model, self.service_tier)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a bill."""

    kind: LineKind
    month: date
    description: str
    amount: int
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MonthBooks:
    """A tenant's month: its ledger now, the part paid from the balance, and what was invoiced for it."""

    month: date
    ledger: Sequence[LedgerLine]
    covered: int = 0
    invoiced: Sequence[LedgerLine] = ()
    invoiced_covered: int = 0


@dataclass(frozen=True, slots=True)
class Bill:
    lines: tuple[Line, ...]
    total: int
    total_cents: int
    carried_out: int

    @property
    def owed_nothing(self) -> bool:
        """Whether no invoice is needed: a rounding difference can wait."""
        return all(line.amount == 0 or line.kind in ("carried", "credit", "kept") for line in self.lines)

    def of(self, kind: LineKind) -> int:
        return sum(line.amount for line in self.lines if line.kind == kind)


def in_cents(total: int, minimum_cents: int = 0) -> tuple[int, int]:
    """Returns the cents of a total, rounded half up, or zero below the minimum charge; and the micro-USD
    left over.
    """
    cents = (total + HALF_A_CENT) // MICRO_USD_PER_CENT
    if cents < minimum_cents:
        cents = 0
    return cents, total - cents * MICRO_USD_PER_CENT


def was_too_little(carried: int) -> bool:
    """Whether an invoice carries its whole total to the next, rather than a rounding difference."""
    return carried >= HALF_A_CENT


def bill(
    current: MonthBooks,
    earlier: Sequence[MonthBooks] = (),
    *,
    carried_in: int = 0,
    fee: int = 0,
    included: int = 0,
    balance: int = 0,
    plan: str = "",
    minimum_cents: int = 0,
) -> Bill:
    """Returns the bill of a month.

    Args:
        earlier: earlier months whose ledger differs, or may differ, from what was invoiced.
        included: micro-USD of the month's own usage that the fee covers.
        balance: micro-USD available, after prepaid usage.
        minimum_cents: the minimum charge.
    """
    month = current.month
    lines = [
        *([_carried(month, carried_in)] if carried_in else []),
        *([Line("fee", month, f"Plan {plan}".strip() + ", monthly fee", fee)] if fee else []),
        *_differences(current),
    ]
    own = sum(one.amount for one in current.ledger if one.kind != "earnings")
    allowance = min(included, max(0, own - current.covered))
    if allowance:
        lines.append(Line("allowance", month, "Usage included in the plan", -allowance))
    lines += _prepaid(current)
    for books in sorted(earlier, key=lambda one: one.month):
        late = _differences(books)
        lines += [
            replace(line, description=f"Usage of {books.month:%B %Y}, recorded late: {line.description}")
            for line in late
        ]
        lines += _prepaid(books)
    owed = sum(line.amount for line in lines)
    if owed < 0:
        lines.append(Line("kept", month, "Added to your balance", -owed))
        owed = 0
    taken = min(owed, max(0, balance))
    if taken:
        lines.append(Line("credit", month, "Applied from your balance", -taken))
    total = owed - taken
    return Bill(tuple(lines), total, *in_cents(total, minimum_cents))


def _carried(month: date, amount: int) -> Line:
    if was_too_little(amount):
        return Line("carried", month, "Balance below the minimum charge, from the previous invoice", amount)
    return Line("carried", month, "Rounding carried from the previous invoice", amount)


def _differences(books: MonthBooks) -> list[Line]:
    """Returns lines for the ledger less what was invoiced, by key, negative ones too."""
    quantities: dict[Key, int] = {}
    amounts: dict[Key, int] = {}
    for sign, lines in ((1, books.ledger), (-1, books.invoiced)):
        for line in lines:
            quantities[line.key] = quantities.get(line.key, 0) + sign * line.quantity
            amounts[line.key] = amounts.get(line.key, 0) + sign * line.amount
    return [
        _line(books.month, key, quantities[key], amounts[key])
        for key in sorted(amounts, key=_order)
        if amounts[key] or (quantities[key] and not books.invoiced)
    ]


def _prepaid(books: MonthBooks) -> list[Line]:
    amount = books.covered - books.invoiced_covered
    if not amount:
        return []
    return [Line("prepaid", books.month, "Prepaid usage, paid from your balance", -amount)]


_KINDS = ("usage", "storage", "calibration", "earnings")
_ITEMS = ("input", "cached_input", "output", "surcharge")
_NAMES = {
    "input": "input tokens",
    "cached_input": "cached input tokens",
    "output": "output tokens",
    "surcharge": "surcharge of the adapter's owner",
}


def _order(key: Key) -> tuple[int, str, str, int, str]:
    kind, item, model, tier = key
    return (_KINDS.index(kind), model, tier, _ITEMS.index(item) if item in _ITEMS else 9, item)


def _line(month: date, key: Key, quantity: int, amount: int) -> Line:
    kind, item, model, tier = key
    if kind == "storage":
        description = "Adapter storage"
    elif kind == "calibration":
        description = "Adapter calibration"
    elif kind == "earnings":
        description = f"{model}, your part of the surcharge"
    else:
        description = f"{model or 'no model'}, {tier}, {_NAMES.get(item, item)}"
    details = {"item": item, "model": model, "service_tier": tier, "quantity": quantity}
    return Line(kind, month, description, amount, details)  # type: ignore[arg-type]


def ledger_line(kind: str, details: dict[str, Any], amount: int) -> LedgerLine:
    """Returns the ledger line that a stored invoice line stands for."""
    return LedgerLine(
        kind,  # type: ignore[arg-type]
        details["item"],
        details["model"],
        details["service_tier"],
        details["quantity"],
        amount,
    )


def added(lines: Iterable[LedgerLine]) -> dict[Key, tuple[int, int]]:
    """Returns quantity and amount by key."""
    sums: dict[Key, tuple[int, int]] = {}
    for line in lines:
        quantity, amount = sums.get(line.key, (0, 0))
        sums[line.key] = (quantity + line.quantity, amount + line.amount)
    return sums
