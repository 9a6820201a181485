"""Computes the surcharge on requests that use another organization's adapter, and divides it.

Money is whole micro-USD. Both amounts come from the same exact product of tokens and prices and are rounded
once: the surcharge up, as a request's cost is, the owner's part down. The platform keeps the difference, so
the two parts always add up to the surcharge.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_SURCHARGE = 10**9
"""Micro-USD per million tokens, that is a thousand dollars."""
_PER_MILLION = 1_000_000
_ID = re.compile(r"[0-9A-Za-z_]{1,64}")


@dataclass(frozen=True, slots=True)
class ShareTerms:
    """What a request on a shared adapter pays besides its price, and to whom."""

    share_id: str
    owner_id: str
    """The organization that owns the adapter."""
    input: int
    """Micro-USD per million prompt tokens, cached or not."""
    output: int
    """Micro-USD per million completion tokens."""
    owner_percent: int
    """The owner's part of the surcharge; the rest is the platform's."""

    def surcharge(self, prompt_tokens: int, completion_tokens: int) -> int:
        """Returns the surcharge in micro-USD, rounded up."""
        return -(-self._product(prompt_tokens, completion_tokens) // _PER_MILLION)

    def owner_part(self, prompt_tokens: int, completion_tokens: int) -> int:
        """Returns the owner's part of the surcharge in micro-USD, rounded down."""
        return self._product(prompt_tokens, completion_tokens) * self.owner_percent // (100 * _PER_MILLION)

    def _product(self, prompt_tokens: int, completion_tokens: int) -> int:
        return prompt_tokens * self.input + completion_tokens * self.output

    @property
    def label(self) -> str:
        """The terms as a request carries them in its label."""
        return f"{self.share_id}:{self.owner_id}:{self.input}:{self.output}:{self.owner_percent}"

    @classmethod
    def of_label(cls, label: str) -> ShareTerms:
        """Parses a `label`. Raises ValueError if it is not one."""
        share_id, _, rest = label.partition(":")
        owner_id, *numbers = rest.split(":")
        are_ids = _ID.fullmatch(share_id) is not None and _ID.fullmatch(owner_id) is not None
        if not are_ids or len(numbers) != 3 or not all(one.isascii() and one.isdecimal() for one in numbers):
            raise ValueError(f"share is {label[:80]!r}")
        terms = cls(share_id, owner_id, *map(int, numbers))
        if max(terms.input, terms.output) > MAX_SURCHARGE or terms.owner_percent > 100:
            raise ValueError(f"share is {label[:80]!r}")
        return terms
