"""Gathers the receipt of one request: its cost, its timing and what it was sent with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from admin import formatting
from admin.badge import Badge
from admin.usage.labels import Label, LabelLookup, May
from billing.reports.receipts import ReceiptObject, Receipts

_ENDS = {
    "stop": "Finished",
    "length": "Hit max_tokens",
    "abort": "Cancelled",
    "error": "Failed",
}
_KINDS = (("input", "Input"), ("cached_input", "Cached input"), ("output", "Output"))


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the cost: one kind of token."""

    title: str
    tokens: int
    price: int
    """Micro-USD a million."""
    cost: int
    reasoning: int = 0
    """Those of `tokens` that the model thought with."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of a request: queued, prefill or decode."""

    title: str
    tone: str
    x: float
    width: float
    """Per cent."""
    duration: str


@dataclass(frozen=True, slots=True)
class Fact:
    title: str
    label: Label


@dataclass(frozen=True, slots=True)
class Reversal:
    """A reversal of what the request was billed."""

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
    """Of the prices, what the service tier pays; None: there is no price."""
    tier: str
    cost: int
    billed: int
    reversals: list[Reversal]
    phases: list[Phase]
    rate: str | None
    facts: list[Fact]
    metadata: list[tuple[str, str]]
    """What the client named the request with."""
    parts: list[str]
    """Ids of the prompts of a list, where there was one."""


class ReceiptPage:
    """Gathers the receipt."""

    def __init__(self, receipts: Receipts, labels: LabelLookup) -> None:
        self._receipts = receipts
        self._labels = labels

    async def gather(self, tenant_id: str, request_id: str, may: May) -> Receipt:
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
        """Returns the receipt that the API serves."""
        return await self._receipts.of(tenant_id, request_id)


def state_word(reason: str) -> str:
    """Returns the word for how a request ended that did not end well."""
    return _ENDS.get(reason, reason.capitalize())


def _receipt(found: Mapping[str, Any], labels: Mapping[str, Label]) -> Receipt:
    usage, price = found["usage"], found["price"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    reasoning = usage["completion_tokens_details"]["reasoning_tokens"]
    tokens = {
        "input": usage["prompt_tokens"] - cached,
        "cached_input": cached,
        "output": usage["completion_tokens"],
    }
    reversals = [
        Reversal(one["id"], datetime.fromisoformat(one["at"]), one["reason"], one["cost_micro_usd"])
        for one in found["reversals"]
    ]
    tier = found["service_tier"] or "default"
    return Receipt(
        id=found["id"],
        at=datetime.fromisoformat(found["submitted_at"]),
        state=_state(found, reversals),
        lines=[
            Line(
                *(title, tokens[kind], (price or {}).get(kind, 0), found["cost_details"][kind]),
                reasoning if kind == "output" else 0,
            )
            for kind, title in _KINDS
        ],
        percent=None if price is None else price["percent"],
        tier=tier,
        cost=found["cost_micro_usd"],
        billed=found["billed_micro_usd"],
        reversals=reversals,
        phases=_phases(found["timings"]),
        rate=_rate(found, usage["completion_tokens"]),
        facts=_facts(found, labels),
        metadata=_metadata(found),
        parts=found["requests"] if len(found["requests"]) > 1 else [],
    )


def _state(found: Mapping[str, Any], reversals: Sequence[Reversal]) -> Badge:
    if reversals:
        return (
            Badge("Reversed", "warn") if not found["billed_micro_usd"] else Badge("Partly reversed", "warn")
        )
    if found["status"] != "completed":
        return Badge("Running", "busy")
    reasons = set(str(found["finish_reason"]).split(","))
    if reasons <= {"stop", "length"}:
        return Badge("Completed", "good")
    return Badge(state_word((reasons - {"stop", "length"}).pop()), "off")


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


def _metadata(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    named = [(name, found[name]) for name in ("user", "safety_identifier") if found[name] is not None]
    return named + [(f"metadata.{key}", value) for key, value in (found["metadata"] or {}).items()]


def _phases(timings: Mapping[str, float | None]) -> list[Phase]:
    """Returns the phases, or none unless all timings are known."""
    queued, first, total = (timings[f"{name}_seconds"] for name in ("queue", "first_token", "total"))
    if queued is None or first is None or total is None or not 0 <= queued <= first <= total or not total:
        return []
    ends = ((queued, "Queued", "rest"), (first, "Prefill", "input"), (total, "Decode", "output"))
    phases, begins = [], 0.0
    for ends_at, title, tone in ends:
        width = 100 * (ends_at - begins) / total
        phases.append(
            Phase(
                title,
                tone,
                round(100 * begins / total, 3),
                round(width, 3),
                formatting.seconds(ends_at - begins),
            )
        )
        begins = ends_at
    return phases


def _rate(found: Mapping[str, Any], output: int) -> str | None:
    first, total = found["timings"]["first_token_seconds"], found["timings"]["total_seconds"]
    if first is None or total is None or total <= first or output < 2 or len(found["requests"]) > 1:
        return None
    return f"{(output - 1) / (total - first):,.0f} tokens/s"
