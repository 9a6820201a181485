"""Defines the form fields of a plan: how each value is parsed, formatted and compared.

`tenants.plans` and `tenants.tier_terms` decide which values are possible; errors appear beside the field, in
its unit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from adapters.calibration.gate import Gate
from admin import formatting
from admin.amounts import read_dollars
from admin.limits.page import amount_words, amount_written, read_amount, title_of
from admin.operator.prices.page import written as dollars_written
from admin.web.form_errors import FieldError, FormErrors
from billing.previews.service import PlanCosts
from billing.rates import BATCH_TIER
from engine.protocol import PriorityClass
from tenants.limits.kinds import MAX_AMOUNT, MAX_RATE, Metric
from tenants.plans import MOST, SETTABLE, PlanChanges
from tenants.tier_terms import BOUNDS, FIXED, MILLION, OPTIONAL, read
from tenants.views import PlanView

Part = Literal["plan", "limits", "gate"] | PriorityClass
"""Where in a plan a value is: a number of its own, a limit, a threshold, or a term of a class."""
NONE, UNLIMITED = "none", "No limit"
MAX_FIELDS = 80
"""Of a form: all of them, and what goes with them."""
_SHARE = re.compile(r"([0-9]{1,3})(?:\.([0-9]{1,4}))?")
_RUNG = re.compile(r"(?:below )?([0-9.]{1,8}) ?%?(?::| ) ?([0-9]{1,3}) ?%?")
_NUMBER = re.compile(r"-?[0-9]{1,6}(?:\.[0-9]{1,10})?")


@dataclass(frozen=True)
class Unit:
    """How values of a kind are read, written into a field, and told."""

    read: Callable[[str, str], Any]
    """From what was written; the field's name is for the refusal. Raises Refused."""
    written: Callable[[Any], str]
    told: Callable[[Any], str]
    control: Literal["input", "check", "lines"] = "input"
    mode: str = "numeric"
    """What keyboard a telephone shows."""
    name: str = ""
    """What a field's label says it is in."""


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
        """Raises Refused."""
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
        return UNLIMITED if value is None else self.unit.told(value)


@dataclass(frozen=True)
class Group:
    """Fields that are seen together."""

    id: str
    title: str
    note: str
    """From when on a change of them counts."""
    fields: tuple[Field, ...]


@dataclass(frozen=True)
class Difference:
    """What a value is and would be, in words."""

    group: str
    label: str
    before: str
    after: str


def _read_share(text: str, field: str) -> int:
    found = _SHARE.fullmatch(text.removesuffix("%").strip())
    if found is None:
        raise FieldError(field, "Enter a percentage such as 99.9.")
    return int(found[1]) * 10_000 + int((found[2] or "").ljust(4, "0"))


def _share(ppm: float) -> str:
    return f"{ppm / 10_000:.4f}".rstrip("0").rstrip(".")


def _read_rungs(text: str, field: str) -> tuple[tuple[int, int], ...]:
    table = []
    for line in text.splitlines():
        if not line.strip():
            continue
        found = _RUNG.fullmatch(" ".join(line.split()))
        if found is None:
            raise FieldError(field, f"Write each line like 99.9: 10, not {line.strip()[:40]}.")
        below, percent = _read_share(found[1], field), int(found[2])
        if not (0 < below <= MILLION and 0 < percent <= 100):
            raise FieldError(field, "Percentages must be greater than 0 and at most 100.")
        table.append((below, percent))
    try:
        read({PriorityClass.DEFAULT: {"credits": table}})
    except ValueError:
        raise FieldError(
            field, "Each line must have a lower percentage and a higher credit than the one before."
        ) from None
    return tuple(table)


def _rungs(table: Iterable[tuple[int, int]]) -> str:
    return "\n".join(f"{_share(below)}: {percent}" for below, percent in table)


def _rungs_told(table: Iterable[tuple[int, int]]) -> str:
    return ", ".join(f"{percent}\u00a0% below {_share(below)}\u00a0%" for below, percent in table) or NONE


def _read_number(text: str, field: str) -> float:
    if _NUMBER.fullmatch(text) is None:
        raise FieldError(field, "Enter a number such as 0.02.")
    return float(text)


def _size_told(num_bytes: float) -> str:
    rough, exact = formatting.size(int(num_bytes)), amount_written(Metric.STORAGE_BYTES, int(num_bytes))
    return exact if not exact.isdecimal() else f"{rough} ({int(num_bytes):,} B)"


def _counted(unit: str = "") -> Unit:
    return Unit(
        lambda text, field: read_amount(Metric.REQUESTS_PER_DAY, text, field),
        lambda value: str(int(value)),
        lambda value: f"{formatting.count(value)} {unit}".rstrip(),
        name=unit,
    )


def _of_limit(metric: Metric) -> Unit:
    return Unit(
        lambda text, field: read_amount(metric, text, field),
        lambda value: amount_written(metric, value),
        lambda value: (
            amount_words(metric, int(value)) if metric != Metric.STORAGE_BYTES else _size_told(value)
        ),
        mode="decimal",
    )


_DOLLARS = Unit(read_dollars, dollars_written, formatting.usd, mode="decimal", name="USD")
_SIZE = _of_limit(Metric.STORAGE_BYTES)
_COUNT, _MS, _PERCENT = _counted(), _counted("ms"), _counted("%")
_PPM = Unit(_read_share, _share, lambda ppm: f"{_share(ppm)} %" if ppm else NONE, mode="decimal", name="%")
_YES = Unit(
    lambda text, _: text == "on",
    lambda is_on: "on" if is_on else "",
    lambda is_on: "Yes" if is_on else "No",
    "check",
)
_LINES = Unit(_read_rungs, _rungs, _rungs_told, "lines")
_NATS = Unit(_read_number, lambda value: f"{value:.10g}", lambda value: f"{value:.10g}", mode="decimal")

_TERMS: Mapping[str, tuple[str, Unit, str]] = {
    "allowed": ("Available", _YES, ""),
    "price_percent": ("Price", _PERCENT, "Percentage of the list price."),
    "contracted_tokens_per_minute": (
        "Contracted tokens per minute",
        _COUNT,
        "Input and output. Requests above are served and billed as default. Leave empty for no limit.",
    ),
    "ttft_target_ms": ("Target time to first token", _MS, "A target, shown in reports."),
    "max_wait_ms": (
        "Maximum wait",
        _MS,
        "Requests that would wait longer are rejected immediately. Leave empty for the engine's default.",
    ),
    "min_output_tokens_per_second": (
        "Output tokens per second",
        _COUNT,
        "Guaranteed after the first token. 0 for no guarantee.",
    ),
    "output_rate_ppm": ("Share of requests at that speed", _PPM, "Per month. 0 for no guarantee."),
    "availability_ppm": ("Availability", _PPM, "Share of a month's requests. 0 for no guarantee."),
    "credits": (
        "Credits",
        _LINES,
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
    return Field(tier, name, label, unit, hint, low, high, name in OPTIONAL)


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
    return Field("limits", metric.value, title_of(metric), _of_limit(metric), hint, 0, most, optional=True)


def _threshold(name: str) -> Field:
    bounds = (0, 1) if name.startswith("min_top1") else (-1000, 1000)
    return Field("gate", name, _GATE[name], _NATS, "", *bounds)


GROUPS = (
    Group(
        "fees",
        "Fees",
        "A month is billed at the fees in effect when it ends.",
        (
            Field("plan", "monthly_fee", "Monthly fee", _DOLLARS, "", 0, MOST["monthly_fee"]),
            Field(
                *("plan", "included_usage", "Included usage", _DOLLARS),
                *("Usage included each month.", 0, MOST["included_usage"]),
            ),
        ),
    ),
    Group(
        "limits",
        "Limits",
        "Take effect within a second. Tenants can set lower limits, but not higher ones. Empty: no limit.",
        (
            Field("plan", "max_adapters", "Adapters", _COUNT, "", 0, MOST["max_adapters"]),
            Field("plan", "pinned_adapters", "Adapters kept loaded", _COUNT, "", 0, MOST["pinned_adapters"]),
            Field(
                *("plan", "max_file_bytes", "Maximum file size", _SIZE, "For example 500 MB or 20 GB"),
                *(0, MOST["max_file_bytes"]),
            ),
            Field(
                *("plan", "response_days", "Days responses are kept", _COUNT),
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
                *("plan", "batch_price_percent", "Price of batches", _PERCENT),
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


def written(plan: PlanView) -> dict[str, str]:
    """The form's fields, by name."""
    return {field.name: field.written(field.of(plan)) for field in FIELDS}


def read_values(fields: Mapping[str, str]) -> tuple[dict[str, Any], FormErrors]:
    """Values by the fields' names, and what is wrong with the others."""
    values, errors = {}, FormErrors()
    for field in FIELDS:
        try:
            values[field.name] = field.read(fields.get(field.name, ""))
        except FieldError as error:
            errors[field.name] = error.message
    return values, errors


def differing(plan: PlanView, values: Mapping[str, Any]) -> list[Field]:
    """Where the values are others than the plan's."""
    return [field for field in FIELDS if not _same(field.of(plan), values[field.name])]


def differences(plan: PlanView, values: Mapping[str, Any]) -> list[Difference]:
    """In words."""
    differ = {*differing(plan, values)}
    return [
        Difference(group.title, field.label, field.told(field.of(plan)), field.told(values[field.name]))
        for group in GROUPS
        for field in group.fields
        if field in differ
    ]


def between(before: PlanView, after: PlanView) -> list[Difference]:
    """What a tenant gets otherwise on another plan."""
    return differences(before, {field.name: field.of(after) for field in FIELDS})


def changes(plan: PlanView, values: Mapping[str, Any]) -> PlanChanges:
    """What makes the plan have the values; what it has already is left alone."""
    numbers: dict[str, Any] = {}
    parts: dict[str, dict[str, Any]] = {"limits": {}, "gate": {}}
    terms: dict[str, dict[str, Any]] = {}
    for field in differing(plan, values):
        value = values[field.name]
        if isinstance(field.part, PriorityClass):
            of_class = terms.setdefault(field.part.value, {})
            of_class[field.key] = [*map(list, value)] if field.key == "credits" else value
        elif field.part == "plan":
            numbers[field.key] = value
        else:
            parts[field.part][field.key] = value
    return PlanChanges(**numbers, limits=parts["limits"], gate=parts["gate"], terms=terms)


def costs(plan: PlanView, values: Mapping[str, Any] | None = None) -> PlanCosts:
    """What the plan's tenants pay by, as it is, or as it would be with the values."""
    found = {field.name: field.of(plan) for field in FIELDS} if values is None else values
    percents = {tier.value: found[f"{tier}_price_percent"] for tier in PriorityClass}
    percents[BATCH_TIER] = found["batch_price_percent"]
    return PlanCosts(percents, found["monthly_fee"], found["included_usage"])


def costs_otherwise(plan: PlanView, values: Mapping[str, Any]) -> bool:
    return costs(plan) != costs(plan, values)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=0, abs_tol=1e-9)
    return bool(one == other)
