"""Gathers the page of a refused request: what its response said, who sent it, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from admin import formatting
from admin.badge import Badge
from admin.usage.labels import Label, LabelLookup, May
from admin.usage.receipt_page import Fact
from admin.usage.requests_page import REFUSED, Position, position_of
from billing.request_ids import submitted_at_of
from tenants.refusals.models import RefusedCall
from tenants.refusals.service import RefusedRequests
from tenants.roles import Right


@dataclass(frozen=True, slots=True)
class Advice:
    """What helps against an error, and where."""

    text: str
    link: str = ""
    path: str = ""
    """Of the console."""
    right: Right | None = None
    """That the page behind the link requires."""


_LIMITS: tuple[str, str, Right] = ("Limits and alerts", "/limits", "limits.read")
_ADVICE = {
    "rate_limit_exceeded": Advice(
        "Wait for as long as the response's Retry-After header says, or raise the limit.", *_LIMITS
    ),
    "insufficient_quota": Advice(
        "A quota, the balance, or an unpaid invoice stops requests. Retrying doesn't help.", *_LIMITS
    ),
    "resource_unavailable": Advice(
        "There was no room for the flex service tier. Retry later, or use the default tier."
    ),
    "model_not_found": Advice(
        "Check the model's name. An adapter is named base:adapter or base:adapter@version.",
        "Adapters",
        "/adapters",
        "adapters.read",
    ),
    "not_ready": Advice(
        "The adapter's version isn't ready to serve yet.", "Adapters", "/adapters", "adapters.read"
    ),
    "insufficient_permissions": Advice(
        "Check the kind, scopes, models, networks and web origins of the API key.",
        "API keys",
        "/keys",
        "keys.read",
    ),
    "context_length_exceeded": Advice("Shorten the prompt, or ask for fewer tokens."),
    "mismatched_organization": Advice("Leave out the header OpenAI-Organization, or send this tenant's id."),
    "mismatched_project": Advice("Leave out the header OpenAI-Project, or send the API key's project."),
}
_OURS = Advice("The service was at fault, not the request. Retry; standard clients do so by themselves.")
_INVALID = Advice("Correct the request. Sending it again unchanged gives the same error.")


@dataclass(frozen=True, slots=True)
class RefusedView:
    id: str
    at: datetime
    state: Badge
    message: str
    advice: Advice
    facts: list[Fact]
    may_have_run: bool
    """Whether the engine may have begun it: then the ledger has what it cost."""
    day: str
    same_id: list[tuple[datetime, str]]
    """(time, path) of other calls with the same id: clients can choose it."""


class RefusedPage:
    def __init__(self, refused: RefusedRequests, labels: LabelLookup) -> None:
        self._refused = refused
        self._labels = labels

    async def find(self, tenant_id: str, request_id: str) -> str | None:
        """Returns the path of the latest call with this `x-request-id`, or None. Raises
        DatabaseUnavailable.
        """
        found = await self._refused.search(tenant_id, request_id)
        return path_of(found[0]) if found else None

    async def gather(self, tenant_id: str, address: str, may: May) -> RefusedView | None:
        """Returns None if no call of the tenant was refused there. Raises DatabaseUnavailable."""
        position = position_of(address)
        if position is None or position.kind != REFUSED:
            return None
        found = await self._refused.search(tenant_id, position.id)
        call = next((one for one in found if one.at == position.at), None)
        if call is None:
            call = await self._refused.call(tenant_id, position.at, position.id)
        if call is None:
            return None
        ids = {"project": call.project_id, "user": call.user_id, "key": call.key_id}
        labels = await self._labels.of(tenant_id, ids.items(), may)
        return RefusedView(
            id=call.request_id,
            at=call.at,
            state=Badge(f"{call.status} {call.code}", "bad" if call.status >= 500 else "warn"),
            message=call.message,
            advice=_advice(call, may),
            facts=_facts(call, lambda dimension: labels.of(dimension, ids[dimension])),
            may_have_run=bool(call.generation_id) and call.status not in (400, 429),
            day=f"{call.at:%Y-%m-%d}",
            same_id=[(one.at, path_of(one)) for one in found if one.at != call.at],
        )


def path_of(call: RefusedCall) -> str:
    """Returns the path of the call's page, below the list's."""
    return f"refused/{Position(call.at, REFUSED, call.request_id).address}"


def _advice(call: RefusedCall, may: May) -> Advice:
    advice = _ADVICE.get(call.code) or (_OURS if call.status >= 500 else _INVALID)
    return advice if advice.right is None or may(advice.right) else Advice(advice.text)


def _facts(call: RefusedCall, label: Callable[[str], Label]) -> list[Fact]:
    facts = [
        Fact("Endpoint", Label(f"{call.method} {call.path}")),
        Fact("Model", Label(call.model or formatting.NOTHING)),
        Fact("API key", label("key")),
        Fact("Project", label("project")),
        Fact("Member", label("user")),
        Fact("Service tier", Label(call.service_tier or formatting.NOTHING)),
    ]
    if submitted_at_of(call.generation_id) is not None:
        # The ledger has it only if the engine had taken it.
        facts.append(Fact("Generation", Label(call.generation_id)))
    return facts
