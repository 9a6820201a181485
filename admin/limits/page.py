"""Gathers the limits page with current usage, and parses amounts in the unit of each metric."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from urllib.parse import urlencode

from adapters.catalogue import AdapterCatalogue
from adapters.files.service import FileService
from admin import formatting
from admin.amounts import read_dollars, read_size, size_written
from admin.keys.page import MAX_PROJECTS
from admin.web.form_errors import FieldError
from batches.service import BatchService
from telemetry.tasks import gather_all
from tenants.errors import QuotaUnavailable
from tenants.key_service import KeyService
from tenants.limits.kinds import MAX_AMOUNT, MAX_RATE, Limit, Metric, Scope
from tenants.object_names import NamedObject, NameService
from tenants.projects.service import ProjectService
from tenants.quotas import Quotas
from tenants.quotas.reservation import LimitState
from tenants.quotas.service import LimitService
from tenants.views import PlanView

PAGE = 50
MAX_KEYS = 200
"""Offered to choose from; others are limited from their own page."""
FIELDS = ("for", "metric", "model", "amount", "spend")
Tab = Literal["organisation", "projects", "keys"]
SCOPES: Mapping[Tab, Scope] = {"organisation": "tenant", "projects": "project", "keys": "key"}
_NEAR = 80
_METRICS: Mapping[Metric, tuple[str, str]] = {
    Metric.SPEND_PER_MONTH: ("Spend per month", "US dollars, such as 250 or 99.50"),
    Metric.REQUESTS_PER_MINUTE: ("Requests per minute", ""),
    Metric.TOKENS_PER_MINUTE: ("Tokens per minute", "input and output"),
    Metric.INPUT_TOKENS_PER_MINUTE: ("Input tokens per minute", ""),
    Metric.OUTPUT_TOKENS_PER_MINUTE: ("Output tokens per minute", ""),
    Metric.CONCURRENT_REQUESTS: ("Concurrent requests", ""),
    Metric.REQUESTS_PER_DAY: ("Requests per day", ""),
    Metric.TOKENS_PER_DAY: ("Tokens per day", "input and output"),
    Metric.TOKENS_PER_MONTH: ("Tokens per month", "input and output"),
    Metric.ADAPTERS: ("Adapters", "organization only"),
    Metric.STORAGE_BYTES: ("Storage", "such as 20 GB, organization only"),
    Metric.BATCH_LINES: ("Waiting batch lines", "organization only"),
    Metric.PREPAID_BALANCE: ("Prepaid balance", "from top-ups"),
}
CHOICES = [
    (metric.value, f"{title} ({unit})" if unit else title)
    for metric, (title, unit) in _METRICS.items()
    if metric != Metric.PREPAID_BALANCE
]
_COUNT = re.compile(r"[0-9]{1,16}")


@dataclass(frozen=True)
class LimitRow:
    title: str
    whose: str
    """A project's or a key's name; "" for the organisation."""
    whose_path: str | None
    model: str
    amount: str
    used: str | None
    """None: it cannot be looked up now."""
    share: int
    """Per cent that is used or held, at most 100."""
    tone: str
    """`near`, `over` or ""."""
    note: str
    resets_at: datetime | None
    is_of_plan: bool
    can_change: bool
    query: dict[str, str]
    """What names it in forms."""
    written: str
    """The amount, as the form takes it."""
    behind: str | None
    """Below the console's root: what was used."""


@dataclass(frozen=True)
class Limits:
    tab: Tab
    spend: LimitRow | None
    """The organisation's of a month; None: there is none."""
    rows: list[LimitRow]
    number: int
    """Of the page, from 1."""
    has_more: bool
    is_known: bool
    """False: what is used cannot be looked up just now."""


class LimitsPage:
    """Gathers the pages."""

    def __init__(
        self,
        limits: LimitService,
        quotas: Quotas,
        catalogue: AdapterCatalogue,
        files: FileService,
        names: NameService,
        keys: KeyService,
        projects: ProjectService,
        batches: BatchService,
    ) -> None:
        self._limits = limits
        self._quotas = quotas
        self._catalogue = catalogue
        self._files = files
        self._names = names
        self._keys = keys
        self._projects = projects
        self._batches = batches

    async def gather(self, tenant_id: str, plan: PlanView, tab: Tab, number: int) -> Limits:
        """Raises TenantNotFound, DatabaseUnavailable."""
        own, effective = await gather_all(self._limits.list(tenant_id), self._limits.effective(tenant_id))
        set_ones = {_named(limit) for limit in own}
        adapters = Limit("tenant", tenant_id, "", Metric.ADAPTERS, plan.max_adapters)
        if _named(adapters) not in {_named(limit) for limit in effective}:
            effective = [*effective, adapters]
        order = [*_METRICS]
        chosen = [limit for limit in effective if limit.scope == SCOPES[tab]]
        if tab == "organisation":
            chosen.sort(key=lambda limit: (order.index(limit.metric), limit.model))
        page = chosen[PAGE * (number - 1) : PAGE * number]
        states, stored, named = await gather_all(
            self._states(tenant_id, page),
            self._stored(tenant_id, page),
            self._names.of(tenant_id, [limit.scope_id for limit in page if limit.scope != "tenant"]),
        )
        rows = [
            _row(limit, states, stored, named.get(limit.scope_id), _named(limit) not in set_ones)
            for limit in page
        ]
        spend = next(
            (
                row
                for row, limit in zip(rows, page, strict=True)
                if limit.scope == "tenant" and limit.metric == Metric.SPEND_PER_MONTH and not limit.model
            ),
            None,
        )
        more = len(chosen) > PAGE * number
        return Limits(tab, spend, rows, number, more, states is not None)

    async def choices(self, tenant_id: str) -> list[tuple[str, str]]:
        """(value, words) of whom a limit can be for."""
        projects, keys = await gather_all(
            self._projects.list(tenant_id, limit=MAX_PROJECTS, newest_first=False),
            self._keys.list(tenant_id, kind="inference", limit=MAX_KEYS),
        )
        return [
            ("tenant", "Organization"),
            *((f"project:{one.id}", f"Project {one.name}") for one in projects),
            *((f"key:{one.id}", f"Key {one.name}") for one, *_ in keys),
        ]

    async def _states(
        self, tenant_id: str, limits: Sequence[Limit]
    ) -> dict[tuple[str, ...], LimitState] | None:
        """By limit, how full it is; None while that cannot be asked."""
        try:
            found = await self._quotas.state(tenant_id, limits)
        except QuotaUnavailable:
            return None
        return {_named(state.limit): state for state in found}

    async def _stored(self, tenant_id: str, limits: Sequence[Limit]) -> dict[Metric, int]:
        """What lies in the database, of the metrics that are asked for."""
        metrics = {limit.metric for limit in limits}
        found: dict[Metric, int] = {}
        if Metric.ADAPTERS in metrics:
            found[Metric.ADAPTERS] = await self._catalogue.count(tenant_id)
        if Metric.STORAGE_BYTES in metrics:
            found[Metric.STORAGE_BYTES] = await self._files.stored_bytes(tenant_id)
        if Metric.BATCH_LINES in metrics:
            found[Metric.BATCH_LINES] = await self._batches.waiting_lines(tenant_id)
        return found


def title_of(metric: Metric) -> str:
    return _METRICS[metric][0]


def amount_words(metric: Metric, amount: int | None) -> str:
    if metric.measure == "spend":
        return formatting.usd(amount)
    return formatting.size(amount) if metric == Metric.STORAGE_BYTES else formatting.count(amount)


def amount_written(metric: Metric, amount: int) -> str:
    """As `read_amount` reads it, exactly."""
    if metric.measure == "spend":
        return formatting.usd(amount).removeprefix("$").replace(",", "")
    return size_written(amount) if metric == Metric.STORAGE_BYTES else str(amount)


def read_limit(form: Mapping[str, str], tenant_id: str) -> Limit:
    """The limit that a form is about. Raises Refused."""
    metric = read_metric(form.get("metric", ""))
    scope, scope_id = read_scope(form.get("for", ""), tenant_id)
    return Limit(scope, scope_id, form.get("model", "").strip(), metric, 0)


def read_metric(written: str) -> Metric:
    """Raises Refused."""
    if written not in Metric.__members__.values() or written == Metric.PREPAID_BALANCE:
        raise FieldError("metric", "Choose a metric.")
    return Metric(written)


def read_scope(written: str, tenant_id: str) -> tuple[Scope, str]:
    """Raises Refused."""
    if written == "tenant":
        return "tenant", tenant_id
    scope, _, scope_id = written.partition(":")
    if scope == "project" and scope_id:
        return "project", scope_id
    if scope == "key" and scope_id:
        return "key", scope_id
    raise FieldError("for", "Choose a scope.")


def read_amount(metric: Metric, written: str, field: str = "amount") -> int:
    """In the unit that the metric is kept in. Raises Refused."""
    text = written.strip()
    if metric.measure == "spend":
        return read_dollars(text, field)
    if metric == Metric.STORAGE_BYTES:
        return read_size(text, field)
    text = text.replace(",", "").replace(" ", "")
    if _COUNT.fullmatch(text) is None:
        raise FieldError(field, "Enter a whole number such as 1000.")
    return int(text)


def check_most(limit: Limit, plan: PlanView, field: str = "amount") -> None:
    """What the service would refuse in its own units. Raises Refused."""
    most = MAX_RATE if limit.metric.kind == "rate" else MAX_AMOUNT
    if limit.amount > most:
        raise FieldError(field, f"The maximum is {amount_words(limit.metric, most)}.")
    of_plan = {Metric.ADAPTERS.value: plan.max_adapters, **plan.limits}.get(limit.metric)
    if limit.scope == "tenant" and not limit.model and of_plan is not None and limit.amount > of_plan:
        words_of_plan = amount_words(limit.metric, of_plan)
        raise FieldError(field, f"The maximum is {words_of_plan}, your plan's limit.")


def _named(limit: Limit) -> tuple[str, ...]:
    return (limit.scope, limit.scope_id, limit.model, limit.metric)


def _row(
    limit: Limit,
    states: Mapping[tuple[str, ...], LimitState] | None,
    stored: Mapping[Metric, int],
    named: NamedObject | None,
    is_of_plan: bool,
) -> LimitRow:
    state = None if states is None else states.get(_named(limit))
    used = stored.get(limit.metric, None if state is None else state.used)
    held = 0 if state is None else state.held
    taken = None if used is None else used + held
    share = 0 if taken is None else min(100, 100 * taken // limit.amount if limit.amount else 100)
    return LimitRow(
        title=title_of(limit.metric),
        whose="" if limit.scope == "tenant" else named.name if named is not None else limit.scope_id,
        whose_path=f"/keys/{limit.scope_id}" if limit.scope == "key" else None,
        model=limit.model,
        amount=amount_words(limit.metric, limit.amount),
        used=None if taken is None else amount_words(limit.metric, taken),
        share=max(share, 1) if taken else share,
        tone="over" if share >= 100 else "near" if share >= _NEAR else "",
        note=_note(limit, held),
        resets_at=state.resets_at if state is not None and limit.metric.kind in ("day", "month") else None,
        is_of_plan=is_of_plan and limit.metric != Metric.PREPAID_BALANCE,
        can_change=limit.metric != Metric.PREPAID_BALANCE,
        query={
            "for": "tenant" if limit.scope == "tenant" else f"{limit.scope}:{limit.scope_id}",
            "metric": limit.metric.value,
            "model": limit.model,
        },
        written=amount_written(limit.metric, limit.amount),
        behind=_behind(limit),
    )


def _behind(limit: Limit) -> str | None:
    """Where what counts to it is shown, as far as usage can be narrowed to that."""
    if limit.metric == Metric.ADAPTERS:
        return "/adapters"
    measure = limit.metric.measure
    span = {"day": "today", "month": "month"}.get(limit.metric.kind)
    if span is None:
        return None
    fields = {"range": span, "show": {"spend": "cost", "requests": "requests"}.get(measure, "tokens")}
    if limit.scope != "tenant":
        fields[limit.scope] = limit.scope_id
    if "@" in limit.model or (limit.model and ":" not in limit.model):
        fields["model"] = limit.model
    return f"/usage?{urlencode(fields)}"


def _note(limit: Limit, held: int) -> str:
    if not held or limit.metric.kind == "held":
        return ""
    return f"including {amount_words(limit.metric, held)} reserved by requests in progress"
