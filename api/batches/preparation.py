"""Defines a line of a batch that the engine can take, and how its answer becomes the endpoint's JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol

from api.openai.answer import Answer
from api.openai.pipeline import PreparedRequest
from api.openai.response_bodies import whole
from api.openai.validation import ValidatedRequest
from api.services import Services
from tenants.context import TenantContext


class LineBody(Protocol):
    """What the bodies of all endpoints have."""

    @property
    def model(self) -> str: ...
    @property
    def service_tier(self) -> str | None: ...
    @property
    def stream(self) -> bool | None: ...


class PreparedLine(NamedTuple):
    """A line whose model is resolved and whose prompt is encoded."""

    request: PreparedRequest
    body: Callable[[Answer, ValidatedRequest], Awaitable[bytes]]
    """Reads the answer to its end and returns it as the endpoint's JSON. Also takes the request as it was
    submitted."""


Prepare = Callable[[Services, TenantContext, Any], Awaitable[PreparedLine]]


def answered_whole(prepare: Callable[[Services, TenantContext, Any], Awaitable[PreparedRequest]]) -> Prepare:
    """Returns the preparation of lines that are answered as chat completions and completions are."""

    async def prepared(services: Services, caller: TenantContext, body: LineBody) -> PreparedLine:
        request = await prepare(services, caller, body)
        return PreparedLine(request, lambda answer, _: whole(answer, request.is_chat))

    return prepared
