"""Computes what one request costs, and carries its rate in a label.

Money is whole micro-USD. Prices are micro-USD per million tokens, a service tier pays a whole percentage of
them, and the cost of a request is rounded up once, to the next micro-USD: the same counts always cost the
same integer, here and in the ledger's column `cost`. `billing.pricing` reads the prices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from billing.errors import MalformedEvent
from engine.protocol import Usage
from tenants.share_terms import ShareTerms

RATE_LABEL = "rate"
"""The label of a request that holds `Rate.label`."""
SHARE_LABEL = "share"
"""The label of a request on a shared adapter that holds `ShareTerms.label`."""
BATCH_TIER = "batch"
"""The service tier of a batch's lines in the ledger and on invoices: its price is the plan's, apart from the
tiers that requests can ask for.
"""
MAX_PRICE = 10**12
"""Micro-USD per million tokens, that is a million dollars."""
MAX_RATE = 2 * MAX_PRICE
"""The price and the adapter surcharge together."""
MAX_PERCENT = 10_000
MICRO_USD_PER_CENT = 10_000
_UNIT = 100 * 1_000_000


@dataclass(frozen=True, slots=True)
class Rate:
    """The prices of one request, including the operator's adapter surcharge if it is on an adapter."""

    price_id: str
    """The version of the price list; empty before there is one."""
    input: int
    cached_input: int
    output: int
    percent: int = 100
    """The percentage that the service tier pays."""
    share: ShareTerms | None = None
    """What a request on a shared adapter pays besides; the service tier's percentage does not apply to it."""

    def cost(self, usage: Usage) -> int:
        """Returns micro-USD for the usage: price and surcharge, each rounded up."""
        uncached = usage.prompt_tokens - usage.cached_tokens
        tokens = (
            uncached * self.input
            + usage.cached_tokens * self.cached_input
            + usage.completion_tokens * self.output
        )
        return -(-tokens * self.percent // _UNIT) + self._surcharge(
            usage.prompt_tokens, usage.completion_tokens
        )

    def worst(self, prompt_tokens: int, completion_tokens: int) -> int:
        """Returns the most that a request of so many tokens can cost, with or without prefix cache hits."""
        tokens = prompt_tokens * max(self.input, self.cached_input) + completion_tokens * self.output
        return -(-tokens * self.percent // _UNIT) + self._surcharge(prompt_tokens, completion_tokens)

    def _surcharge(self, prompt_tokens: int, completion_tokens: int) -> int:
        return 0 if self.share is None else self.share.surcharge(prompt_tokens, completion_tokens)

    @property
    def labels(self) -> dict[str, str]:
        """The labels of a request that pays this rate."""
        labels = {RATE_LABEL: self.label}
        if self.share is not None:
            labels[SHARE_LABEL] = self.share.label
        return labels

    @property
    def label(self) -> str:
        """The rate without `share`, as a request carries it in its label."""
        return f"{self.price_id}:{self.input}:{self.cached_input}:{self.output}:{self.percent}"

    @classmethod
    def of_label(cls, label: str) -> Rate:
        """Parses a `label`. Raises MalformedEvent if it is not one."""
        price_id, *numbers = label.split(":")
        if len(numbers) != 4 or not all(number.isascii() and number.isdecimal() for number in numbers):
            raise MalformedEvent(f"rate is {label[:80]!r}")
        prices = [int(number) for number in numbers]
        return cls(price_id, prices[0], prices[1], prices[2], prices[3])

    @classmethod
    def of_labels(cls, labels: Mapping[str, str]) -> Rate:
        """Returns the rate that a request's labels name, the free rate without one. Raises MalformedEvent."""
        label, share = labels.get(RATE_LABEL, ""), labels.get(SHARE_LABEL, "")
        rate = cls.of_label(label) if label else FREE_RATE
        if not share:
            return rate
        try:
            return replace(rate, share=ShareTerms.of_label(share))
        except ValueError as error:
            raise MalformedEvent(str(error)) from error


FREE_RATE = Rate("", 0, 0, 0)
