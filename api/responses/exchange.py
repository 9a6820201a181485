"""Defines a request for a response on its way: what was asked, by which caller, over which context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from api.responses.bodies import conversation_of, new_body
from api.responses.output import OutputBuilder
from api.responses.schemas import ResponseRequest
from api.responses.turns import Turn
from conversations.responses.service import ResponseRecord
from tenants.context import TenantContext

Json = dict[str, Any]


@dataclass
class Exchange:
    """A request for a response, and its context."""

    id: str
    submitted_at: float
    """Unix seconds."""
    request: ResponseRequest
    caller: TenantContext
    turn: Turn
    is_stored: bool

    def output(self) -> OutputBuilder:
        """Returns a builder of its output."""
        return OutputBuilder(self.request.wants_logprobs)

    def body(self, model: str, tier: str) -> Json:
        """Returns its response object, in progress. `model`: the pinned form of the model's name."""
        return new_body(self.request, self.id, self.submitted_at, model, tier, self.is_stored)

    def record(self, body: Json, output: list[Json]) -> ResponseRecord:
        """Returns the response as it is stored."""
        return ResponseRecord(
            id=self.id,
            status=body["status"],
            submitted_at=self.submitted_at,
            body=body,
            input=self.turn.own,
            output=output,
            previous_id=self.request.previous_response_id,
            conversation_id=conversation_of(self.request),
            is_background=bool(self.request.background),
        )
