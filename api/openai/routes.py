"""Serves the OpenAI-compatible inference endpoints, chat completions and completions, and documents their
errors.
"""

from __future__ import annotations

from fastapi import Request, Response

from adapters.errors import ModelNotFound, ModelNotReady
from api.authentication import GENERATE, authenticate
from api.errors import ContextLengthExceeded, GenerationFailed, NoRoomForFlex
from api.openai.objects import ChatCompletionChunk, ChatCompletionObject, CompletionChunk, CompletionObject
from api.openai.pipeline import chat_completion, completion
from api.openapi.routing import Router, answers, fails_with, json_body
from api.services import services_of
from engine.client import EngineGone, ReaderStalled, RequestRejected
from tenants.errors import AccountSuspended, QuotaExhausted, QuotaUnavailable, RateLimited
from tenants.limits.kinds import Limit, Metric

router = Router(prefix="/v1", errors=(AccountSuspended(),))
_LIMIT = Limit("tenant", "org_1", "", Metric.REQUESTS_PER_MINUTE, 60)
FAILURES = (
    ContextLengthExceeded(
        "This model's maximum context length is 4096 tokens; the prompt has 5000.", "messages"
    ),
    ModelNotFound("base:support"),
    ReaderStalled("the answer was not read"),
    ModelNotReady("base:support", "calibrating"),
    RateLimited(_LIMIT, 1.5),
    QuotaExhausted(_LIMIT, None),
    NoRoomForFlex(1.0),
    GenerationFailed("The model's numbers stopped being finite: this request cannot be answered."),
    EngineGone("the engine does not serve"),
    RequestRejected("overloaded", "The server is overloaded.", 1.0),
    QuotaUnavailable(1.0),
)
"""Examples for the document of what requests fail with here."""


@router.post(
    "/chat/completions",
    operation_id="createChatCompletion",
    openapi_extra=json_body("ChatCompletionRequest"),
    response_model=None,
    tags=["Chat"],
)
@answers(ChatCompletionObject, ChatCompletionChunk)
@fails_with(*FAILURES)
async def create_chat_completion(request: Request) -> Response:
    """Generates the next message of a conversation."""
    caller = await authenticate(request, GENERATE)
    return await chat_completion(request, services_of(request), caller)


@router.post(
    "/completions",
    operation_id="createCompletion",
    openapi_extra=json_body("CompletionRequest"),
    response_model=None,
    tags=["Completions"],
)
@answers(CompletionObject, CompletionChunk)
@fails_with(*FAILURES)
async def create_completion(request: Request) -> Response:
    """Continues a prompt, or each of several."""
    caller = await authenticate(request, GENERATE)
    return await completion(request, services_of(request), caller)
