"""Lists the endpoints whose requests a batch can have, with how their bodies are decoded and prepared."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from api.openai.answer import Answer
from api.openai.pipeline import PreparedRequest, prepare_chat, prepare_completion
from api.openai.response_bodies import whole
from api.openai.schemas import GenerationFields, decode_chat, decode_completion
from api.services import Services
from tenants.context import TenantContext


@dataclass(frozen=True, slots=True)
class BatchEndpoint:
    """An endpoint as the lines of a batch use it."""

    decode: Callable[[bytes], GenerationFields]
    """Raises ApiError."""
    prepare: Callable[[Services, TenantContext, Any], Awaitable[PreparedRequest]]
    """Takes what `decode` returned."""
    id_prefix: str
    """Of its responses and of its requests in the ledger."""
    body: Callable[[Answer, bool], Awaitable[bytes]] = whole
    """Reads an answer to its end and returns it as the endpoint's JSON."""


ENDPOINTS: Mapping[str, BatchEndpoint] = {
    "/v1/chat/completions": BatchEndpoint(decode_chat, prepare_chat, "chatcmpl"),
    "/v1/completions": BatchEndpoint(decode_completion, prepare_completion, "cmpl"),
}
