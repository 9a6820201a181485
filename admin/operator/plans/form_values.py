"""Reads the values of a plan's form, compares them with a plan, and makes them a change of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from admin.operator.plans.fields import FIELDS, GROUPS, Field
from admin.web.form_errors import FieldError, FormErrors
from billing.previews.service import PlanCosts
from billing.rates import BATCH_TIER
from engine.protocol import PriorityClass
from tenants.plans import PlanChanges
from tenants.views import PlanView


@dataclass(frozen=True)
class Difference:
    """What a value is and would be, in words."""

    group: str
    label: str
    before: str
    after: str


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
