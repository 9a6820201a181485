"""Gathers the list of requests, and the receipt of one request."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from admin import formatting
from admin.badge import Badge
from admin.usage.labels import Label, LabelLookup, Labels, May
from admin.usage.page import Chip, chips_of
from admin.usage.query import UsageQuery
from admin.web.form_errors import FieldError
from billing.models import UsageRecord
from billing.reports.receipts import ReceiptObject, Receipts
from billing.reports.slices import RequestPosition, UsageSlices

PAGE = 50
_EPOCH = datetime.fromtimestamp(0, UTC)
_PLACE = re.compile(r"(\d{1,16})~([\x21-\x7e]{1,200})")
_ENDS = {
    "stop": "Finished",
    "length": "Hit max_tokens",
    "abort": "Cancelled",
    "error": "Failed",
}
_KINDS = (("input", "Input"), ("cached_input", "Cached input"), ("output", "Output"))


@dataclass(frozen=True, slots=True)
class RequestRow:
    id: str
    at: datetime
    model: str
    key: Label
    state: Badge | None
    """None: it ended, and is billed."""
    input: int
    cached: int
    output: int
    first_token: str
    total: str
    cost: int


@dataclass(frozen=True, slots=True)
class RequestList:
    asked: UsageQuery
    chips: list[Chip]
    rows: list[RequestRow]
    next_after: str | None


@dataclass(frozen=True, slots=True)
class Line:
    """Of what a request is billed for."""

    title: str
    tokens: int
    price: int
    """Micro-USD a million."""
    cost: int


@dataclass(frozen=True, slots=True)
class Leg:
    """A stretch of the time that a request took."""

    title: str
    tone: str
    x: float
    width: float
    """Per cent."""
    took: str


@dataclass(frozen=True, slots=True)
class Fact:
    title: str
    label: Label


@dataclass(frozen=True, slots=True)
class TakenBack:
    id: str
    at: datetime
    reason: str
    cost: int


@dataclass(frozen=True, slots=True)
class Receipt:
    id: str
    at: datetime
    state: Badge
    lines: list[Line]
    percent: int | None
    """What the class pays of the prices; None: nothing is priced."""
    tier: str
    cost: int
    billed: int
    reversals: list[TakenBack]
    legs: list[Leg]
    rate: str | None
    facts: list[Fact]
    parts: list[str]
    """Ids of the prompts of a list, where there was one."""


class RequestsPage:
    """Gathers both."""

    def __init__(self, slices: UsageSlices, receipts: Receipts, labels: LabelLookup) -> None:
        self._slices = slices
        self._receipts = receipts
        self._labels = labels

    async def list(self, tenant_id: str, asked: UsageQuery, after: str, may: May) -> RequestList:
        """Raises Refused, InvalidReportQuery, DatabaseUnavailable."""
        page = await self._slices.requests(
            tenant_id, asked.start, asked.end, slice=asked.slice, after=_place(after), limit=PAGE
        )
        named = {("key", row.key_id) for row in page.rows}
        named |= {(id, value) for id, chosen in asked.chosen.items() for value in chosen}
        labels = await self._labels.of(tenant_id, named, may)
        rows = [_row(row, labels, row.request_id in page.reversed_ids) for row in page.rows]
        return RequestList(
            asked, chips_of(asked, labels), rows, None if page.next is None else _name(page.next)
        )

    async def receipt(self, tenant_id: str, request_id: str, may: May) -> Receipt:
        """Raises GenerationNotFound, DatabaseUnavailable."""
        found = await self.document(tenant_id, request_id)
        adapter = found["adapter"]
        of = {
            "project": found["project_id"] or "",
            "user": found["user_id"] or "",
            "key": found["api_key_id"] or "",
            "adapter": "" if adapter is None else adapter["id"],
        }
        labels = await self._labels.of(tenant_id, of.items(), may)
        return _receipt(found, {dimension: labels.of(dimension, value) for dimension, value in of.items()})

    async def document(self, tenant_id: str, request_id: str) -> ReceiptObject:
        """As the API has it."""
        return await self._receipts.of(tenant_id, request_id)


def _row(row: UsageRecord, labels: Labels, is_reversed: bool) -> RequestRow:
    state = None
    if is_reversed:
        state = Badge("Reversed", "warn")
    elif row.finish_reason is None:
        state = Badge("Running", "busy")
    elif row.finish_reason not in ("stop", "length"):
        state = Badge(_state_word(row.finish_reason), "off")
    return RequestRow(
        row.request_id,
        row.submitted_at,
        row.model or labels.of("model", "").text,
        labels.of("key", row.key_id),
        state,
        row.prompt_tokens,
        row.cached_tokens,
        row.completion_tokens,
        formatting.seconds(row.first_token_seconds),
        formatting.seconds(row.total_seconds),
        row.cost,
    )


def _state_word(reason: str) -> str:
    return {"abort": "Cancelled", "error": "Failed"}.get(reason, reason.capitalize())


def _receipt(found: Mapping[str, Any], labels: Mapping[str, Label]) -> Receipt:
    usage, price = found["usage"], found["price"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    tokens = {
        "input": usage["prompt_tokens"] - cached,
        "cached_input": cached,
        "output": usage["completion_tokens"],
    }
    reversals = [
        TakenBack(one["id"], datetime.fromisoformat(one["at"]), one["reason"], one["cost_micro_usd"])
        for one in found["reversals"]
    ]
    tier = found["service_tier"] or "default"
    return Receipt(
        id=found["id"],
        at=datetime.fromisoformat(found["submitted_at"]),
        state=_whole_state(found, reversals),
        lines=[
            Line(title, tokens[kind], (price or {}).get(kind, 0), found["cost_details"][kind])
            for kind, title in _KINDS
        ],
        percent=None if price is None else price["percent"],
        tier=tier,
        cost=found["cost_micro_usd"],
        billed=found["billed_micro_usd"],
        reversals=reversals,
        legs=_legs(found["timings"]),
        rate=_rate(found, usage["completion_tokens"]),
        facts=_facts(found, labels),
        parts=found["requests"] if len(found["requests"]) > 1 else [],
    )


def _whole_state(found: Mapping[str, Any], reversals: Sequence[TakenBack]) -> Badge:
    if reversals:
        return (
            Badge("Reversed", "warn") if not found["billed_micro_usd"] else Badge("Partly reversed", "warn")
        )
    if found["status"] != "completed":
        return Badge("Running", "busy")
    reasons = set(str(found["finish_reason"]).split(","))
    if reasons <= {"stop", "length"}:
        return Badge("Completed", "good")
    return Badge(_state_word((reasons - {"stop", "length"}).pop()), "off")


def _facts(found: Mapping[str, Any], labels: Mapping[str, Label]) -> list[Fact]:
    adapter = labels["adapter"]
    if found["adapter"] is not None and found["adapter"]["version"] is not None:
        version = f"version {found['adapter']['version']}"
        adapter = Label(adapter.text, ", ".join(filter(None, (version, adapter.detail))), adapter.path)
    reason = found["finish_reason"]
    ended = "In progress" if reason is None else ", ".join(_ENDS.get(one, one) for one in reason.split(","))
    facts = [
        Fact("Model", Label(found["model"] or "unknown")),
        Fact("Adapter", adapter),
        Fact("API key", labels["key"]),
        Fact("Project", labels["project"]),
        Fact("Member", labels["user"]),
        Fact("Endpoint", Label(found["endpoint"] or formatting.NOTHING)),
        Fact("Choices", Label(formatting.count(found["num_choices"]))),
        Fact("Finish reason", Label(ended)),
    ]
    if found["preemptions"]:
        facts.append(Fact("Preemptions", Label(f"{found['preemptions']}")))
    return facts


def _legs(timings: Mapping[str, float | None]) -> list[Leg]:
    """Waiting, reading the prompt, writing: as far as they are known."""
    queued, first, total = (timings[f"{name}_seconds"] for name in ("queue", "first_token", "total"))
    if queued is None or first is None or total is None or not 0 <= queued <= first <= total or not total:
        return []
    ends = ((queued, "Queued", "rest"), (first, "Prefill", "input"), (total, "Decode", "output"))
    legs, begins = [], 0.0
    for ends_at, title, tone in ends:
        width = 100 * (ends_at - begins) / total
        legs.append(
            Leg(
                title,
                tone,
                round(100 * begins / total, 3),
                round(width, 3),
                formatting.seconds(ends_at - begins),
            )
        )
        begins = ends_at
    return legs


def _rate(found: Mapping[str, Any], output: int) -> str | None:
    first, total = found["timings"]["first_token_seconds"], found["timings"]["total_seconds"]
    if first is None or total is None or total <= first or output < 2 or len(found["requests"]) > 1:
        return None
    return f"{(output - 1) / (total - first):,.0f} tokens/s"


def _place(written: str) -> RequestPosition | None:
    if not written:
        return None
    found = _PLACE.fullmatch(written)
    if found is None:
        raise FieldError("after", "This page of the list doesn't exist. Start with the newest requests.")
    return RequestPosition(_EPOCH + timedelta(microseconds=int(found[1])), found[2])


def _name(place: RequestPosition) -> str:
    return f"{(place.submitted_at - _EPOCH) // timedelta(microseconds=1)}~{place.request_id}"
