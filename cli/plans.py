"""Manages plans for the operator's commands; each command makes one call to the services."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.errors import UsageError
from cli.service_access import Services, call

if TYPE_CHECKING:
    from tenants.plans import PlanChanges, PlanService
    from tenants.views import PlanView


def changes(
    max_adapters: int | None,
    max_file_bytes: int | None,
    pinned_adapters: int | None,
    gate: Iterable[str],
    terms: Iterable[str] = (),
    limits: Iterable[str] = (),
    monthly_fee: int | None = None,
    included_usage: int | None = None,
    batch_price_percent: int | None = None,
    response_days: int | None = None,
) -> PlanChanges:
    """Parses the command line's options: `gate` as NAME=NUMBER, `terms` as CLASS.NAME=JSON, `limits` as
    METRIC=AMOUNT or METRIC=none. Raises UsageError.
    """
    from tenants.plans import PlanChanges

    thresholds = {}
    for setting in gate:
        name, _, number = setting.partition("=")
        try:
            thresholds[name] = float(number)
        except ValueError:
            raise UsageError(f"--gate {setting!r} cannot be read: write NAME=NUMBER") from None
    return PlanChanges(
        max_adapters,
        max_file_bytes,
        pinned_adapters,
        thresholds,
        _terms(terms),
        _limits(limits),
        monthly_fee,
        included_usage,
        batch_price_percent,
        response_days,
    )


def _limits(settings: Iterable[str]) -> dict[str, int | None]:
    limits: dict[str, int | None] = {}
    for setting in settings:
        metric, _, amount = setting.partition("=")
        if amount != "none" and not (amount.isascii() and amount.isdecimal()):
            raise UsageError(f"--limit {setting!r} cannot be read: write METRIC=AMOUNT or METRIC=none")
        limits[metric] = None if amount == "none" else int(amount)
    return limits


def _terms(settings: Iterable[str]) -> dict[str, dict[str, Any]]:
    terms: dict[str, dict[str, Any]] = {}
    for setting in settings:
        where, _, value = setting.partition("=")
        tier, _, name = where.partition(".")
        try:
            terms.setdefault(tier, {})[name] = json.loads(value)
        except json.JSONDecodeError:
            raise UsageError(f"--term {setting!r} cannot be read: write CLASS.NAME=JSON") from None
    return terms


def list_plans(data: Path | None) -> list[tuple[str, ...]]:
    """Returns rows of name, adapters, file bytes, pinned adapters, fee, included usage, thresholds,
    limits.
    """

    async def work(services: Services) -> list[tuple[str, ...]]:
        return [_row(plan) for plan in await _plans(services).list()]

    return call(data, work)


def create_plan(data: Path | None, name: str, wanted: PlanChanges) -> str:
    """Returns the new plan's id."""

    async def work(services: Services) -> str:
        return (await _plans(services).create(name, wanted)).id

    return call(data, work)


def set_plan(data: Path | None, name: str, wanted: PlanChanges) -> tuple[str, ...]:
    """Returns the changed plan as `list_plans` shows it."""

    async def work(services: Services) -> tuple[str, ...]:
        return _row(await _plans(services).set(name, wanted))

    return call(data, work)


def list_terms(data: Path | None, name: str) -> list[tuple[str, ...]]:
    """Returns rows of service tier, allowed, price, contracted rate, targets, guarantees, credits."""

    async def work(services: Services) -> list[tuple[str, ...]]:
        plan = await _plans(services).find(name)
        return [
            (
                tier,
                "yes" if terms.allowed else "no",
                f"{terms.price_percent} %",
                "-"
                if terms.contracted_tokens_per_minute is None
                else str(terms.contracted_tokens_per_minute),
                str(terms.ttft_target_ms),
                "-" if terms.max_wait_ms is None else str(terms.max_wait_ms),
                str(terms.min_output_tokens_per_second),
                str(terms.availability_ppm),
                str(terms.output_rate_ppm),
                ", ".join(f"{percent} % below {below}" for below, percent in terms.credits) or "-",
            )
            for tier, terms in plan.terms.items()
        ]

    return call(data, work)


def set_tenant_plan(data: Path | None, tenant: str, plan: str) -> None:
    async def work(services: Services) -> None:
        owner = await services.accounts.tenants.find_tenant(tenant)
        await _plans(services).set_tenant_plan(owner.id, plan)

    call(data, work)


def _plans(services: Services) -> PlanService:
    from tenants.plans import PlanService

    return PlanService(services.database, services.redis)


def _row(plan: PlanView) -> tuple[str, ...]:
    from billing.invoices.views import dollars

    gate = ", ".join(f"{name}={threshold:g}" for name, threshold in sorted(plan.gate.items()))
    limits = ", ".join(f"{metric}={amount}" for metric, amount in sorted(plan.limits.items()))
    numbers = (plan.max_adapters, plan.max_file_bytes, plan.pinned_adapters)
    fees = (dollars(plan.monthly_fee), dollars(plan.included_usage))
    return (plan.name, *map(str, numbers), *fees, gate or "-", limits or "-")
