"""What one request pays, and the arithmetic of its bill.

Money is whole micro-USD. Prices are micro-USD per million tokens, a class of service pays a whole percentage
of them, and the cost of a request is rounded up once, to the next micro-USD: the same counts always cost the
same integer, here and in the ledger's column `cost`. Refuses to know where prices come from.
"""

from __future__ import annotations

from dataclasses import dataclass

from billing.errors import MalformedEvent
from engine.protocol import Usage

RATE_LABEL = "rate"
"""A request's label that says what it pays: `Rate.label`."""
MAX_PRICE = 10**12
"""Micro-USD per million tokens: a million dollars for them."""
MAX_RATE = 2 * MAX_PRICE
"""With the surcharge for an adapter."""
MAX_PERCENT = 10_000
MICRO_USD_PER_CENT = 10_000
_UNIT = 100 * 1_000_000


@dataclass(frozen=True, slots=True)
class Rate:
    """What one request pays. The prices hold the surcharge for an adapter, if it is on one."""

    price_id: str
    """The version of the price list; empty before there is any."""
    input: int
    cached_input: int
    output: int
    percent: int = 100
    """Of its class of service."""

    def cost(self, usage: Usage) -> int:
        """Micro-USD of what was used, rounded up."""
        uncached = usage.prompt_tokens - usage.cached_tokens
        tokens = (
            uncached * self.input
            + usage.cached_tokens * self.cached_input
            + usage.completion_tokens * self.output
        )
        return -(-tokens * self.percent // _UNIT)

    def worst(self, prompt_tokens: int, completion_tokens: int) -> int:
        """The most that a request of so many tokens can cost, whatever is found in the prefix cache."""
        tokens = prompt_tokens * max(self.input, self.cached_input) + completion_tokens * self.output
        return -(-tokens * self.percent // _UNIT)

    @property
    def label(self) -> str:
        """The rate as a request carries it."""
        return f"{self.price_id}:{self.input}:{self.cached_input}:{self.output}:{self.percent}"

    @classmethod
    def of_label(cls, label: str) -> Rate:
        """Raises MalformedEvent for what no `label` is."""
        price_id, *numbers = label.split(":")
        if len(numbers) != 4 or not all(number.isascii() and number.isdecimal() for number in numbers):
            raise MalformedEvent(f"rate is {label[:80]!r}")
        return cls(price_id, *map(int, numbers))


FREE_RATE = Rate("", 0, 0, 0)
