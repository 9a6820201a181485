"""Defines the form fields of a plan, in groups.

`tenants.plans` and `tenants.tier_terms` decide which values are possible; errors appear beside the field, in
its unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from adapters.calibration.gate import Gate
from admin.limits.page import title_of
from admin.operator.plans.units import (
    COUNT,
    DOLLARS,
    LINES,
    MILLISECONDS,
    NATS,
    PERCENT,
    PPM,
    RATE,
    SIZE,
    YES,
    Unit,
    unit_of_limit,
)
from admin.web.form_errors import FieldError
from engine.protocol import PriorityClass
from tenants.limits.kinds import MAX_AMOUNT, MAX_RATE, Metric
from tenants.plans import MOST, SETTABLE
from tenants.tier_terms import BOUNDS, FIXED, OPTIONAL
from tenants.views import PlanView

Part = Literal["plan", "limits", "gate"] | PriorityClass
"""Where in a plan a value is: a number of its own, a limit, a threshold, or a term of a class."""
UNLIMITED, ENGINE_DEFAULT = "No limit", "The engine's default"
MAX_FIELDS = 80
"""Of a form: all of them, and what goes with them."""


@dataclass(frozen=True)
class Field:
    """One value of a plan."""

    part: Part
    key: str
    label: str
    unit: Unit
    hint: str = ""
    low: float = 0
    high: float = 0
    optional: bool = False
    absent: str = UNLIMITED
    """What a page shows where an optional field has no value."""

    @property
    def form_label(self) -> str:
        """The label of the field of a form."""
        return f"{self.label}, in {self.unit.name}" if self.unit.name else self.label

    @property
    def name(self) -> str:
        return f"{self.part}_{self.key}" if self.part != "plan" else self.key

    def of(self, plan: PlanView) -> Any:
        """The value that a plan has."""
        if isinstance(self.part, PriorityClass):
            return getattr(plan.terms[self.part], self.key)
        if self.part == "limits":
            return plan.limits.get(self.key)
        if self.part == "gate":
            return float(plan.gate.get(self.key, getattr(Gate(), self.key)))
        return getattr(plan, self.key)

    def read(self, written: str) -> Any:
        """Raises FieldError."""
        text = written.strip()
        if self.optional and not text:
            return None
        value = self.unit.read(text, self.name)
        if self.unit.control == "input" and not self.low <= value <= self.high:
            bounds = f"from {self.unit.told(self.low)} to {self.unit.told(self.high)}"
            raise FieldError(self.name, f"Enter a value {bounds}.")
        return value

    def written(self, value: Any) -> str:
        return "" if value is None else self.unit.written(value)

    def told(self, value: Any) -> str:
        return self.absent if value is None else self.unit.told(value)


@dataclass(frozen=True)
class Group:
    """Fields that are seen together."""

    id: str
    title: str
    note: str
    """From when on a change of them counts."""
    fields: tuple[Field, ...]


_TERMS: Mapping[str, tuple[str, Unit, str]] = {
    "allowed": ("Available", YES, ""),
    "price_percent": ("Price", PERCENT, "Percentage of the list price."),
    "contracted_tokens_per_minute": (
        "Contracted tokens per minute",
        COUNT,
        "Input and output. Requests above are served and billed as default. Leave empty for no limit.",
    ),
    "ttft_target_ms": ("Target time to first token", MILLISECONDS, "A target, shown in reports."),
    "max_wait_ms": (
        "Maximum wait",
        MILLISECONDS,
        "Requests that would wait longer are rejected immediately. Leave empty for the engine's default.",
    ),
    "min_output_tokens_per_second": (
        "Output tokens per second",
        RATE,
        "Guaranteed after the first token. 0 for no guarantee.",
    ),
    "output_rate_ppm": ("Requests at that speed", PPM, "Per month. 0 for no guarantee."),
    "availability_ppm": ("Availability", PPM, "Share of a month's requests. 0 for no guarantee."),
    "credits": (
        "Credits",
        LINES,
        "One per line: if delivery falls below this percentage, credit this percentage of the month's cost.",
    ),
}
_GATE = {
    "min_gain": "Minimum gain over base model",
    "max_doubling_gain": "Maximum gain at double scale",
    "max_loss": "Maximum loss (default samples)",
    "max_nll_rise": "Maximum rise from quantization",
    "max_nll_rise_default": "Maximum rise from quantization (default samples)",
    "min_top1": "Minimum agreement",
    "min_top1_default": "Minimum agreement (default samples)",
    "fp8_max_nll_rise": "Maximum rise of FP8 over bf16",
    "fp8_max_top1_loss": "Maximum agreement loss of FP8",
}


def _term(tier: PriorityClass, name: str) -> Field:
    label, unit, hint = _TERMS[name]
    low, high = BOUNDS.get(name, (0, 0))
    absent = ENGINE_DEFAULT if name == "max_wait_ms" else UNLIMITED
    return Field(tier, name, label, unit, hint, low, high, name in OPTIONAL, absent)


def _class(tier: PriorityClass) -> Group:
    fixed = FIXED if tier == PriorityClass.DEFAULT else {}
    note = (
        "Applies to new requests. Each part of a month is measured against the targets that were "
        "in effect at the time."
    )
    fields = tuple(_term(tier, name) for name in _TERMS if name not in fixed)
    return Group(tier.value, f"{tier.value.capitalize()} tier", note, fields)


def _limit(metric: Metric) -> Field:
    most = MAX_RATE if metric.kind == "rate" else MAX_AMOUNT
    hint = "US dollars" if metric.measure == "spend" else ""
    hint = "For example 500 MB or 20 GB" if metric == Metric.STORAGE_BYTES else hint
    return Field(
        "limits", metric.value, title_of(metric), unit_of_limit(metric), hint, 0, most, optional=True
    )


def _threshold(name: str) -> Field:
    bounds = (0, 1) if name.startswith("min_top1") else (-1000, 1000)
    return Field("gate", name, _GATE[name], NATS, "", *bounds)


GROUPS = (
    Group(
        "fees",
        "Fees",
        "A month is billed at the fees in effect when it ends.",
        (
            Field("plan", "monthly_fee", "Monthly fee", DOLLARS, "", 0, MOST["monthly_fee"]),
            Field(
                *("plan", "included_usage", "Included usage", DOLLARS),
                *("Usage included each month.", 0, MOST["included_usage"]),
            ),
        ),
    ),
    Group(
        "limits",
        "Limits",
        "Take effect within a second. Tenants can set lower limits, but not higher ones. Empty: no limit.",
        (
            Field("plan", "max_adapters", "Adapters", COUNT, "", 0, MOST["max_adapters"]),
            Field("plan", "pinned_adapters", "Adapters kept loaded", COUNT, "", 0, MOST["pinned_adapters"]),
            Field(
                *("plan", "max_file_bytes", "Maximum file size", SIZE, "For example 500 MB or 20 GB"),
                *(0, MOST["max_file_bytes"]),
            ),
            Field(
                *("plan", "response_days", "Days responses are kept", COUNT),
                *("Stored responses and conversations.", 0, MOST["response_days"]),
            ),
            *(_limit(metric) for metric in SETTABLE),
        ),
    ),
    *(_class(tier) for tier in PriorityClass),
    Group(
        "batches",
        "Batches",
        "Applies to lines that begin from now on.",
        (
            Field(
                *("plan", "batch_price_percent", "Price of batches", PERCENT),
                *("Percentage of the list price.", 0, MOST["batch_price_percent"]),
            ),
        ),
    ),
    Group(
        "gate",
        "Calibration",
        "Thresholds for new calibrations, in nats per token or shares of tokens.",
        tuple(_threshold(name) for name in msgspec.structs.asdict(Gate())),
    ),
)
FIELDS = tuple(field for group in GROUPS for field in group.fields)
