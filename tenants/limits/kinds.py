"""Defines the metrics, scopes and amounts of limits, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple, get_args

Scope = Literal["tenant", "project", "key"]
SCOPES: tuple[Scope, ...] = get_args(Scope)

Kind = Literal["rate", "held", "day", "month", "ever", "stored"]
"""How a metric is counted: per minute (`rate`), open at the same time (`held`), per calendar day or month in
UTC, over all time (`ever`), or as rows in the database (`stored`).
"""
BUDGETS: frozenset[Kind] = frozenset({"day", "month", "ever"})
"""Kinds that are counted exactly, starting from the usage in the ledger."""
Measure = Literal["requests", "input_tokens", "output_tokens", "tokens", "spend", "stored"]

COVERED_MODEL = r"[a-z0-9._-]{1,64}(:(\*|([a-z0-9._-]{1,64}/)?[a-z0-9._-]{1,64}(@[1-9][0-9]{0,8})?))?"
"""Pattern of what a key or a limit covers: `base` alone, `base:*` for its adapters, `base:adapter` or
`base:adapter@version`.
"""
MAX_RATE = 10**11
"""Largest amount per minute: Redis counts it in sixty-thousandths, which stay exact in a double."""
MAX_AMOUNT = 1 << 50


class Metric(StrEnum):
    REQUESTS_PER_MINUTE = "requests_per_minute"
    TOKENS_PER_MINUTE = "tokens_per_minute"
    INPUT_TOKENS_PER_MINUTE = "input_tokens_per_minute"
    OUTPUT_TOKENS_PER_MINUTE = "output_tokens_per_minute"
    CONCURRENT_REQUESTS = "concurrent_requests"
    REQUESTS_PER_DAY = "requests_per_day"
    TOKENS_PER_DAY = "tokens_per_day"
    TOKENS_PER_MONTH = "tokens_per_month"
    SPEND_PER_MONTH = "spend_per_month"
    """Micro-USD."""
    PREPAID_BALANCE = "prepaid_balance"
    """Micro-USD: the sum of all credits, against which usage counts over all time. Set by payments, never by
    a plan or a tenant.
    """
    ADAPTERS = "adapters"
    STORAGE_BYTES = "storage_bytes"
    BATCH_LINES = "batch_lines"
    """Lines without a result, of all batches that run."""

    @property
    def kind(self) -> Kind:
        return _COUNTED[self].kind

    @property
    def measure(self) -> Measure:
        return _COUNTED[self].measure


class _Counted(NamedTuple):
    kind: Kind
    measure: Measure


_COUNTED = {
    Metric.REQUESTS_PER_MINUTE: _Counted("rate", "requests"),
    Metric.TOKENS_PER_MINUTE: _Counted("rate", "tokens"),
    Metric.INPUT_TOKENS_PER_MINUTE: _Counted("rate", "input_tokens"),
    Metric.OUTPUT_TOKENS_PER_MINUTE: _Counted("rate", "output_tokens"),
    Metric.CONCURRENT_REQUESTS: _Counted("held", "requests"),
    Metric.REQUESTS_PER_DAY: _Counted("day", "requests"),
    Metric.TOKENS_PER_DAY: _Counted("day", "tokens"),
    Metric.TOKENS_PER_MONTH: _Counted("month", "tokens"),
    Metric.SPEND_PER_MONTH: _Counted("month", "spend"),
    Metric.PREPAID_BALANCE: _Counted("ever", "spend"),
    Metric.ADAPTERS: _Counted("stored", "stored"),
    Metric.STORAGE_BYTES: _Counted("stored", "stored"),
    Metric.BATCH_LINES: _Counted("stored", "stored"),
}


@dataclass(frozen=True, slots=True)
class Amounts:
    """What a request reserves or has used."""

    requests: int = 1
    input_tokens: int = 0
    output_tokens: int = 0
    spend: int = 0
    """Micro-USD."""


NOTHING = Amounts(requests=0)


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `amount` of `metric` for all requests of the scope."""

    scope: Scope
    scope_id: str
    """Id of the tenant, the project or the key."""
    model: str
    """Empty for all models. Otherwise as in a key's list: `base` for the base model alone, `base:*` for its
    adapters, `base:adapter` for all versions of an adapter, `base:adapter@version` for one.
    """
    metric: Metric
    amount: int
    counted_as: str | None = field(default=None, compare=False)
    """Id that it is counted under: of rotated keys, the first one's. None: its own."""

    @property
    def counted_id(self) -> str:
        """The id that usage is counted under."""
        return self.counted_as or self.scope_id

    def covers(self, model_name: str) -> bool:
        """Returns whether a request for this model, by its full name, counts towards the limit."""
        model = self.model
        if not model or model == model_name:
            return True
        base, colon, _ = model_name.partition(":")
        return bool(colon) and model in (f"{base}:*", model_name.partition("@")[0])


def check_amount(metric: Metric, amount: int) -> None:
    """Raises ValueError naming the field."""
    most = MAX_RATE if metric.kind == "rate" else MAX_AMOUNT
    if isinstance(amount, bool) or not isinstance(amount, int) or not 0 <= amount <= most:
        raise ValueError(f"amount of {metric} must be from 0 to {most}, not {amount!r}")


@dataclass(frozen=True, slots=True)
class RateView:
    """How far a caller is from the tightest limit of a kind, as `x-ratelimit-*` headers report it."""

    limit: int
    remaining: int
    reset_seconds: float
    """Seconds until none of the limit is used."""
